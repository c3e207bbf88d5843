"""Kriging: what residuals of measured curves say of a curve that was not measured.

Curves lie at places: the logarithms of their shape over a scale, how loads are spread, and the
release. The kernel is exp(-distance), times a factor for another release; a curve's residual is a
weighted sum of those of others at the same place along N. Scales were set on curves of two GPUs,
H100 and B200, before any other was scored; those of products anew on these, when all had been seen.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.core.modules.routing import exponent_of
from nearfree.derive.laws.spread import Loads, PowerLaw
from nearfree.derive.work_model.family import Array

COORDINATES = (
    *("batch", "d_model", "d_ff", "experts", "top_k", "heads", "kv_heads", "head_dim"),
    *("context", "projected"),
)
"""Fields of a setting that say where a curve lies."""
APART = ("span",)
"""Fields whose values say nothing of each other: 1 where a curve has none. Attention layers with an
entry for 4 positions, chosen among, and for 128, all attended to, lie side by side otherwise."""
_OCTAVES, _OF_PRODUCTS = 5.0, 3.0
"""Doublings of a size after which a curve says little of another."""
_NOWHERE_NEAR = 1e4
"""A distance at which it says nothing."""
_OF_FAMILY: dict[str, dict[str, float]] = {
    "gemm": {"d_model": _OF_PRODUCTS, "d_ff": _OF_PRODUCTS},
    "moe": {"d_model": _OCTAVES, "d_ff": _OCTAVES, "experts": _OCTAVES, "top_k": 3.35},
    "attention": dict.fromkeys(("heads", "kv_heads", "head_dim", "batch", "context"), _OCTAVES),
    "mla": dict.fromkeys(("heads", "batch", "context"), _OCTAVES),
    "layer": dict.fromkeys(("heads", "projected", "batch", "context"), _OCTAVES),
    "decode": dict.fromkeys(("heads", "projected", "context"), _OCTAVES),
    "indexer": dict.fromkeys(("heads", "batch", "context"), _OCTAVES),
}
_RELEASE = 0.8
"""What a curve of another release counts."""
AT_ONE_PLACE = (1.0, _RELEASE)
"""The kernel of two curves of one shape, in one release or two."""
_NOISE, _NOISE_OF_PRODUCTS = 0.05, 0.02
"""Variance of a curve's own noise, as a share of what is to be explained."""
_EXPONENTS, _ROUTES = (0.0, 1.01, 1.2), (0.0, 0.7, 1.12)
"""Exponents of laws by which curves' loads are spread, 0 for balanced ones, and where they lie.
Skewed loads lie with balanced ones, as at one token."""
_PASSES = 2.0
"""At how many pairs an expert measured loads are held against those laws."""


class Places(Struct, frozen=True):
    """Where curves lie: `shape` [rows, axes], `release` [rows], `along` N [rows, grid]."""

    shape: Array
    release: list[str | None]
    along: Array


def coordinates(family: str, rows: pl.DataFrame, n: Array) -> Places:
    """Return where curves or questions lie.

    Along N the place of an MoE layer is the rows an expert, b N k / E, of attention N, and of a
    product or a layer's attention its rows b N. A context counts with the first new position.
    """
    kind = family.partition("_")[0]
    scales = _OF_FAMILY[kind]
    if kind == "attention":  # curves of no cache were kept without saying so
        rows = rows.with_columns(pl.col("context").fill_null(0))
    axes = [
        np.log2(_numbers(rows, name) + (name == "context")) / scale
        for name, scale in scales.items()
    ]
    along: Array = n if kind in ("attention", "mla") else n * _numbers(rows, "batch")[:, None]
    if kind in ("layer", "decode"):
        axes.extend(_NOWHERE_NEAR * np.log2(_numbers(rows, name)) for name in APART)
    if kind == "moe":
        axes.append(_spread(rows))
        along = along * (_numbers(rows, "top_k") / _numbers(rows, "experts"))[:, None]
    return Places(np.stack(axes, axis=1), rows["backend_version"].to_list(), np.log2(along))


def _numbers(rows: pl.DataFrame, name: str) -> Array:
    return np.asarray(rows[name].cast(pl.Float64).to_numpy())


def _spread(rows: pl.DataFrame) -> Array:
    """Return where loads lie: between laws that have curves by their exponent.

    Measured loads lie by how many experts sleep where each would have two pairs.
    """
    shares = rows["shares"].to_list() if "shares" in rows.columns else [None] * rows.height
    asked = zip(rows["routing"], rows["experts"], rows["top_k"], shares, strict=True)
    return np.array([_place(*each) for each in asked])


def _place(routing: str | None, experts: int, top_k: int, shares: Sequence[Any] | None) -> float:
    exponent = exponent_of(routing)
    if exponent is not None:
        beyond = max(exponent - _EXPONENTS[-1], 0.0)
        slope = (_ROUTES[-1] - _ROUTES[-2]) / (_EXPONENTS[-1] - _EXPONENTS[-2])
        return float(np.interp(exponent, _EXPONENTS, _ROUTES)) + slope * beyond
    if shares is None:
        return 0.0
    tokens = math.ceil(_PASSES * experts / top_k)
    laws: list[PowerLaw | Loads] = [*map(PowerLaw, _EXPONENTS[1:]), Loads(shares)]
    *of_laws, asleep = (1.0 - law.awake(experts, top_k, tokens) / experts for law in laws)
    return float(np.interp(asleep, [0.0, *of_laws], _ROUTES))


def kernel(these: Places, those: Places) -> Array:
    """Return how much curves have in common, [these, those]: 1 at the same place and release."""
    # Differences axis by axis: squares expanded would lose the zero between equal places.
    square: Any = 0.0
    for axis in range(these.shape.shape[1]):
        square = square + np.subtract.outer(these.shape[:, axis], those.shape[:, axis]) ** 2
    names = {name: place for place, name in enumerate({*these.release, *those.release})}
    mine, theirs = (np.array([names[each] for each in of.release]) for of in (these, those))
    same = np.equal.outer(mine, theirs)
    return np.asarray(np.exp(-np.sqrt(square)) * np.where(same, 1.0, _RELEASE))


def weights_of(family: str, places: Places, values: Array) -> Array:
    """Return (K + noise)^-1 values, [curves, knots]: what a kernel is multiplied with."""
    matrix = kernel(places, places)
    noise = _NOISE_OF_PRODUCTS if family == "gemm" else _NOISE
    matrix[np.diag_indices_from(matrix)] += noise
    return np.asarray(np.linalg.solve(matrix, values))
