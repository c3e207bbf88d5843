"""What calibrates together: kernels that share a form of T(N) and its constants."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct, structs

from nearfree.derive.truth.truth import last_pass
from nearfree.log.events import CalibratedConstant

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
FLOP_PER_US = 1e6
"""FLOPs a microsecond of a TFLOP/s."""
Features = Mapping[str, Any]
"""What a form asks of rows of questions: arrays [rows, 1] of facts and shapes, [rows, grid] of what
changes with N, all float64."""
Values = Mapping[str, float]


def column(rows: pl.DataFrame, name: str, missing: float = np.nan) -> Array:
    """Return a column of numbers as [rows, 1], and what stands for those that are missing."""
    return np.asarray(rows[name].cast(pl.Float64).fill_null(missing).to_numpy()[:, None])


class Constant(Struct, frozen=True, kw_only=True):
    """A constant of a form: where its calibration starts and between which ends it is sought.

    At `neutral` the form is as if it had not the constant, which is what shared constants take: a
    few platforms cannot tell it from the rest. None of constants that are always fitted. `dtypes`
    are the formats of operands in which a kernel's own curves tell it; all if none is named.
    """

    name: str
    unit: str
    meaning: str
    start: float
    low: float
    high: float
    neutral: float | None = None
    dtypes: tuple[str, ...] = ()

    def calibrated(self, hypothesis: str, value: float) -> CalibratedConstant:
        """Return the constant with its value, as the log keeps it."""
        return CalibratedConstant(
            hypothesis=hypothesis,
            name=self.name,
            unit=self.unit,
            meaning=self.meaning,
            value=value,
        )


class Family(Struct, frozen=True, kw_only=True):
    """Kernels of one form.

    It is the form of some kinds of modules, for the `backend`, `kernel` and `cached` (a call over a
    KV cache) that it `speaks` of; a setting must have the fields `needs` besides those of any law.
    `latency_us` maps features, constants and a hypothesis to T(N) in microseconds, [rows, grid].
    There is a hypothesis for each way in which what the source does not say may be (a library's
    tile), with constants of its own; the prediction is the geometric mean over them.
    `times` says that T(N) itself is fitted wherever it lies, not how it rises from its baseline.
    With a `stated_band` its constants are where they start: they are stated with their source, and
    no calibration is asked for.
    """

    name: str
    meaning: str
    modules: tuple[str, ...]
    speaks: Callable[[str, str | None, bool], bool] = lambda _backend, _kernel, _cached: True
    needs: tuple[str, ...] = ()
    constants: tuple[Constant, ...]
    hypotheses: tuple[str, ...]
    latency_us: Callable[[Features, Values, str], Array]
    times: bool = False
    stated_band: float | None = None

    @property
    def stated(self) -> "Fitted | None":
        """The constants that are stated, None where they are calibrated."""
        if self.stated_band is None:
            return None
        values = {each.name: each.start for each in self.constants}
        named = dict.fromkeys(self.hypotheses, values)
        return Fitted(family=self.name, values=named, band=self.stated_band)


def shared(family: Family) -> Family:
    """Return a family whose fit leaves out what a few platforms cannot tell."""
    fitted = tuple(each for each in family.constants if each.neutral is None)
    return structs.replace(family, constants=fitted)


def told_in(family: Family, dtype: str) -> Family:
    """Return a family whose fit leaves out what curves in a format do not tell."""
    fitted = tuple(each for each in family.constants if not each.dtypes or dtype in each.dtypes)
    return structs.replace(family, constants=fitted)


def neutral(family: Family) -> dict[str, float]:
    """Return the constants that a family may be without, each as if it were not there."""
    return {each.name: each.neutral for each in family.constants if each.neutral is not None}


def power_mean_sum(sharpness: float, *parts: Array) -> Array:
    """Return (sum of parts^p)^(1/p): a sum at p = 1, the largest part as p grows."""
    largest = np.maximum.reduce(parts)
    scaled = sum((part / largest) ** sharpness for part in parts)
    return np.asarray(largest * scaled ** (1.0 / sharpness))


class Fitted(Struct, frozen=True, kw_only=True):
    """The calibrated constants of a family.

    `values` by hypothesis and name; `band` is how far the logarithm of T(N) / T(baseline) may be
    off.
    """

    family: str
    values: Mapping[str, Mapping[str, float]]
    band: float


class Boundaries(Struct, frozen=True, kw_only=True):
    """Places in a row's grid, [rows]: the predicted last pass, and its interval."""

    last: Places
    low: Places
    high: Places


def latencies_us(family: Family, fitted: Fitted, features: Features) -> Array:
    """Return T(N) in microseconds, [hypotheses, rows, grid]."""
    each = [family.latency_us(features, fitted.values[name], name) for name in family.hypotheses]
    return np.stack(each)


def times_of(family: Family, fitted: Fitted, features: Features) -> Array:
    """Return T(N) in microseconds, [rows, grid]: the geometric mean of the hypotheses."""
    return np.asarray(np.exp(np.log(latencies_us(family, fitted, features)).mean(axis=0)))


def ratios_of(family: Family, fitted: Fitted, features: Features) -> Array:
    """Return T(N) / T(first N of the grid), [rows, grid]: the geometric mean of the hypotheses."""
    times = np.log(latencies_us(family, fitted, features)).mean(axis=0)
    return np.asarray(np.exp(times - times[:, :1]))


def boundaries(ratio: Array, counts: Flags, epsilon: float, band: float | Array) -> Boundaries:
    """Return where predicted curves leave a tolerance (paper, sec. 2.2).

    Parameters
    ----------
    ratio
        T(N) / T(baseline), [rows, grid]; each grid begins at its baseline.
    counts
        Which points are a row's own, [rows, grid].
    band
        How far log(T(N) / T(baseline)) may be off: of all, or of each row, [rows, 1].
    """
    limit = np.log1p(epsilon)
    logs = np.where(counts, np.log(ratio), np.inf)
    return Boundaries(
        last=last_pass(logs <= limit),
        low=last_pass(logs <= limit - band),
        high=last_pass(logs <= limit + band),
    )
