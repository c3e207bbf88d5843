"""Events of predictions: what a predictor said in advance, and calibrated constants."""

from msgspec import Struct, structs

from nearfree.core.setting import Setting
from nearfree.log.events.payload import Payload


class PredictionRecorded(Payload, frozen=True, kw_only=True):
    """What a predictor says of a model's setting at a tolerance, on record before it is measured.

    `n_max` None is a refusal; `low` and `high` bound it. `made_from` names the takes that the
    prediction rests on. `n` and `latency_us` are T(N) where the predictor has one.
    """

    type_name = "nearfree.prediction.recorded.v1"
    setting: Setting
    baseline: int
    predictor: str
    basis: str | None = None
    epsilon: float
    n_max: float | None = None
    low: float | None = None
    high: float | None = None
    limiting_module: str | None = None
    limiting_term: str | None = None
    evidence: str | None = None
    margin: float | None = None
    balance_flop_per_byte: float | None = None
    refusal: str | None = None
    made_from: tuple[str, ...] = ()
    n: tuple[int, ...] = ()
    latency_us: tuple[float, ...] = ()


class CalibratedConstant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One constant of a form of T(N), under one hypothesis about what the source does not say."""

    hypothesis: str
    name: str
    unit: str
    meaning: str
    value: float


class ConstantsCalibratedV1(Payload, frozen=True, kw_only=True):
    """Version 1: constants of 16-bit kernels alone, which it did not say."""

    type_name = "nearfree.constants.calibrated.v1"
    family: str
    constants: tuple[CalibratedConstant, ...]
    band: float
    epsilon: float
    platforms: tuple[str, ...]
    selection: str
    curves: int
    rows_sha256: str
    files: dict[str, str]
    members: dict[str, str]
    tried: tuple[str, ...]

    def upcast(self) -> "ConstantsCalibrated":
        """Name the element types that version 1 was calibrated for."""
        return ConstantsCalibrated(**structs.asdict(self), dtypes=("bfloat16", "float16"))


class ConstantsCalibrated(Payload, frozen=True, kw_only=True):
    """The constants of one family of kernels, and the curves that they were fitted to.

    `band` is how far the logarithm of T(N) / T(baseline) may be off, as seen on curves left out of
    the fit. `rows_sha256` is a digest of the curves that were used: their settings and points, in
    their order; `selection` says in words which those are.
    """

    type_name = "nearfree.constants.calibrated.v2"
    before = ConstantsCalibratedV1
    family: str
    dtypes: tuple[str, ...]
    """The element types that the constants hold for."""
    constants: tuple[CalibratedConstant, ...]
    band: float
    epsilon: float
    platforms: tuple[str, ...]
    selection: str
    curves: int
    rows_sha256: str
    files: dict[str, str]
    """What the curves were imported from, by name and SHA-256."""
    members: dict[str, str]
    """The files inside it that hold them, by path and SHA-256."""
    tried: tuple[str, ...]
    """Every form of T(N) that was tried on these curves, and how well it did."""


class RegimeBandV1(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Version 1: without how good the predictions were."""

    regime: str
    module: str
    formats: str
    routing: str
    band: float
    curves: int


class RegimeBand(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How far log(T(N) / T(baseline)) may be off in a regime, of one kind of question.

    `hit`, `within_x2` and `covered` are shares of these curves, each predicted without what its
    regime does not know: whether N_max is the grid point, within a factor of 2 of it, and within
    the interval by a band that the other half of the models was calibrated on. None where version 1
    did not say.
    """

    regime: str
    module: str
    formats: str
    routing: str
    band: float
    curves: int
    """Curves that it was calibrated on."""
    hit: float | None = None
    within_x2: float | None = None
    covered: float | None = None


class BandsCalibratedV1(Payload, frozen=True, kw_only=True):
    """Version 1: bands alone."""

    type_name = "nearfree.bands.calibrated.v1"
    epsilon: float
    covered: float
    bands: tuple[RegimeBandV1, ...]

    def upcast(self) -> "BandsCalibrated":
        """Leave open how good the predictions were."""
        bands = tuple(RegimeBand(**structs.asdict(each)) for each in self.bands)
        return BandsCalibrated(epsilon=self.epsilon, covered=self.covered, bands=bands)


class BandsCalibrated(Payload, frozen=True, kw_only=True):
    """The bands of regimes: each covers `covered` of the curves that its regime did not know."""

    type_name = "nearfree.bands.calibrated.v2"
    before = BandsCalibratedV1
    epsilon: float
    covered: float
    bands: tuple[RegimeBand, ...]
