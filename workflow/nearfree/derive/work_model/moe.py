"""T(N) of a fused MoE layer: memory traffic, against the work on the chip.

The work on the chip is the larger of the compute of padded blocks and the traffic between L2 and
SMs, plus a cost per tile. Weights load slower in narrow steps of K, with few bytes per row.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from nearfree.core.modules.moe_ffn import OTHER_MOE, is_triton_moe
from nearfree.derive.granularity.releases import is_moe_package
from nearfree.derive.laws.spread import PowerLaw, spread_of
from nearfree.derive.work_model.family import (
    FLOP_PER_US,
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
from nearfree.derive.work_model.launches import eager_us
from nearfree.derive.work_model.quantised import HOPPER, TRTLLM_CUTLASS, pass_bytes, token_tiles
from nearfree.hardware.occupancy import shared_memory

_LIBRARY_BACKENDS = ("trtllm",)
_NARROW_BYTES, _HALF_BYTES = 64, 128
"""Bytes of a weight row per step of K: 32 and 64 elements of 16 bits."""
_OWN_TILES = (16, 32, 64, 128)
_OWN_COLUMNS, _OWN_K = 128.0, 64.0
_WGMMA, _CONSUMER, _WGMMA_ROWS = 90, 120, 64
"""wgmma and tcgen05 exist from compute capability 9.0 to 10.3, for 64 rows and more."""
_BLOCK_SMEM, _WARP, _OTHER_REGISTERS = 1024, 32, 40
_REGISTERS, _THREADS, _MOST_BLOCKS = 65536, 2048, 32.0
"""Limits per SM: registers, threads, blocks (CUDA C++ Programming Guide, technical
specifications)."""


def moe_features(rows: pl.DataFrame, n: Array, *, triton: bool) -> dict[str, Any]:
    """Return the features of MoE layers without the blocks of a release's rules.

    `spread` is the law of uneven loads, None for even loads; a column `shares` has measured loads.
    With `triton` all of them are Triton's fused layers.
    """
    shares = rows["shares"].to_list() if "shares" in rows.columns else [None] * rows.height
    loads = dict(zip(rows["routing"].to_list(), shares, strict=True))
    laws = {routing: spread_of(routing, measured) for routing, measured in loads.items()}
    gated = rows["gated"].fill_null(value=True).to_numpy()[:, None]
    layer = {
        **common(rows, n),
        "local_experts": np.ceil(column(rows, "experts") / column(rows, "ep")),
        **{name: column(rows, name) for name in ("experts", "top_k", "ep", "d_model", "d_ff")},
        "skewed": (rows["routing"] == "skewed").to_numpy().astype(np.float64)[:, None],
        "spread": np.array([[laws[key]] for key in rows["routing"].to_list()], dtype=object),
        "matrices": np.where(gated, 3.0, 2.0),
        "eager": (eager_us(rows) > 0).astype(np.float64),
    }
    is_trtllm_block_scaled = rows.select(
        (pl.col("dtype") == "float8_block")
        & (pl.col("sm") == HOPPER)
        & pl.col("kernel").fill_null("").str.contains(TRTLLM_CUTLASS)
    ).to_numpy()
    if triton:
        layer |= {"sm": column(rows, "sm"), "smem_bytes": _smem_bytes(rows["sm"])}
    return layer | {
        "pass_bytes": pass_bytes(layer, triton=triton, routed=is_trtllm_block_scaled),
        "tile_m": token_tiles(layer["tokens"], layer["sms"], is_trtllm_block_scaled),
    }


def _smem_bytes(capabilities: pl.Series) -> Array:
    """Return the shared memory per SM by compute capability, [rows, 1]."""
    sizes = {sm: float(shared_memory(sm).per_sm) for sm in capabilities.drop_nulls().unique()}
    return capabilities.replace_strict(sizes, return_dtype=pl.Float64).to_numpy()[:, None]


def latency_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) with the blocks of a release's rules, [rows, grid], in microseconds.

    Parameters
    ----------
    features
        `block_m`, `block_n`, `block_k`, `num_warps`, `num_stages` and `blocks` [rows, grid], `sm`
        and `smem_bytes` of an SM [rows, 1]; and those of `_executed_us`.
    """
    block_k = features["block_k"]
    step_bytes = np.floor(block_k * features["weight_bytes"])  # without the scales of float8_block
    steps = [step_bytes <= _NARROW_BYTES, step_bytes <= _HALF_BYTES]
    slowdown = np.select(steps, [values["narrow_k"], values["half_k"]], 1.0)
    blocks = features["block_m"], features["block_n"], block_k
    return _executed_us(
        features, values, blocks, slowdown, features["blocks"], steps_of_k=_steps_of_k(features)
    )


def blocks_per_sm(features: Features) -> Array:
    """Return the thread blocks of a fused layer that are resident on an SM, [rows, grid].

    A pipeline of `num_stages` buffers the operands of that many steps of K for wgmma and tcgen05,
    which multiply 64 rows and more, and of one less for mma.sync. A block needs registers for its
    accumulators and some forty more per thread. An SM holds 32 blocks at most.

    Source: shared memory and instructions of the kernel compiled by Triton 3.5.1 and 3.6.0 for five
    compute capabilities, which agree with this formula within 2 KiB.
    """
    rows, columns, warps = (features[name] for name in ("block_m", "block_n", "num_warps"))
    capability, stages = features["sm"], features["num_stages"]
    asynchronous = (capability >= _WGMMA) & (capability < _CONSUMER) & (rows >= _WGMMA_ROWS)
    buffers = np.maximum(np.where(asynchronous, stages, stages - 1.0), 1.0)
    row_bytes = features["block_k"] * features["weight_bytes"]
    by_shared_memory = features["smem_bytes"] / (
        buffers * (rows + columns) * row_bytes + _BLOCK_SMEM
    )
    threads = _WARP * warps
    registers = threads * (rows * columns / threads + _OTHER_REGISTERS)
    by_registers = np.minimum(_REGISTERS / registers, _THREADS / threads)
    return np.asarray(
        np.clip(np.floor(np.minimum(by_shared_memory, by_registers)), 1.0, _MOST_BLOCKS)
    )


def _steps_of_k(features: Features) -> Callable[[Array, Array], Array]:
    """Return the function from (tiles, depth) to the successive steps of K, [rows, grid].

    Tiles run in waves over the resident blocks of all SMs; `num_stages` - 1 steps are in flight.
    """
    resident_blocks = blocks_per_sm(features) * features["sms"]
    steps_in_flight = np.maximum(features["num_stages"] - 1.0, 1.0)

    def steps(tiles: Array, depth: Array) -> Array:
        return np.asarray(
            np.ceil(tiles / resident_blocks) * (depth / features["block_k"] / steps_in_flight + 1.0)
        )

    return steps


def own_tile_latency_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of a library that chooses the best of several row tiles, [rows, grid].

    Parameters
    ----------
    features
        `tile_m` [rows, grid], the tile where the library's source gives it, else NaN; `blocks_16`
        to `blocks_128` [rows, grid]; and those of `_executed_us`.
    """
    shape = features["tokens"].shape
    columns, depth = np.full(shape, _OWN_COLUMNS), np.full(shape, _OWN_K)
    slowdown = np.ones(shape)
    by_tile = [
        _executed_us(features, values, (tile, columns, depth), slowdown, features[_count(nominal)])
        for nominal, tile in own_tiles(features).items()
    ]
    return np.asarray(np.minimum.reduce(by_tile))


def own_tiles(features: Features) -> dict[int, Array]:
    """Return the rows of a library's possible tiles, [rows, grid]; those of a rule replace all."""
    by_rule = np.broadcast_to(features["tile_m"], features["tokens"].shape)
    return {tile: np.where(np.isnan(by_rule), float(tile), by_rule) for tile in _OWN_TILES}


def with_loads(features: Features) -> dict[str, Any]:
    """Return features with the expected `active` experts, `pairs`, and row blocks.

    The blocks of a release are `blocks`, those of a library's tiles `blocks_16` and so on.
    """
    tiles = {"": features["block_m"]} if "block_m" in features else own_tiles(features)
    counts = {_count(nominal): blocks_of(features, rows) for nominal, rows in tiles.items()}
    return {
        **features,
        "active": active_experts(features),
        "pairs": pairs_of(features),
        **counts,
    }


def _count(tile: int | str) -> str:
    return f"blocks_{tile}" if tile else "blocks"


def blocks_of(features: Features, block_m: Array) -> Array:
    """Return the row blocks of all experts of a rank: the sum over experts of ceil(m_e / M).

    Balanced loads: every expert has floor(b N k / E) pairs, and some have one more. Skewed loads: k
    experts have b N pairs. Under expert parallelism the rank holds the first experts. A power law
    or measured loads: the expectation for the rank with most pairs. Where a release does not align
    pairs, `unaligned` [rows, grid], each pair has its own block. Power laws are excepted: their
    constants and residuals are from curves in which such pairs, of which nine in ten have a block
    of their own anyway, were counted as sharing blocks.
    """
    tokens, local = features["tokens"], features["local_experts"]
    least_pairs, experts_with_more = _balanced_pairs(features)
    least_blocks, more_blocks = np.ceil(least_pairs / block_m), np.ceil((least_pairs + 1) / block_m)
    balanced = experts_with_more * more_blocks + (local - experts_with_more) * least_blocks
    skewed = np.minimum(features["top_k"], local) * np.ceil(tokens / block_m)
    evenly = np.where(features["skewed"] > 0, skewed, balanced)
    aligned = _expected(features, evenly, lambda spread, *layer: spread.blocks(*layer), block_m)
    if "unaligned" not in features:
        return aligned
    is_power_law = np.array([[isinstance(spread, PowerLaw)] for (spread,) in features["spread"]])
    return np.where((features["unaligned"] > 0) & ~is_power_law, pairs_of(features), aligned)


def _balanced_pairs(features: Features) -> tuple[Array, Array]:
    """Return floor(b N k / E), and the rank's experts with one pair more, for balanced loads."""
    tokens, experts, top_k = features["tokens"], features["experts"], features["top_k"]
    least_pairs = np.floor(tokens * top_k / experts)
    return least_pairs, np.ceil((tokens * top_k - least_pairs * experts) / features["ep"])


def active_experts(features: Features) -> Array:
    """Return the active experts of the rank, whose weights are read, [rows, grid]."""
    local = features["local_experts"]
    pairs = features["tokens"] * features["top_k"]
    balanced = np.ceil(np.minimum(features["experts"], pairs) / features["ep"])
    skewed = np.minimum(features["top_k"], local)
    evenly = np.where(features["skewed"] > 0, skewed, balanced)
    return _expected(features, evenly, lambda spread, *layer: spread.awake(*layer))


def pairs_of(features: Features) -> Array:
    """Return the token-expert pairs of the rank, [rows, grid]; with one rank b N k."""
    local = features["local_experts"]
    least_pairs, experts_with_more = _balanced_pairs(features)
    skewed = np.minimum(features["top_k"], local) * features["tokens"]
    evenly = np.where(features["skewed"] > 0, skewed, local * least_pairs + experts_with_more)
    return _expected(features, evenly, lambda spread, *layer: spread.pairs(*layer))


def _expected(
    features: Features, evenly: Array, expectation: Callable[..., float], *arguments: Array
) -> Array:
    """Return values [rows, grid]: `evenly`, replaced by expectations where loads are uneven.

    `expectation` is called with the law, E, k, b N, the other arguments at each N, and `ep`.
    """
    values = np.array(np.broadcast_to(evenly, features["tokens"].shape))
    for row, (spread,) in enumerate(features["spread"]):
        if spread is None:
            continue
        experts, top_k, ep = (int(features[name][row, 0]) for name in ("experts", "top_k", "ep"))
        columns = (array[row].astype(int).tolist() for array in (features["tokens"], *arguments))
        values[row] = [
            expectation(spread, experts, top_k, *point, ep) for point in zip(*columns, strict=True)
        ]
    return values


def _executed_us(
    features: Features,
    values: Values,
    blocks: tuple[Array, Array, Array],
    slowdown: Array,
    count: Array,
    *,
    steps_of_k: Callable[[Array, Array], Array] | None = None,
) -> Array:
    """Return T(N) of `count` blocks of M rows, N columns and K, [rows, grid], in microseconds.

    `slowdown` is that of narrow steps of K. `steps_of_k` returns the number of successive steps,
    where stages and warps are known. Each step takes a load's latency, which few blocks do not
    hide.

    Features: `tokens` (b N), `active` experts and `pairs` [rows, grid]; `d_model`, `d_ff`,
    `matrices` (3 or 2 per expert), `weight_bytes`, `element_bytes`, `result_bytes`, `phi`
    (FLOP/us), `beta` (bytes/us), `sms` [rows, 1]; `pass_bytes` [rows, grid], the traffic of passes
    that a 16-bit layer lacks; `eager` [rows, 1], 1 where single launches hide the fixed time.
    """
    block_m, block_n, block_k = blocks
    tokens, d_model, d_ff = features["tokens"], features["d_model"], features["d_ff"]
    weight_bytes, element_bytes = features["weight_bytes"], features["element_bytes"]
    beta = values["bandwidth_share"] * features["beta"]
    pairs, active = features["pairs"], features["active"]
    up_width = (features["matrices"] - 1) * d_ff
    up_tiles, down_tiles = np.ceil(up_width / block_n), np.ceil(d_model / block_n)
    up_depth, down_depth = (np.ceil(size / block_k) * block_k for size in (d_model, d_ff))
    elements = block_n * (up_tiles * up_depth + down_tiles * down_depth)
    flop = 2.0 * count * block_m * elements
    feed_rate = values["tflop_s_per_sm"] * FLOP_PER_US * features["sms"]
    compute_us = slowdown * flop * (1.0 / features["phi"] + 1.0 / feed_rate)
    inputs = pairs * (d_model * up_tiles + d_ff * down_tiles)
    l2_bytes = weight_bytes * (count * elements) + element_bytes * inputs
    l2_rate = values["l2_over_memory"] * features["beta"]
    tiles_us = values["tile_us"] * count * (up_tiles + down_tiles) / features["sms"]
    chip_us = np.maximum(compute_us, l2_bytes / l2_rate) + tiles_us
    weights_us = slowdown * weight_bytes * features["matrices"] * d_model * d_ff * active / beta
    # Rows cross the bus in 16 bits at least: the output of products is read again to be quantised.
    rows = tokens * d_model + pairs * (3 * d_model + 2 * up_width + 2 * d_ff)
    activation_bytes = features["result_bytes"] * rows + features["pass_bytes"]
    memory_us = weights_us + values["routed_traffic"] * activation_bytes / beta
    parts = [memory_us, chip_us]
    load_us = values.get("load_us", 0.0)
    if steps_of_k is not None and load_us > 0:
        successive_steps = steps_of_k(count * up_tiles, d_model) + steps_of_k(
            count * down_tiles, d_ff
        )
        parts.append(load_us * successive_steps)
    fixed_us = values["fixed_us"] * (1.0 - features.get("eager", 0.0))
    return np.asarray(fixed_us + power_mean_sum(values["sharpness"], *parts))


_SHARED = (
    Constant("tflop_s_per_sm", "TFLOP/s", 20.0, 1.0, 500.0,
             "what an SM can be fed: the faster its tensor cores, the less of phi is left"),
    Constant("bandwidth_share", "1", 0.95, 0.2, 1.3, "share of beta that weights reach"),
    Constant("sharpness", "1", 2.5, 1.0, 8.0, "p: how well chip and memory overlap"),
    Constant("fixed_us", "us", 25.0, 0.0, 80.0, "routing, sorting and the launches of one layer"),
    Constant("l2_over_memory", "1", 3.0, 0.5, 90.0, "what SMs load from L2, as a multiple of beta"),
    Constant("tile_us", "us", 0.4, 0.0, 4.0, "what one tile costs an SM besides"),
    Constant("routed_traffic", "1", 1.1, 0.0, 5.0,
             "activations moved, as a multiple of each operand once"),
)  # fmt: skip

_LIMIT = Limit(
    "padded expert blocks and traffic between L2 and SMs",
    "the experts' blocks, padding included, take longer than reading their weights",
)
MOE_TRITON = Family(
    name="moe_triton",
    meaning="Triton's fused MoE of vLLM and SGLang, with the blocks that their rules say",
    limit=_LIMIT,
    modules=("moe_ffn",),
    covers=lambda backend, kernel, _cached: is_moe_package(backend) and is_triton_moe(kernel),
    constants=(
        *_SHARED,
        Constant("narrow_k", "1", 1.45, 1.0, 3.0, "slowdown where BLOCK_SIZE_K is 32"),
        Constant("half_k", "1", 1.05, 1.0, 3.0, "slowdown where it is 64"),
        Constant("load_us", "us", 0.7, 0.0, 6.0,
                 "latency of a step of K that a pipeline waits for", neutral=0.0),
    ),
    hypotheses=("rules",),
    latency_us=latency_us,
    features=partial(moe_features, triton=True),
)  # fmt: skip

MOE_LIBRARY = Family(
    name="moe_library",
    meaning="grouped products of a library that picks its own tile",
    limit=_LIMIT,
    modules=("moe_ffn",),
    covers=lambda backend, kernel, _cached: (
        backend in _LIBRARY_BACKENDS or bool(kernel and re.search(OTHER_MOE, kernel))
    ),
    constants=_SHARED,
    hypotheses=("best_tile",),
    latency_us=own_tile_latency_us,
    features=partial(moe_features, triton=False),
)
