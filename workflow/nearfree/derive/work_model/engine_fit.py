"""The constants of an engine's T(N), fitted to measured curves: none is negative.

With the terms of `engine.terms` as columns and the points of all curves as rows, what is made
small is the sum of squares of T(N) as predicted over T(N) as measured, less 1.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from nearfree.derive.work_model.family import Array

PASS, SERVED = "a pass", "a served row"
"""What a kernel's two constants are of, behind the kernel's name."""
COVERED = 0.9
"""Share of the fitted points whose error of T(N) / T(baseline) the band holds."""
_TINY = 1e-10
Terms = Mapping[str, float]
"""What a forward has of each constant's unit, by the constant's name."""


class EngineConstants(Struct, frozen=True, kw_only=True):
    """Constants by name, in picoseconds or microseconds, and how far T(N) / T(baseline) may be off.

    `band` is a logarithm. `points` is the number of those that were fitted, `curves` the names of
    their curves.
    """

    values: dict[str, float]
    band: float
    points: int
    curves: tuple[str, ...]

    def latency_us(self, terms: Terms) -> float:
        """Return T(N) in microseconds of a forward with some terms."""
        return sum(self.values.get(name, 0.0) * amount for name, amount in terms.items())


class FittedCurve(Struct, frozen=True):
    """A measured curve to be fitted: T(N) in microseconds by N, and its terms at each N."""

    name: str
    latency_us: Mapping[int, float]
    terms: Mapping[int, Terms]
    baseline: int


def fit_engine(curves: Sequence[FittedCurve]) -> EngineConstants:
    """Return the constants with which T(N) is nearest to some curves.

    A kernel's constant of a served row is left out where the curves cannot tell it from that of a
    pass, since each of its passes serves as many rows; a pass costs then what theirs do.

    The band is the 0.9 quantile of |log| of predicted over measured T(N) / T(baseline), times
    sqrt(p / (p - c)) for p points and c constants above zero, since these points were fitted.
    """
    points = [(curve, n) for curve in curves for n in sorted(curve.latency_us)]
    rows = [curve.terms[n] for curve, n in points]
    measured = np.array([curve.latency_us[n] for curve, n in points])
    names = list(dict.fromkeys(name for terms in rows for name in terms))
    matrix = np.array([[terms.get(name, 0.0) for name in names] for terms in rows])
    kept = [i for i, name in enumerate(names) if not _same_as_a_pass(name, names, matrix)]
    found = nonnegative(matrix[:, kept] / measured[:, None], np.ones(len(points)))
    values = {names[i]: float(value) for i, value in zip(kept, found, strict=True)}
    predicted = matrix[:, kept] @ found
    errors, at = [], 0
    for curve in curves:
        many = len(curve.latency_us)
        mine = slice(at, at + many)
        first = sorted(curve.latency_us).index(curve.baseline)
        off = np.log(np.maximum(predicted[mine], _TINY) / measured[mine])
        errors += [abs(each) for i, each in enumerate(off - off[first]) if i != first]
        at += many
    above = int((found > 0).sum())
    wider = (len(points) / max(len(points) - above, 1)) ** 0.5
    band = wider * float(np.quantile(errors, COVERED)) if errors else 0.0
    return EngineConstants(
        values=values,
        band=band,
        points=len(points),
        curves=tuple(curve.name for curve in curves),
    )


def _same_as_a_pass(name: str, names: Sequence[str], matrix: Array) -> bool:
    """Return whether served rows go with passes at all points of the matrix."""
    if not name.endswith(SERVED):
        return False
    served = matrix[:, names.index(name)]
    passes = matrix[:, names.index(name.removesuffix(SERVED) + PASS)]
    ratio = served[passes > 0] / passes[passes > 0]
    return bool(np.ptp(ratio) <= _TINY * ratio.max())


def nonnegative(matrix: Array, wanted: Array) -> Array:
    """Return the x >= 0 for which matrix x is nearest to what is wanted, by least squares.

    By active sets: a constant is let free while the error falls with it, and is held at zero again
    where it would turn negative (Lawson and Hanson, Solving Least Squares Problems, ch. 23).
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = matrix / scale
    many = scaled.shape[1]
    x, free = np.zeros(many), np.zeros(many, dtype=bool)
    for _ in range(10 * many + 10):
        slope = scaled.T @ (wanted - scaled @ x)
        slope[free] = -np.inf
        if free.all() or slope.max() <= _TINY * max(1.0, float(np.linalg.norm(wanted))):
            break
        free[int(np.argmax(slope))] = True
        while True:
            best = np.zeros(many)
            best[free] = np.linalg.lstsq(scaled[:, free], wanted, rcond=None)[0]
            below = free & (best <= _TINY)
            if not below.any():
                break
            gaps = x[below] - best[below]
            step = float(np.min(x[below] / np.where(gaps > 0, gaps, 1.0)))
            x = np.where(free, x + step * (best - x), 0.0)
            free &= x > _TINY
        x = best
    return np.asarray(x / scale)
