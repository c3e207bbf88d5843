"""Fit a family's constants to measured curves, and calibrate the band of its boundaries."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from nearfree.derive.work_model.family import (
    Array,
    Family,
    Features,
    Fitted,
    Flags,
    Integers,
    ratios_of,
)

_FITTED_UP_TO = 4.0
"""Points count up to this multiple of N_max."""
_LEVEL_WEIGHT = 0.2
"""Weight of a curve's level, T(baseline), against that of its shape."""
SOFT = 0.01
"""Scale of the soft loss: larger residuals (of a logarithm) count linearly, against outliers."""
_COVERED = 0.8
"""Target share of left-out curves whose boundary is within the interval."""


class Measured(Struct, frozen=True, kw_only=True):
    """Measured curves of a family as arrays; each grid begins at its baseline.

    `latency_us` [rows, grid] is in microseconds; `counts` [rows, grid] flags the points of a curve.
    """

    features: Features
    latency_us: Array
    counts: Flags


def fit(family: Family, measured: Measured, epsilon: float) -> Fitted:
    """Return the constants with which a family's T(N) fits measured curves best.

    Each hypothesis is fitted by itself. The residuals are errors of log(T(N) / T(baseline)) for N
    up to 4 N_max, with equal weight per curve, and with little weight those of T(baseline). For a
    family with `times` they are errors of log T(N) at every point.
    """
    from scipy.optimize import least_squares

    low, start, high = (
        [getattr(constant, bound) for constant in family.constants]
        for bound in ("low", "start", "high")
    )
    names = [constant.name for constant in family.constants]
    weight = weights(family, measured, epsilon)
    values = {}
    for hypothesis in family.hypotheses:

        def errors(x: Array, hypothesis: str = hypothesis) -> Array:
            constants = dict(zip(names, map(float, x), strict=True))
            return residuals(family, family.latency_us(measured.features, constants, hypothesis),
                             measured, weight)  # fmt: skip

        solution = least_squares(
            errors, start, bounds=(low, high), x_scale=np.maximum(np.abs(start), 0.1),
            loss="soft_l1", f_scale=SOFT, diff_step=1e-4,
        )  # fmt: skip
        values[hypothesis] = dict(zip(names, (float(f"{v:.4g}") for v in solution.x), strict=True))
    return Fitted(family=family.name, values=values, band=0.0)


def weights(family: Family, measured: Measured, epsilon: float) -> Array:
    """Return the weight of each point's residual, [rows, grid]; curves have equal weights."""
    if family.times:
        counts = measured.counts
        return np.asarray(np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)))
    ratio = measured.latency_us / measured.latency_us[:, :1]
    n = measured.features["n"]
    passes = measured.counts & (ratio <= 1.0 + epsilon)
    n_max = np.max(np.where(passes, n, 0.0), axis=1, keepdims=True)
    used = measured.counts & (n <= _FITTED_UP_TO * n_max)
    used[:, 0] = False
    return np.asarray(np.sqrt(used / np.maximum(used.sum(axis=1, keepdims=True), 1)))


def residuals(family: Family, predicted: Array, measured: Measured, weight: Array) -> Array:
    """Return the residuals of a fit, flat: weighted errors of shape, and of each curve's level.

    If T(N) itself is fitted they are its weighted errors.
    """
    error = np.log(predicted / measured.latency_us)
    if family.times:
        return np.asarray((error * weight).ravel())
    shape = (error - error[:, :1]) * weight
    return np.concatenate([shape.ravel(), _LEVEL_WEIGHT * error[:, 0]])


def band(family: Family, measured: Measured, groups: Sequence[str], epsilon: float) -> float:
    """Return the band of log(T(N) / T(baseline)) with which intervals cover left-out boundaries.

    Each group of curves is left out in turn and predicted with the constants of the others. A
    single group is predicted with its own constants.

    Parameters
    ----------
    groups
        The group of each curve: its platform, or its release if there is one platform.
    """
    group_of = np.array(groups)
    names = sorted(set(groups))
    shifts = []
    for name in names:
        left_out = group_of == name
        fitted_rows = ~left_out if len(names) > 1 else left_out
        fitted = fit(family, selected_curves(measured, fitted_rows), epsilon)
        curves = selected_curves(measured, left_out)
        ratio = ratios_of(family, fitted, curves.features)
        shifts.append(moved_to_meet(ratio, curves.latency_us, curves.counts, epsilon))
    return float(f"{np.quantile(np.concatenate(shifts), _COVERED):.4g}")


def moved_to_meet(ratio: Array, latency_us: Array, counts: Flags, epsilon: float) -> Array:
    """Return the shift of predicted log ratios that moves N_max into [N_max, next N), [rows].

    `ratio` is the predicted T(N) / T(baseline), `latency_us` the true T(N), and `counts` says which
    points belong to a row, all [rows, grid].
    """
    predicted, true = np.log(ratio), np.log(latency_us / latency_us[:, :1])
    limit = np.log1p(epsilon)
    n = np.arange(true.shape[1])[None, :]
    last = np.max(np.where(counts & (true <= limit), n, 0), axis=1, keepdims=True)
    least_from_last = np.min(np.where(counts & (n >= last), predicted, np.inf), axis=1)
    least_after_last = np.min(np.where(counts & (n > last), predicted, np.inf), axis=1)
    return np.asarray(
        np.maximum(np.maximum(least_from_last - limit, limit - least_after_last), 0.0)
    )


def selected_features(features: Features, kept: Flags | Integers) -> dict[str, Any]:
    """Return the features of flagged curves, or of those at some rows."""

    def select(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[kept]
        if isinstance(value, list):
            return [tuple(select(part) for part in parts) for parts in value]
        return value

    return {name: select(value) for name, value in features.items()}


def selected_curves(measured: Measured, kept: Flags | Integers) -> Measured:
    """Return the flagged curves, or those at some rows."""
    return Measured(
        features=selected_features(measured.features, kept),
        latency_us=measured.latency_us[kept],
        counts=measured.counts[kept],
    )
