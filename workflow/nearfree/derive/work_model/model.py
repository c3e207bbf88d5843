"""Boundaries from a family's T(N): value and interval over the grid that is asked for."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from nearfree.derive.truth.exits import first_exit, last_pass
from nearfree.derive.work_model.family import Array, Family, Features, Flags, Places


class Fitted(Struct, frozen=True, kw_only=True):
    """The calibrated constants of a family.

    `values` by hypothesis and name; `band` is how far the logarithm of T(N) / T(baseline) may be
    off.
    """

    family: str
    values: Mapping[str, Mapping[str, float]]
    band: float


class Boundaries(Struct, frozen=True, kw_only=True):
    """Places in a row's grid, [rows]: the predicted last pass, its interval, and the first exit."""

    last: Places
    low: Places
    high: Places
    first_exit: Places


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


def boundaries(ratio: Array, counts: Flags, epsilon: float, fitted: Fitted) -> Boundaries:
    """Return where predicted curves leave a tolerance (paper, sec. 2.2).

    Parameters
    ----------
    ratio
        T(N) / T(baseline), [rows, grid]; each grid begins at its baseline.
    counts
        Which points are a row's own, [rows, grid].
    """
    limit = np.log1p(epsilon)
    logs = np.where(counts, np.log(ratio), np.inf)
    passes = logs <= limit
    return Boundaries(
        last=last_pass(passes),
        low=last_pass(logs <= limit - fitted.band),
        high=last_pass(logs <= limit + fitted.band),
        first_exit=first_exit(passes, counts),
    )
