"""T(N) of questions by one group: its form and residuals, and the nearness of its curves."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from nearfree.backends.records import BY_NAME
from nearfree.derive.reference import gates
from nearfree.derive.reference.groups import Constants, Group, form_us
from nearfree.derive.reference.kriging import SAME_SHAPE, coordinates
from nearfree.derive.work_model.attention import ATTENTION_CACHED, as_decoding
from nearfree.derive.work_model.family import Array, Features, Flags
from nearfree.derive.work_model.gemm import ENGINES, without_rules
from nearfree.derive.work_model.prepare import Prepared

NEAREST = 3
"""Number of curves that an answer names."""
_RULED = {BY_NAME[name].engine for name in ENGINES}
"""Engines whose rules give the row tiles of products."""


def times_by_group(
    part: Prepared, group: Group | Constants, balance_ratio: Array | None = None
) -> tuple[Array, Array, Flags]:
    """Return T(N) of questions by one group, or by its constants only.

    `balance_ratio` [rows, 1] is the balance of each question's chip over that of the group's, a
    sibling, at most 1 (`siblings.carried_ratio`).

    Returns
    -------
    T(N) with the group's constants and residuals, [rows, grid]; the kriging kernel between
    questions and curves, [rows, curves], of a module's several products the largest; and whether
    every product was measured, [rows].
    """
    family, rows, n = part.family.name, part.rows, part.features["n"]
    nearness, measured = np.zeros((rows.height, 0)), np.ones(rows.height, dtype=bool)
    total_us = np.zeros(n.shape)
    for shape, features, times in _calls(part):
        group_features = gates.with_curve_matrices(shape, features, group)
        if isinstance(group, Group) and group.key.backend in _RULED:
            group_features = without_rules(group_features)
        if balance_ratio is not None:
            group_features = {**group_features, "balance_ratio": balance_ratio}
        call_us = form_us(group.key.family, group.values, group_features)
        if isinstance(group, Group):
            residual, call_nearness = group.residuals(coordinates(family, shape, n))
            call_us = call_us * np.exp(residual)
            nearness = np.maximum(nearness, call_nearness) if nearness.size else call_nearness
            measured &= np.isin(call_nearness, SAME_SHAPE).any(axis=1)
        total_us = total_us + times * call_us
    return total_us, nearness, measured


def has_routing(part: Prepared, group: Group) -> Flags:
    """Return which questions have a routing of the group's curves, without expert parallelism."""
    routings = part.rows.select("routing", "ep").iter_rows()
    return np.array([(name or "") in group.routings and ep in (None, 1) for name, ep in routings])


def _calls(part: Prepared) -> Iterator[tuple[pl.DataFrame, Features, Array | float]]:
    """Yield the kernel calls of a module: rows and features of one call, and how often it runs.

    For attention that decodes it is the call of one position, whatever N is.
    """
    if part.family is ATTENTION_CACHED:
        yield part.rows, as_decoding(part.features), 1.0
        return
    if part.rows["module"][0] != "dense_ffn":
        yield part.rows, part.features, 1.0
        return
    for number, (depth, columns, times) in enumerate(part.features["matrices"]):
        sides = (pl.Series("d_model", depth[:, 0]), pl.Series("d_ff", columns[:, 0]))
        yield part.rows.with_columns(sides), _product(part.features, number), times


def _product(features: Features, number: int) -> Features:
    """Return the features of one of a module's products, run once."""
    depth, columns, _ = features["matrices"][number]
    by_rules = {
        f"{name}_0": features[f"{name}_{number}"]
        for name in ("padded", "passes")
        if f"{name}_{number}" in features
    }
    return {**without_rules(features), **by_rules, "matrices": [(depth, columns, 1.0)]}


def nearest_curves(nearness: Array) -> list[tuple[int, ...]]:
    """Return the indices of the nearest curves of each row; equally near ones in their order."""
    count = min(NEAREST, nearness.shape[1])
    least = -np.partition(-nearness, count - 1, axis=1)[:, count - 1 : count]
    nearest = []
    for row, near_enough in zip(nearness, nearness >= least, strict=True):
        (curves,) = np.nonzero(near_enough)
        nearest.append(tuple(curves[np.argsort(-row[curves], kind="stable")][:count].tolist()))
    return nearest
