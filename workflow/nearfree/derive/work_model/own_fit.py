"""Fitting a platform's own constants: the host's launch floor, or two factors from few curves."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.derive.work_model.family import Array, Family
from nearfree.derive.work_model.fit import Measured, residuals, weights
from nearfree.derive.work_model.model import Fitted, boundaries
from nearfree.derive.work_model.own import CHIP, HOST, MEMORY, own_ratios, scaled
from nearfree.derive.work_model.prepare import Prepared

CURVES_A_KERNEL = 3
_PULL = 0.1
"""Residual of a factor e^1 away from 1: what keeps three curves from running away."""
_SOFT = 0.01


def launch_floor(
    part: Prepared, fitted: Fitted, n_max: Array, epsilon: float
) -> tuple[float, tuple[int, int], int]:
    """Return the launch floor with the most hits: the middle of the widest range, range and hits.

    Parameters
    ----------
    part
        Questions of fused MoE layers.
    n_max
        Their boundaries, [rows]; each is a point of its row's grid.
    """
    floors = np.arange(int(HOST.low), int(HOST.high) + 1)
    hits = np.array([_hits(part, fitted, n_max, epsilon, {HOST.name: float(f)}) for f in floors])
    best = np.concatenate([[False], hits == hits.max(), [False]])
    begins, ends = (np.flatnonzero(np.diff(best.astype(int)) == sign) for sign in (1, -1))
    widest = int(np.argmax(ends - begins))
    low, high = int(floors[begins[widest]]), int(floors[ends[widest] - 1])
    return (low + high) / 2, (low, high), int(hits.max())


def hits_without(part: Prepared, fitted: Fitted, n_max: Array, epsilon: float) -> int:
    """Return how many boundaries are hit with no constant of the platform's own."""
    return _hits(part, fitted, n_max, epsilon, {})


def _hits(
    part: Prepared, fitted: Fitted, n_max: Array, epsilon: float, own: dict[str, float]
) -> int:
    ratio = own_ratios(part.family, fitted, own, part.features)
    last = boundaries(ratio, part.counts, epsilon, fitted).last
    said = part.features["grid"][np.arange(len(last)), last]
    return int(np.sum(said == n_max))


def chosen(curves: pl.DataFrame) -> Array:
    """Return the places of at most three curves a kernel: the first, middle and last setting.

    Parameters
    ----------
    curves
        A row a curve: module, backend, kernel, setting_key and backend_version.
    """
    ordered = curves.with_row_index("place").sort("setting_key", "backend_version", "place")
    groups = ordered.group_by("module", "backend", "kernel", maintain_order=True).agg("place")
    picked = {
        places[at]
        for places in groups["place"].to_list()
        for at in (0, (len(places) - 1) // 2, len(places) - 1)
    }
    return np.array(sorted(picked))


def factors(family: Family, fitted: Fitted, measured: Measured, epsilon: float) -> dict[str, float]:
    """Return a platform's factors for chip and memory, nearest to a few measured curves.

    They are sought as logarithms, with a weak pull to 1.
    """
    from scipy.optimize import least_squares

    both = (CHIP, MEMORY)
    weight = weights(measured, epsilon)

    def misses(logs: Array) -> Array:
        own = _named(np.exp(logs))
        of = [
            residuals(
                family.latency_us(measured.features, scaled(fitted.values[name], own), name),
                measured, weight,
            )
            for name in family.hypotheses
        ]  # fmt: skip
        return np.concatenate([*of, _PULL * logs])

    found = least_squares(
        misses, np.zeros(2), loss="soft_l1", f_scale=_SOFT, diff_step=1e-4,
        bounds=([np.log(c.low) for c in both], [np.log(c.high) for c in both]),
    )  # fmt: skip
    return {name: float(f"{value:.4g}") for name, value in _named(np.exp(found.x)).items()}


def _named(values: Sequence[float] | Array) -> dict[str, float]:
    return {CHIP.name: float(values[0]), MEMORY.name: float(values[1])}
