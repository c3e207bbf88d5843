"""Fitting the constants of a family to measured curves, and how far its boundaries then miss."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from nearfree.derive.work_model.family import Array, Family, Features, Fitted, Flags, ratios_of

_UP_TO = 4.0
"""T(N) counts up to this many times N_max."""
_LEVEL_WEIGHT = 0.2
"""Weight of a curve's level, T(baseline), against that of its shape."""
_SOFT = 0.01
"""Residuals beyond this (of a logarithm) count linearly, so that odd curves do not decide."""
_COVERED = 0.8
"""Share of the curves left out that intervals are to meet."""


class Measured(Struct, frozen=True, kw_only=True):
    """Measured curves of a family, ready to be fitted; each grid begins at its baseline.

    `latency_us` [rows, grid] in microseconds; `counts` [rows, grid] says which points are the
    curve's own.
    """

    features: Features
    latency_us: Array
    counts: Flags


def fit(family: Family, measured: Measured, epsilon: float) -> Fitted:
    """Return the constants with which a family's T(N) is nearest to measured curves.

    Each hypothesis is fitted by itself. What is minimised is the logarithm of T(N) / T(baseline)
    for N up to 4 N_max, every curve with the same weight, and with little weight T(baseline);
    of a family of `times` that of T(N), at every point.
    """
    from scipy.optimize import least_squares

    low, start, high = (
        [getattr(constant, end) for constant in family.constants]
        for end in ("low", "start", "high")
    )
    names = [constant.name for constant in family.constants]
    weight = weights(family, measured, epsilon)
    values = {}
    for hypothesis in family.hypotheses:

        def misses(x: Array, hypothesis: str = hypothesis) -> Array:
            given = dict(zip(names, map(float, x), strict=True))
            return residuals(family, family.latency_us(measured.features, given, hypothesis),
                             measured, weight)  # fmt: skip

        found = least_squares(
            misses, start, bounds=(low, high), x_scale=np.maximum(np.abs(start), 0.1),
            loss="soft_l1", f_scale=_SOFT, diff_step=1e-4,
        )  # fmt: skip
        values[hypothesis] = dict(zip(names, (float(f"{v:.4g}") for v in found.x), strict=True))
    return Fitted(family=family.name, values=values, band=0.0)


def weights(family: Family, measured: Measured, epsilon: float) -> Array:
    """Return the weight of each point's residual, [rows, grid]; every curve has the same."""
    if family.times:
        every = measured.counts
        return np.asarray(np.sqrt(every / np.maximum(every.sum(axis=1, keepdims=True), 1)))
    ratio = measured.latency_us / measured.latency_us[:, :1]
    n = measured.features["n"]
    passes = measured.counts & (ratio <= 1.0 + epsilon)
    n_max = np.max(np.where(passes, n, 0.0), axis=1, keepdims=True)
    used = measured.counts & (n <= _UP_TO * n_max)
    used[:, 0] = False
    return np.asarray(np.sqrt(used / np.maximum(used.sum(axis=1, keepdims=True), 1)))


def residuals(family: Family, predicted: Array, measured: Measured, weight: Array) -> Array:
    """Return what a fit makes small, flat: errors of shape, weighted, and of each curve's level.

    Where T(N) itself is fitted they are its errors, weighted.
    """
    error = np.log(predicted / measured.latency_us)
    if family.times:
        return np.asarray((error * weight).ravel())
    shape = (error - error[:, :1]) * weight
    return np.concatenate([shape.ravel(), _LEVEL_WEIGHT * error[:, 0]])


def band(family: Family, measured: Measured, groups: Sequence[str], epsilon: float) -> float:
    """Return how far T(N) must be moved, both ways, for intervals to meet boundaries not fitted.

    Each group of curves is left out in turn and predicted with the constants of the others; the
    band is a logarithm of T(N) / T(baseline). With one group alone its own fit is judged.

    Parameters
    ----------
    groups
        What each curve belongs to: a platform, or a release where there is one platform.
    """
    of = np.array(groups)
    names = sorted(set(groups))
    needed = []
    for name in names:
        mine = of == name
        others = ~mine if len(names) > 1 else mine
        fitted = fit(family, taken(measured, others), epsilon)
        needed.append(_needed(family, fitted, taken(measured, mine), epsilon))
    return float(f"{np.quantile(np.concatenate(needed), _COVERED):.4g}")


def _needed(family: Family, fitted: Fitted, measured: Measured, epsilon: float) -> Array:
    """Return, for each curve, how far the prediction must be moved to meet [N_max, next N)."""
    predicted = ratios_of(family, fitted, measured.features)
    return moved_to_meet(predicted, measured.latency_us, measured.counts, epsilon)


def moved_to_meet(ratio: Array, latency_us: Array, counts: Flags, epsilon: float) -> Array:
    """Return how far the logarithm of predicted ratios must be moved to meet [N_max, next N).

    Parameters
    ----------
    ratio
        Predicted T(N) / T(baseline), [rows, grid].
    latency_us
        The true T(N), [rows, grid].
    counts
        Which points are a row's own, [rows, grid].
    epsilon
        The tolerance of N_max.
    """
    predicted, true = np.log(ratio), np.log(latency_us / latency_us[:, :1])
    limit = np.log1p(epsilon)
    n = np.arange(true.shape[1])[None, :]
    last = np.max(np.where(counts & (true <= limit), n, 0), axis=1, keepdims=True)
    reaches = np.min(np.where(counts & (n >= last), predicted, np.inf), axis=1)
    leaves = np.min(np.where(counts & (n > last), predicted, np.inf), axis=1)
    return np.asarray(np.maximum(np.maximum(reaches - limit, limit - leaves), 0.0))


def taken(measured: Measured, kept: Flags) -> Measured:
    """Return some of the curves."""

    def rows(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[kept]
        return (
            [tuple(rows(v) for v in each) for each in value] if isinstance(value, list) else value
        )

    return Measured(
        features={name: rows(value) for name, value in measured.features.items()},
        latency_us=measured.latency_us[kept],
        counts=measured.counts[kept],
    )
