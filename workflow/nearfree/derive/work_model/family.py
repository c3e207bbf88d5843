"""Families: kernels that share a form of T(N) and its constants."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct, structs

from nearfree.core.precision import ELEMENT_BYTES, RESULT_BYTES
from nearfree.derive.truth.truth import last_pass
from nearfree.log.events import CalibratedConstant
from nearfree.units import BYTES_PER_GB, US_PER_S

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
FLOP_PER_US = 1e6
"""FLOPs per microsecond in a TFLOP/s."""
Features = Mapping[str, Any]
"""The inputs of a form for rows of questions, all float64: arrays [rows, 1] of facts and shapes,
and [rows, grid] of quantities that depend on N."""
Values = Mapping[str, float]


def column(rows: pl.DataFrame, name: str, missing: float = np.nan) -> Array:
    """Return a column of numbers as [rows, 1], with `missing` for nulls."""
    return np.asarray(rows[name].cast(pl.Float64).fill_null(missing).to_numpy()[:, None])


def per_us(rows: pl.DataFrame, name: str) -> Array:
    """Return a bandwidth in bytes per microsecond, [rows, 1]."""
    return np.asarray(column(rows, name) * (BYTES_PER_GB / US_PER_S))


def common(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the common features: phi in FLOP/us, beta in bytes/us, SMs, b, L, bytes of elements.

    `n` and `tokens` (b N) are [rows, grid], all others [rows, 1].

    Parameters
    ----------
    rows
        Questions with the facts of their platform.
    n
        Their grids, [rows, grid].
    """
    batch = column(rows, "batch")
    return {
        "phi": column(rows, "peak_tflops") * FLOP_PER_US,
        "beta": per_us(rows, "bandwidth_gb_s"),
        "sms": column(rows, "sm_count"),
        "element_bytes": _sizes(rows["dtype"]),
        "weight_bytes": _sizes(rows["weights"].fill_null(rows["dtype"])),
        "result_bytes": _sizes(rows["dtype"], RESULT_BYTES),
        "cache_bytes": _sizes(rows["kv_dtype"].fill_null(rows["dtype"])),
        "n": n,
        "batch": batch,
        "context": column(rows, "context"),
        "tokens": batch * n,
    }


def _sizes(formats: pl.Series, sizes: Mapping[str, float] = ELEMENT_BYTES) -> Array:
    """Return the bytes of an element of each format, as [rows, 1]."""
    return np.array([sizes[format_] for format_ in formats])[:, None]


class Constant(Struct, frozen=True):
    """A constant of a form: the start and the bounds of its calibration.

    At `neutral` the constant has no effect. Shared constants take this value, since a few platforms
    cannot separate it from the others; it is None for constants that are always fitted. `dtypes`
    are the operand formats in which a kernel's own curves determine it; all if empty.
    """

    name: str
    unit: str
    start: float
    low: float
    high: float
    meaning: str
    neutral: float | None = None
    dtypes: tuple[str, ...] = ()

    def calibrated(self, hypothesis: str, value: float) -> CalibratedConstant:
        """Return the constant with its value, for the log."""
        return CalibratedConstant(
            hypothesis=hypothesis,
            name=self.name,
            unit=self.unit,
            meaning=self.meaning,
            value=value,
        )


class Limit(NamedTuple):
    """What ends the near-free region of a form where no block, tile or pass of its rules does.

    `term` is in the terms of the form, `plain` for readers who do not know it.
    """

    term: str
    plain: str


WAVES = Limit("waves of query tiles", "one more wave of query tiles over the GPU's SMs")
"""The limit of kernels that split no keys."""


class Family(Struct, frozen=True, kw_only=True):
    """Kernels of one form.

    It covers some kinds of modules, and of these the `backend`, `kernel` and `cached` (a call over
    a KV cache) for which `covers` is true. A setting must have the fields `needs` besides those of
    any law. `features` maps questions and their grids to the form's features but those of a
    release's rules, and `latency_us` features, constants and a hypothesis to T(N) in microseconds,
    [rows, grid]. A hypothesis stands for one possibility of what the source leaves open (a
    library's tile), and has its own constants; the prediction is the geometric mean over
    hypotheses. With `times`, T(N) itself is fitted at every point, instead of its rise from the
    baseline. With a `stated_band` the start values are the constants: they are stated with their
    source, without calibration. With `only_bytes` formats only decide what is sent or kept, so that
    constants hold for all of them.
    """

    name: str
    meaning: str
    modules: tuple[str, ...]
    covers: Callable[[str, str | None, bool], bool] = lambda _backend, _kernel, _cached: True
    needs: tuple[str, ...] = ()
    constants: tuple[Constant, ...]
    hypotheses: tuple[str, ...]
    latency_us: Callable[[Features, Values, str], Array]
    features: Callable[[pl.DataFrame, Array], dict[str, Any]] = common
    times: bool = False
    stated_band: float | None = None
    limit: Limit
    only_bytes: bool = False

    @property
    def stated(self) -> "Fitted | None":
        """The stated constants, None if they are calibrated."""
        if self.stated_band is None:
            return None
        values = {constant.name: constant.start for constant in self.constants}
        by_hypothesis = dict.fromkeys(self.hypotheses, values)
        return Fitted(family=self.name, values=by_hypothesis, band=self.stated_band)


def without_neutral(family: Family) -> Family:
    """Return a family without the constants that a few platforms do not determine."""
    fitted = tuple(constant for constant in family.constants if constant.neutral is None)
    return structs.replace(family, constants=fitted)


def family_for_dtype(family: Family, dtype: str) -> Family:
    """Return a family without the constants that curves in a format do not determine."""
    fitted = tuple(
        constant for constant in family.constants if not constant.dtypes or dtype in constant.dtypes
    )
    return structs.replace(family, constants=fitted)


def neutral(family: Family) -> dict[str, float]:
    """Return the neutral values of the constants that have one."""
    return {
        constant.name: constant.neutral
        for constant in family.constants
        if constant.neutral is not None
    }


def power_mean_sum(sharpness: float, *parts: Array) -> Array:
    """Return (sum of parts^p)^(1/p): a sum at p = 1, the largest part as p grows."""
    largest = np.maximum.reduce(parts)
    scaled = sum((part / largest) ** sharpness for part in parts)
    return np.asarray(largest * scaled ** (1.0 / sharpness))


class Fitted(Struct, frozen=True, kw_only=True):
    """The calibrated constants of a family.

    `values` are by hypothesis and name; `band` bounds the error of log(T(N) / T(baseline)).
    """

    family: str
    values: Mapping[str, Mapping[str, float]]
    band: float


class Boundaries(Struct, frozen=True, kw_only=True):
    """Indices into the rows' grids, [rows]: the predicted last pass, and its interval."""

    last: Integers
    low: Integers
    high: Integers


def latencies_us(family: Family, fitted: Fitted, features: Features) -> Array:
    """Return T(N) in microseconds, [hypotheses, rows, grid]."""
    by_hypothesis = [
        family.latency_us(features, fitted.values[name], name) for name in family.hypotheses
    ]
    return np.stack(by_hypothesis)


def times_of(family: Family, fitted: Fitted, features: Features) -> Array:
    """Return T(N) in microseconds, [rows, grid]: the geometric mean of the hypotheses."""
    return np.asarray(np.exp(np.log(latencies_us(family, fitted, features)).mean(axis=0)))


def ratios_of(family: Family, fitted: Fitted, features: Features) -> Array:
    """Return T(N) / T(first N of the grid), [rows, grid]: the geometric mean of the hypotheses."""
    log_times = np.log(latencies_us(family, fitted, features)).mean(axis=0)
    return np.asarray(np.exp(log_times - log_times[:, :1]))


def boundaries(ratio: Array, counts: Flags, epsilon: float, band: float | Array) -> Boundaries:
    """Return the last passes of predicted curves within a tolerance (paper, sec. 2.2).

    Parameters
    ----------
    ratio
        T(N) / T(baseline), [rows, grid]; each grid begins at its baseline.
    counts
        Which points belong to a row, [rows, grid].
    band
        Error bound of log(T(N) / T(baseline)): one for all, or one per row, [rows, 1].
    """
    limit = np.log1p(epsilon)
    logs = np.where(counts, np.log(ratio), np.inf)
    return Boundaries(
        last=last_pass(logs <= limit),
        low=last_pass(logs <= limit - band),
        high=last_pass(logs <= limit + band),
    )
