"""The constants of an engine's T(N), fitted to measured curves; none is negative.

The columns of the least squares are the terms of `engine.terms`, the rows are the points of all
curves. The residual of a point is its predicted over its measured T(N), minus 1.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from nearfree.derive.work_model.family import Array

PASS, SERVED = "a pass", "a served row"
"""The suffixes of a kernel's two constants, after the kernel's name."""
COVERED = 0.9
"""Share of the fitted points whose error of T(N) / T(baseline) is within the band."""
_TINY = 1e-10
Terms = Mapping[str, float]
"""The factor of each constant in T(N) of a forward, by the constant's name."""


class EngineConstants(Struct, frozen=True, kw_only=True):
    """Constants by name, in picoseconds or microseconds, and the error band of T(N) / T(baseline).

    `band` is a logarithm. `points` is the number of fitted points, `curves` the names of their
    curves.
    """

    values: dict[str, float]
    band: float
    points: int
    curves: tuple[str, ...]

    def latency_us(self, terms: Terms) -> float:
        """Return T(N) in microseconds of a forward with these terms."""
        return sum(self.values.get(name, 0.0) * amount for name, amount in terms.items())


class FittedCurve(Struct, frozen=True):
    """A measured curve to fit: T(N) in microseconds by N, and its terms at each N."""

    name: str
    latency_us: Mapping[int, float]
    terms: Mapping[int, Terms]
    baseline: int


def fit_engine(curves: Sequence[FittedCurve]) -> EngineConstants:
    """Return the constants that fit T(N) of some curves best.

    A kernel's constant per served row is left out where all its passes serve equally many rows, so
    that the curves cannot separate it from the constant per pass; the latter then includes it.

    The band is the 0.9 quantile of |log| of predicted over measured T(N) / T(baseline), times
    sqrt(p / (p - c)) for p points and c constants above zero, since these points were fitted.
    """
    points = [(curve, n) for curve in curves for n in sorted(curve.latency_us)]
    rows = [curve.terms[n] for curve, n in points]
    measured = np.array([curve.latency_us[n] for curve, n in points])
    names = list(dict.fromkeys(name for terms in rows for name in terms))
    matrix = np.array([[terms.get(name, 0.0) for name in names] for terms in rows])
    kept = [i for i, name in enumerate(names) if not _same_as_a_pass(name, names, matrix)]
    fitted = nonnegative(matrix[:, kept] / measured[:, None], np.ones(len(points)))
    values = {names[i]: float(value) for i, value in zip(kept, fitted, strict=True)}
    predicted = matrix[:, kept] @ fitted
    errors, start = [], 0
    for curve in curves:
        rows_of_curve = slice(start, start + len(curve.latency_us))
        first = sorted(curve.latency_us).index(curve.baseline)
        log_error = np.log(np.maximum(predicted[rows_of_curve], _TINY) / measured[rows_of_curve])
        relative = log_error - log_error[first]
        errors += [abs(error) for i, error in enumerate(relative) if i != first]
        start += len(curve.latency_us)
    positive = int((fitted > 0).sum())
    wider = (len(points) / max(len(points) - positive, 1)) ** 0.5
    band = wider * float(np.quantile(errors, COVERED)) if errors else 0.0
    return EngineConstants(
        values=values,
        band=band,
        points=len(points),
        curves=tuple(curve.name for curve in curves),
    )


def _same_as_a_pass(name: str, names: Sequence[str], matrix: Array) -> bool:
    """Return whether a kernel's served rows are proportional to its passes at all points."""
    if not name.endswith(SERVED):
        return False
    served = matrix[:, names.index(name)]
    passes = matrix[:, names.index(name.removesuffix(SERVED) + PASS)]
    ratio = served[passes > 0] / passes[passes > 0]
    return bool(np.ptp(ratio) <= _TINY * ratio.max())


def nonnegative(matrix: Array, target: Array) -> Array:
    """Return the x >= 0 that minimises |matrix x - target|, by active sets.

    A constant is freed while the error falls with it, and held at zero again where it would become
    negative (Lawson and Hanson, Solving Least Squares Problems, ch. 23).
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = matrix / scale
    count = scaled.shape[1]
    x, free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(10 * count + 10):
        slope = scaled.T @ (target - scaled @ x)
        slope[free] = -np.inf
        if free.all() or slope.max() <= _TINY * max(1.0, float(np.linalg.norm(target))):
            break
        free[int(np.argmax(slope))] = True
        while True:
            best = np.zeros(count)
            best[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            below = free & (best <= _TINY)
            if not below.any():
                break
            gaps = x[below] - best[below]
            step = float(np.min(x[below] / np.where(gaps > 0, gaps, 1.0)))
            x = np.where(free, x + step * (best - x), 0.0)
            free &= x > _TINY
        x = best
    return np.asarray(x / scale)
