"""Kriging: predict the residual of an unmeasured curve from those of measured ones.

A curve's coordinates are the logarithms of its shape over a scale, its routing, and its release.
The kernel is exp(-distance), times a factor for another release. A predicted residual is a weighted
sum of the others at the same coordinate along N. Scales were set on curves of two GPUs, H100 and
B200, before any other was scored; those of products were set again on these two, after all had been
seen.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.core.modules.routing import exponent_of
from nearfree.derive.laws.spread import Loads, PowerLaw
from nearfree.derive.reference.kinds import SPAN, kind_of
from nearfree.derive.work_model.family import Array

COORDINATES = (
    *("batch", "d_model", "d_ff", "experts", "top_k", "heads", "kv_heads", "head_dim"),
    *("context", "projected"),
)
"""Fields of a setting that are coordinates of a curve."""
UNRELATED_FIELDS = (SPAN,)
"""Fields whose different values make curves unrelated."""
_FAR = 1e4
"""A distance at which curves are unrelated."""
_RELEASE = 0.8
"""The kernel's factor for a curve of another release."""
SAME_SHAPE = (1.0, _RELEASE)
"""The kernel of two curves of one shape, in the same release or in two."""
_NOISE, _PRODUCT_NOISE = 0.05, 0.02
"""Variance of a curve's own noise, as a share of the variance of residuals."""
_EXPONENTS, _ROUTING_COORDINATES = (0.0, 1.01, 1.2), (0.0, 0.7, 1.12)
"""Exponents of the power laws of curves' loads, 0 for balanced loads, and their coordinates. Skewed
loads have the coordinate of balanced ones, as they have at one token."""
_PAIRS_PER_EXPERT = 2.0
"""Pairs per expert at which measured loads are compared with those laws."""


class Coordinates(Struct, frozen=True):
    """Coordinates of curves: `shape` [rows, axes], `release` [rows], `along` N [rows, grid]."""

    shape: Array
    release: list[str | None]
    along: Array


def coordinates(family: str, rows: pl.DataFrame, n: Array) -> Coordinates:
    """Return the coordinates of curves or questions.

    Along N the coordinate of an MoE layer is the rows per expert, b N k / E; that of attention is
    N, and that of a product or an attention layer its rows b N. A context includes the first new
    position.
    """
    kind = kind_of(family)
    if "context" in kind.scales:  # curves without a cache were kept without a context
        rows = rows.with_columns(pl.col("context").fill_null(0))
    axes = [
        np.log2(_numbers(rows, name) + (name == "context")) / scale
        for name, scale in kind.scales.items()
    ]
    along: Array = n if kind.along == "positions" else n * _numbers(rows, "batch")[:, None]
    if kind.by_span:
        axes.append(_FAR * np.log2(_numbers(rows, SPAN)))
    if kind.along == "rows_per_expert":
        axes.append(_routing_axis(rows))
        along = along * (_numbers(rows, "top_k") / _numbers(rows, "experts"))[:, None]
    return Coordinates(np.stack(axes, axis=1), rows["backend_version"].to_list(), np.log2(along))


def _numbers(rows: pl.DataFrame, name: str) -> Array:
    return np.asarray(rows[name].cast(pl.Float64).to_numpy())


def _routing_axis(rows: pl.DataFrame) -> Array:
    """Return the routing coordinate of rows: that of their power law's exponent.

    Measured loads have the coordinate of the law with as many inactive experts at two pairs per
    expert.
    """
    shares = rows["shares"].to_list() if "shares" in rows.columns else [None] * rows.height
    routings = zip(rows["routing"], rows["experts"], rows["top_k"], shares, strict=True)
    return np.array([_routing_coordinate(*routing) for routing in routings])


def _routing_coordinate(
    routing: str | None, experts: int, top_k: int, shares: Sequence[Any] | None
) -> float:
    exponent = exponent_of(routing)
    if exponent is not None:
        beyond = max(exponent - _EXPONENTS[-1], 0.0)
        slope = (_ROUTING_COORDINATES[-1] - _ROUTING_COORDINATES[-2]) / (
            _EXPONENTS[-1] - _EXPONENTS[-2]
        )
        return float(np.interp(exponent, _EXPONENTS, _ROUTING_COORDINATES)) + slope * beyond
    if shares is None:
        return 0.0
    tokens = math.ceil(_PAIRS_PER_EXPERT * experts / top_k)
    laws: list[PowerLaw | Loads] = [*map(PowerLaw, _EXPONENTS[1:]), Loads(shares)]
    *inactive_by_law, inactive = (1.0 - law.awake(experts, top_k, tokens) / experts for law in laws)
    return float(np.interp(inactive, [0.0, *inactive_by_law], _ROUTING_COORDINATES))


def kernel(left: Coordinates, right: Coordinates) -> Array:
    """Return the kernel between curves, [left, right]: 1 at the same coordinates and release."""
    # Differences axis by axis: squares expanded would lose the zero between equal places.
    square: Any = 0.0
    for axis in range(left.shape.shape[1]):
        square = square + np.subtract.outer(left.shape[:, axis], right.shape[:, axis]) ** 2
    codes = {name: code for code, name in enumerate({*left.release, *right.release})}
    left_codes, right_codes = (
        np.array([codes[release] for release in curves.release]) for curves in (left, right)
    )
    same_release = np.equal.outer(left_codes, right_codes)
    return np.asarray(np.exp(-np.sqrt(square)) * np.where(same_release, 1.0, _RELEASE))


def kriging_weights(family: str, places: Coordinates, values: Array) -> Array:
    """Return the kriging weights (K + noise)^-1 values, [curves, knots]."""
    matrix = kernel(places, places)
    noise = _PRODUCT_NOISE if family == "gemm" else _NOISE
    matrix[np.diag_indices_from(matrix)] += noise
    return np.asarray(np.linalg.solve(matrix, values))
