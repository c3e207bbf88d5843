"""Fitting the constants of a family to measured curves, and how far its boundaries then miss."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from nearfree.theory.times.family import Array, Family, Features
from nearfree.theory.times.model import Fitted, ratios_of

_UP_TO = 4.0
"""T(N) counts up to this many times N_max."""
_LEVEL_WEIGHT = 0.2
"""Weight of a curve's level, T(baseline), against that of its shape."""
_SOFT = 0.01
"""Residuals beyond this (of a logarithm) count linearly, so that odd curves do not decide."""
_COVERED = 0.85
"""Share of the calibration's curves that an interval is to cover."""


class Measured(Struct, frozen=True, kw_only=True):
    """Measured curves of a family, ready to be fitted; each grid begins at its baseline.

    `latency_us` [rows, grid] in microseconds; `counts` [rows, grid] says which points are the
    curve's own.
    """

    features: Features
    latency_us: Array
    counts: npt.NDArray[np.bool_]


def fit(family: Family, measured: Measured, epsilon: float) -> Fitted:
    """Return the constants with which a family's T(N) is nearest to measured curves.

    Each hypothesis is fitted by itself. What is minimised is the logarithm of T(N) / T(baseline)
    for N up to 4 N_max, every curve with the same weight, and with little weight T(baseline).
    """
    from scipy.optimize import least_squares

    low, start, high = (
        [getattr(constant, end) for constant in family.constants] for end in ("low", "start", "high")
    )
    names = [constant.name for constant in family.constants]
    weight = _weights(measured, epsilon)
    values = {}
    for hypothesis in family.hypotheses:

        def residuals(x: Array, hypothesis: str = hypothesis) -> Array:
            given = dict(zip(names, map(float, x), strict=True))
            return _residuals(family.latency_us(measured.features, given, hypothesis),
                              measured, weight)  # fmt: skip

        found = least_squares(
            residuals, start, bounds=(low, high), x_scale=np.maximum(np.abs(start), 0.1),
            loss="soft_l1", f_scale=_SOFT, diff_step=1e-4,
        )  # fmt: skip
        values[hypothesis] = dict(zip(names, (float(f"{v:.6g}") for v in found.x), strict=True))
    return Fitted(family=family.name, values=values, lift=0.0, band=0.0)


def _weights(measured: Measured, epsilon: float) -> Array:
    ratio = measured.latency_us / measured.latency_us[:, :1]
    n = measured.features["n"]
    passes = measured.counts & (ratio <= 1.0 + epsilon)
    n_max = np.max(np.where(passes, n, 0.0), axis=1, keepdims=True)
    used = measured.counts & (n <= _UP_TO * n_max)
    used[:, 0] = False
    return np.asarray(np.sqrt(used / np.maximum(used.sum(axis=1, keepdims=True), 1)))


def _residuals(predicted: Array, measured: Measured, weight: Array) -> Array:
    error = np.log(predicted / measured.latency_us)
    shape = (error - error[:, :1]) * weight
    return np.concatenate([shape.ravel(), _LEVEL_WEIGHT * error[:, 0]])


def spread(family: Family, fitted: Fitted, measured: Measured, epsilon: float) -> tuple[float, float]:
    """Return lift and band of a fit, seen on curves; both are logarithms of T(N) / T(baseline).

    A measured curve wavers, and N_max is its last pass: the lift is how far above the tolerance the
    prediction may be so that as many boundaries are missed above as below. The band is how far T(N)
    must be moved both ways for the interval to meet [N_max, next N) in most curves.
    """
    predicted = np.log(ratios_of(family, fitted, measured.features))
    true = np.log(measured.latency_us / measured.latency_us[:, :1])
    limit = np.log1p(epsilon)
    n = np.arange(true.shape[1])[None, :]
    last = np.max(np.where(measured.counts & (true <= limit), n, 0), axis=1, keepdims=True)
    # The prediction passes at or beyond N_max if moved by `reach`, and nowhere beyond it by `leave`.
    at_or_beyond = measured.counts & (n >= last)
    reach = np.min(np.where(at_or_beyond, predicted, np.inf), axis=1) - limit
    leave = np.min(np.where(measured.counts & (n > last), predicted, np.inf), axis=1) - limit
    lift = _balanced(reach, leave)
    needed = np.maximum.reduce([reach - lift, lift - leave, np.zeros(len(reach))])
    return lift, float(np.quantile(needed, _COVERED))


def _balanced(reach: Array, leave: Array) -> float:
    """Return the lift, not below zero, at which as many predictions are too small as too large."""
    tried = np.linspace(0.0, 0.1, 41)
    too_small = (reach[:, None] > tried).sum(axis=0)
    too_large = (leave[:, None] <= tried).sum(axis=0)
    return float(f"{tried[np.argmin(np.abs(too_small - too_large))]:.6g}")
