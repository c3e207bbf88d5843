"""T(N) of matrix products: one, or those of a Dense FFN one after the other.

A library chooses its own row tile, which its source does not tell. Two hypotheses bound it: tiles
of 16 rows, which hardly pad, and tiles of 128 rows. Where an engine's rule gives the tile, both
hypotheses use it, each with its own constants.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from nearfree.backends.records import backends_of
from nearfree.core.modules.dense_ffn import DenseQuestion
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Limit,
    Values,
    column,
    common,
    power_mean_sum,
)
from nearfree.errors import NearfreeError

_TILES = {"tile_16": 16, "tile_128": 128}
_TILE_SIDE, _DEPTH_UNIT = 128.0, 1000.0
"""Rows and columns of the tile of the depth term, and the unit of K in it."""


def gemm_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of rows of `gemm` or of `dense_ffn`, but not of both.

    Gate and up of a gated FFN are one product, as engines run them.
    """
    d_model, d_ff = column(rows, "d_model"), column(rows, "d_ff")
    matrices = [(d_model, d_ff, 1.0)]
    if rows["module"][0] == "dense_ffn":
        gated = rows["gated"].fill_null(value=False).to_numpy()[:, None]
        matrices = [(d_model, np.where(gated, 2.0, 1.0) * d_ff, 1.0), (d_ff, d_model, 1.0)]
    return common(rows, n) | {"matrices": matrices}


def latency_us(features: Features, values: Values, hypothesis: str) -> Array:
    """Return T(N) of the products of a module, [rows, grid], in microseconds.

    T = fixed + sum over products of
    ((2 pad(m) K N / (a phi))^p + (r K N s / (b beta))^p + (w K d)^p)^(1/p)
    + m (K s_in + N s_out) / (b beta),
    with m = b N rows of the input, padded to whole tiles, and r passes over the weights: one, or
    the number of a rule. Tiles of 128 by 128 are spread over the SMs, w per SM and at least one.
    Each goes through K step by step, which takes d per 1000 of K: with few columns some SMs are
    idle, and T is not limited by bytes.

    Parameters
    ----------
    features
        `tokens` (m) [rows, grid]; `phi` in FLOP/us, `beta` in bytes/us, `weight_bytes` (s),
        `element_bytes` (s_in) and `result_bytes` (s_out); `matrices` lists (K, N, times) of the
        products, K and N [rows, 1]. `padded_i` (pad(m)) and `passes_i` (r) of product i, [rows,
        grid], are those of a rule, NaN without one. `balance_ratio` [rows, 1], at most 1, is rho
        over that of the sibling whose constants the values are; without it it is 1.
    """
    m = features["tokens"]
    phi = values["compute_share"] * features["phi"]
    beta = values["bandwidth_share"] * features["beta"]
    padded = _padded_rows(features, _TILES[hypothesis])
    total_us = np.full(m.shape, values["fixed_us"])
    for number, (depth, columns, times) in enumerate(features["matrices"]):
        elements = depth * columns
        rows = _by_rule(features, f"padded_{number}", padded)
        compute_us = 2.0 * rows * elements / phi
        passes = _by_rule(features, f"passes_{number}", np.ones(m.shape))
        weights_us = passes * (elements * features["weight_bytes"] / beta)
        row_bytes = depth * features["element_bytes"] + columns * features["result_bytes"]
        row_us = m * row_bytes / beta
        parts = [compute_us, weights_us]
        depth_us = values.get("depth_us", 0.0)
        if depth_us > 0:
            tiles = np.ceil(m / _TILE_SIDE) * np.ceil(columns / _TILE_SIDE)
            waves = np.maximum(tiles / features["sms"], 1.0)
            parts.append(waves * (depth_us * depth / _DEPTH_UNIT))
        product_us = power_mean_sum(values["sharpness"], *parts)
        total_us = total_us + times * (product_us + row_us)
    return np.asarray(total_us)


def _padded_rows(features: Features, widest: int) -> Array:
    """Return the rows of a product in whole tiles of a hypothesis, [rows, grid].

    A sibling's curve tells T of few rows as a share of its bandwidth, and not whether a part of it
    is a tile's compute: constants of either hypothesis meet it. On a chip with far less compute
    beside its memory the same tile would take much longer than the weights, and a library has
    smaller ones. So few rows are padded to what takes the share that the tile takes there.
    """
    m = features["tokens"]
    # No library pads to a tile whose compute alone takes longer than the weights' traffic.
    largest_tile = features["phi"] / features["beta"] * features["weight_bytes"] / 2
    tile = _tile_within(widest, largest_tile)
    padded = np.ceil(m / tile) * tile
    if "balance_ratio" not in features:
        return np.asarray(padded)
    ratio = features["balance_ratio"]
    least = ratio * _tile_within(widest, largest_tile / ratio)
    fewer = (ratio < 1.0) & (m <= tile)
    return np.asarray(np.maximum(np.where(fewer, m, padded), least))


def _tile_within(widest: int, largest: Array) -> Array:
    """Return the largest power of two within two limits."""
    return np.asarray(np.minimum(widest, np.exp2(np.floor(np.log2(largest)))))


def _by_rule(features: Features, name: str, default: Array) -> Array:
    """Return the values of a rule, and the default where there is none."""
    by_rule = features.get(name)
    return default if by_rule is None else np.where(np.isnan(by_rule), default, by_rule)


GEMM = Family(
    name="gemm",
    meaning="matrix products of a library that picks its own tile",
    limit=Limit("compute of padded rows against the weights' traffic",
                "computing the products takes longer than reading their weights"),
    modules=("gemm", "dense_ffn"),
    needs=("d_model", "d_ff"),
    constants=(
        Constant("compute_share", "1", 0.85, 0.2, 1.3, "share of phi that padded products reach"),
        Constant("bandwidth_share", "1", 0.85, 0.2, 1.3, "share of beta that weights reach"),
        Constant("sharpness", "1", 3.0, 1.0, 8.0, "p: how well compute and memory overlap"),
        Constant("fixed_us", "us", 4.0, 0.0, 60.0, "what a call costs besides"),
        Constant("depth_us", "us", 1.0, 0.0, 10.0,
                 "what a tile takes for a thousand of K, however many SMs stand still",
                 neutral=0.0, dtypes=("nvfp4",)),
    ),
    hypotheses=tuple(_TILES),
    latency_us=latency_us,
    features=gemm_features,
)  # fmt: skip


ENGINES = [name for name, backend in backends_of("gemm").items() if backend.rules]
"""The backends whose rules speak of dense products."""


def dense_sizes(rows: pl.DataFrame, n: Array, resolver: Resolver) -> dict[str, Array]:
    """Return the padded rows and the passes over the weights, per product of one module.

    Returns
    -------
    `padded_0` and `passes_0` of the first product, and so on, [rows, grid], NaN without a rule; and
    `row_tile` and `weight_passes`, the largest over the products, 0 without a rule. Empty if no
    question is of an engine with such rules.
    """
    if not rows["backend"].is_in(ENGINES).any():
        return {}
    count = 2 if rows["module"][0] == "dense_ffn" else 1
    tokens = (rows["batch"].to_numpy()[:, None] * n).astype(np.int64)
    sizes = np.full((count, 3, *n.shape), np.nan)
    for index, row in enumerate(rows.iter_rows(named=True)):
        for number, question in enumerate(dense_questions(row)):
            try:
                steps = resolver.dense(question)
                choices = [steps.at(m) for m in tokens[index].tolist()]
            except NearfreeError:
                continue  # its tile is a hypothesis, and the answer's evidence gives the reason
            sizes[number, :, index] = np.array(
                [(choice.padded, choice.passes, choice.value) for choice in choices]
            ).T
    per_product = {
        f"{name}_{number}": sizes[number, part]
        for number in range(count)
        for part, name in enumerate(("padded", "passes"))
    }
    passes, tiles = (np.nan_to_num(sizes)[:, part].max(axis=0) for part in (1, 2))
    return per_product | {"weight_passes": passes, "row_tile": tiles}


def without_rules(features: Features) -> Features:
    """Return the features of products without those of an engine's rules.

    Constants and residuals of measured products were fitted so: curves of the engine's own kernels
    contain the steps of its rules, and a form with these rules would count the steps twice.
    """
    prefixes = ("padded_", "passes_")
    return {name: value for name, value in features.items() if not name.startswith(prefixes)}


def dense_place(row: Mapping[str, Any], tokens: int, resolver: Resolver) -> str | None:
    """Return file, lines and digest of the rules of a question's products, or the reason without.

    Its input has `tokens` rows, b N. None if the backend has no such rules.
    """
    sources = []
    for question in dense_questions(row):
        try:
            sources.append(resolver.dense(question).evidence(tokens))
        except NearfreeError as error:
            sources.append(f"no rule, tiles of 16 to 128 rows assumed: {error.what}")
    return "; ".join(dict.fromkeys(sources)) or None


def dense_questions(row: Mapping[str, Any]) -> Iterator[DenseQuestion]:
    """Yield a module's products as an engine runs them: gate and up of an FFN are one."""
    if row["backend"] not in ENGINES:
        return
    shapes = [(row["d_model"], row["d_ff"])]
    if row["module"] == "dense_ffn":
        up_columns = row["d_ff"] * (2 if row["gated"] else 1)
        shapes = [(row["d_model"], up_columns), (row["d_ff"], row["d_model"])]
    for depth, columns in shapes:
        yield DenseQuestion(
            backend=row["backend"],
            backend_version=row["backend_version"],
            dtype=row["dtype"],
            weights=row["weights"],
            columns=columns,
            depth=depth,
            sm=row["sm"],
            sm_count=row["sm_count"],
            kernel=row.get("dense_kernel"),
        )
