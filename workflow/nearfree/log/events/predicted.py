"""Events of predictions: recorded in advance, and the calibrated constants behind them."""

from msgspec import Struct, structs

from nearfree.core.bounds import AboveZero, AtLeastZero, Share, Text, Tolerance
from nearfree.core.protocols import Positive
from nearfree.core.setting import Setting
from nearfree.core.weights import Digest
from nearfree.log.events.payload import Payload


class PredictionRecorded(Payload, frozen=True, kw_only=True):
    """A predictor's N_max of a model's setting at a tolerance, recorded before it is measured.

    `n_max` is None for a refusal; `low` and `high` bound it. `made_from` names the takes that the
    prediction uses. `n` and `latency_us` are the predicted T(N), if the predictor gives one.
    """

    type_name = "nearfree.prediction.recorded.v1"
    setting: Setting
    baseline: Positive
    predictor: Text
    basis: Text | None = None
    epsilon: Tolerance
    n_max: AtLeastZero | None = None
    low: AtLeastZero | None = None
    high: AtLeastZero | None = None
    limiting_module: Text | None = None
    limiting_term: Text | None = None
    evidence: Text | None = None
    margin: float | None = None
    balance_flop_per_byte: AboveZero | None = None
    refusal: Text | None = None
    made_from: tuple[Text, ...] = ()
    n: tuple[Positive, ...] = ()
    latency_us: tuple[AboveZero, ...] = ()

    def __post_init__(self) -> None:
        if len(self.n) != len(self.latency_us):
            raise ValueError(f"{len(self.n)} N have {len(self.latency_us)} latencies")


class CalibratedConstant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One constant of a form of T(N), under one hypothesis where the source leaves a choice."""

    hypothesis: Text
    name: Text
    unit: Text
    meaning: Text
    value: float


class ConstantsCalibratedV1(Payload, frozen=True, kw_only=True):
    """Version 1: constants of 16-bit kernels alone; without the field `dtypes`."""

    type_name = "nearfree.constants.calibrated.v1"
    family: Text
    constants: tuple[CalibratedConstant, ...]
    band: AtLeastZero
    epsilon: Tolerance
    platforms: tuple[Text, ...]
    selection: Text
    curves: Positive
    rows_sha256: Digest
    files: dict[Text, Digest]
    members: dict[Text, Digest]
    tried: tuple[Text, ...]

    def upcast(self) -> "ConstantsCalibrated":
        """Return version 2 with the element types that version 1 was calibrated for."""
        return ConstantsCalibrated(**structs.asdict(self), dtypes=("bfloat16", "float16"))


class ConstantsCalibrated(Payload, frozen=True, kw_only=True):
    """The constants of one family of kernels, and the curves that they were fitted to.

    `band` is the error bound of log(T(N) / T(baseline)), calibrated on curves left out of the fit.
    `rows_sha256` is a digest over the settings and points of the fitted curves, in order;
    `selection` describes in words which curves those are.
    """

    type_name = "nearfree.constants.calibrated.v2"
    before = ConstantsCalibratedV1
    family: Text
    dtypes: tuple[Text, ...]
    """The element types that the constants hold for."""
    constants: tuple[CalibratedConstant, ...]
    band: AtLeastZero
    epsilon: Tolerance
    platforms: tuple[Text, ...]
    selection: Text
    curves: Positive
    rows_sha256: Digest
    files: dict[Text, Digest]
    """The archives that the curves were imported from, by name and SHA-256."""
    members: dict[Text, Digest]
    """The files inside the archives that hold the curves, by path and SHA-256."""
    tried: tuple[Text, ...]
    """Every form of T(N) that was fitted to these curves, and how well it fitted."""


class RegimeBandV1(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Version 1: without the scores of the predictions."""

    regime: Text
    module: Text
    formats: Text
    routing: str
    band: AtLeastZero
    curves: Positive


class RegimeBand(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The error bound of log(T(N) / T(baseline)) for one regime, module, format and routing.

    `hit`, `within_x2` and `covered` are shares of the curves, each predicted without the data that
    its regime lacks: N_max is the grid point; it is within a factor of 2; it lies in the interval
    from a band that was calibrated on the other half of the models. They are None in version 1.
    """

    regime: Text
    module: Text
    formats: Text
    routing: str
    band: AtLeastZero
    curves: Positive
    """Number of curves that the band was calibrated on."""
    hit: Share | None = None
    within_x2: Share | None = None
    covered: Share | None = None


class BandsCalibratedV1(Payload, frozen=True, kw_only=True):
    """Version 1: bands alone."""

    type_name = "nearfree.bands.calibrated.v1"
    epsilon: Tolerance
    covered: Share
    bands: tuple[RegimeBandV1, ...]

    def upcast(self) -> "BandsCalibrated":
        """Return version 2 without scores."""
        bands = tuple(RegimeBand(**structs.asdict(band)) for band in self.bands)
        return BandsCalibrated(epsilon=self.epsilon, covered=self.covered, bands=bands)


class BandsCalibrated(Payload, frozen=True, kw_only=True):
    """The bands of all regimes: each covers the share `covered` of its left-out curves."""

    type_name = "nearfree.bands.calibrated.v2"
    before = BandsCalibratedV1
    epsilon: Tolerance
    covered: Share
    bands: tuple[RegimeBand, ...]
