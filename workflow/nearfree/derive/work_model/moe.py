"""T(N) of a fused MoE layer: what crosses the memory bus, against what happens on the chip.

On the chip, the larger of the compute of padded blocks and the traffic between L2 and SMs, and what
each tile costs besides. Weights that are loaded in narrow steps of K, few bytes of a row, are
loaded slower.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from nearfree.core.modules.moe_ffn import OTHER_MOE, is_triton_moe
from nearfree.derive.granularity.releases import is_moe_package
from nearfree.derive.laws.spread import PowerLaw
from nearfree.derive.work_model.family import (
    FLOP_PER_US,
    Array,
    Constant,
    Family,
    Features,
    Values,
    power_mean_sum,
)

_LIBRARY_BACKENDS = ("trtllm",)
_NARROW_BYTES, _HALF_BYTES = 64, 128
"""Of a row of weights in a step of K: 32 and 64 elements of 16 bits."""
_OWN_TILES = (16, 32, 64, 128)
_OWN_COLUMNS, _OWN_K = 128.0, 64.0
_WGMMA, _CONSUMER, _WGMMA_ROWS = 90, 120, 64
"""wgmma and tcgen05 are those of compute capability 9.0 to 10.3, for 64 rows and more."""
_BLOCK_SMEM, _WARP, _OTHER_REGISTERS = 1024, 32, 40
_REGISTERS, _THREADS, _MOST_BLOCKS = 65536, 2048, 32.0
"""Of an SM: registers, threads, blocks (CUDA C++ Programming Guide, technical specifications)."""


def latency_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) with the blocks that the rules of a release say, [rows, grid], in microseconds.

    Parameters
    ----------
    features
        `block_m`, `block_n`, `block_k`, `num_warps`, `num_stages` and `blocks` [rows, grid], `sm`
        and `smem_bytes` of an SM [rows, 1]; what `executed` asks for besides.
    """
    block_k = features["block_k"]
    step = np.floor(block_k * features["weight_bytes"])  # without the scales of float8_block
    steps = [step <= _NARROW_BYTES, step <= _HALF_BYTES]
    slowdown = np.select(steps, [values["narrow_k"], values["half_k"]], 1.0)
    blocks = features["block_m"], features["block_n"], block_k
    return _executed(
        features, values, blocks, slowdown, features["blocks"], steps_of_k=_steps_of_k(features)
    )


def blocks_per_sm(features: Features) -> Array:
    """Return how many thread blocks of a fused layer an SM holds at once, [rows, grid].

    A pipeline of `num_stages` buffers the operands of a step of K: as many times for wgmma and
    tcgen05, which multiply 64 rows and more, and once less for mma.sync. Of registers a block needs
    those of its accumulators and some forty a thread; none holds more than 32 blocks.

    Source: shared memory and instructions of the kernel compiled by Triton 3.5.1 and 3.6.0 for five
    compute capabilities, which agree with this formula within 2 KiB.
    """
    rows, columns, warps = (features[name] for name in ("block_m", "block_n", "num_warps"))
    capability, stages = features["sm"], features["num_stages"]
    asynchronous = (capability >= _WGMMA) & (capability < _CONSUMER) & (rows >= _WGMMA_ROWS)
    buffers = np.maximum(np.where(asynchronous, stages, stages - 1.0), 1.0)
    step = features["block_k"] * features["weight_bytes"]
    by_memory = features["smem_bytes"] / (buffers * (rows + columns) * step + _BLOCK_SMEM)
    threads = _WARP * warps
    registers = threads * (rows * columns / threads + _OTHER_REGISTERS)
    by_registers = np.minimum(_REGISTERS / registers, _THREADS / threads)
    return np.asarray(np.clip(np.floor(np.minimum(by_memory, by_registers)), 1.0, _MOST_BLOCKS))


def _steps_of_k(features: Features) -> Callable[[Array, Array], Array]:
    """Return what says how many steps of K follow on each other, of (tiles, depth), [rows, grid].

    Tiles come in waves over what all SMs hold; a pipeline has `num_stages` - 1 steps under way.
    """
    places = blocks_per_sm(features) * features["sms"]
    ahead = np.maximum(features["num_stages"] - 1.0, 1.0)

    def steps(tiles: Array, depth: Array) -> Array:
        return np.asarray(np.ceil(tiles / places) * (depth / features["block_k"] / ahead + 1.0))

    return steps


def own_tile_latency_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of a library that picks the best of several row tiles, [rows, grid].

    Parameters
    ----------
    features
        `tile_m` [rows, grid] where its source says the tile, else NaN; `blocks_16` to `blocks_128`
        [rows, grid]; what `executed` asks for.
    """
    shape = features["tokens"].shape
    columns, depth, even = np.full(shape, _OWN_COLUMNS), np.full(shape, _OWN_K), np.ones(shape)
    each = [
        _executed(features, values, (tile, columns, depth), even, features[_count(of)])
        for of, tile in own_tiles(features).items()
    ]
    return np.asarray(np.minimum.reduce(each))


def own_tiles(features: Features) -> dict[int, Array]:
    """Return the rows of each tile that a library may pick, [rows, grid]; all a rule's, if any."""
    ruled = np.broadcast_to(features["tile_m"], features["tokens"].shape)
    return {tile: np.where(np.isnan(ruled), float(tile), ruled) for tile in _OWN_TILES}


def with_loads(features: Features) -> dict[str, Any]:
    """Return features with what a law of loads expects: `active`, `pairs`, and `blocks` of a tile.

    Of a release's blocks they are `blocks`, of a library's tiles `blocks_16` and so on.
    """
    tiles = {"": features["block_m"]} if "block_m" in features else own_tiles(features)
    counts = {_count(of): blocks_of(features, rows) for of, rows in tiles.items()}
    return {
        **features,
        "active": active_experts(features),
        "pairs": pairs_of(features),
        **counts,
    }


def _count(tile: int | str) -> str:
    return f"blocks_{tile}" if tile else "blocks"


def blocks_of(features: Features, block_m: Array) -> Array:
    """Return how many row blocks all experts have together: sum over experts of ceil(m_e / M).

    Balanced: every expert has floor(b N k / E) pairs and some one more; skewed: k have b N. Where
    whole experts are spread over ranks, the first of all lie on the rank that is asked. By a power
    law or measured loads: as many as are expected of the rank that has most pairs. Where a release
    aligns no pairs, `unaligned` [rows, grid], each pair has a block of its own, but by a power law:
    its constants and residuals are of curves whose few such pairs were counted as shared, of which
    nine in ten are alone anyway.
    """
    tokens, local = features["tokens"], features["local_experts"]
    whole, more = _evenly(features)
    balanced = more * np.ceil((whole + 1) / block_m) + (local - more) * np.ceil(whole / block_m)
    skewed = np.minimum(features["top_k"], local) * np.ceil(tokens / block_m)
    even = np.where(features["skewed"] > 0, skewed, balanced)
    shared = _expected(features, even, lambda spread, *layer: spread.blocks(*layer), block_m)
    if "unaligned" not in features:
        return shared
    of_law = np.array([[isinstance(spread, PowerLaw)] for (spread,) in features["spread"]])
    return np.where((features["unaligned"] > 0) & ~of_law, pairs_of(features), shared)


def _evenly(features: Features) -> tuple[Array, Array]:
    """Return floor(b N k / E), and how many experts of the rank have one pair more, if balanced."""
    tokens, experts, top_k = features["tokens"], features["experts"], features["top_k"]
    whole = np.floor(tokens * top_k / experts)
    return whole, np.ceil((tokens * top_k - whole * experts) / features["ep"])


def active_experts(features: Features) -> Array:
    """Return how many experts of the rank have a token, [rows, grid]: each has weights to read."""
    local = features["local_experts"]
    pairs = features["tokens"] * features["top_k"]
    balanced = np.ceil(np.minimum(features["experts"], pairs) / features["ep"])
    skewed = np.minimum(features["top_k"], local)
    even = np.where(features["skewed"] > 0, skewed, balanced)
    return _expected(features, even, lambda spread, *layer: spread.awake(*layer))


def pairs_of(features: Features) -> Array:
    """Return how many token-expert pairs the rank has, [rows, grid]; of one rank, b N k."""
    local = features["local_experts"]
    whole, more = _evenly(features)
    skewed = np.minimum(features["top_k"], local) * features["tokens"]
    even = np.where(features["skewed"] > 0, skewed, local * whole + more)
    return _expected(features, even, lambda spread, *layer: spread.pairs(*layer))


def _expected(features: Features, even: Array, ask: Callable[..., float], *of_each: Array) -> Array:
    """Return values [rows, grid]; of uneven loads what a law is expected to give.

    `ask` is given the law, E, k, b N, what else is known at each N, and `ep`.
    """
    values = np.array(np.broadcast_to(even, features["tokens"].shape))
    for row, (spread,) in enumerate(features["spread"]):
        if spread is None:
            continue
        experts, top_k, ep = (int(features[name][row, 0]) for name in ("experts", "top_k", "ep"))
        known = zip(*(each[row].astype(int).tolist() for each in (features["tokens"], *of_each)),
                    strict=True)  # fmt: skip
        values[row] = [ask(spread, experts, top_k, *each, ep) for each in known]
    return values


def _executed(
    features: Features,
    values: Values,
    blocks: tuple[Array, Array, Array],
    slowdown: Array,
    count: Array,
    *,
    steps_of_k: Callable[[Array, Array], Array] | None = None,
) -> Array:
    """Return T(N) of `count` blocks of M rows, N columns and K.

    `slowdown` is that of narrow steps of K. `steps_of_k` says how many steps follow on each other
    where stages and warps are known; each takes a load's latency, which few blocks do not hide.

    Features: `tokens` (b N), `active` experts and `pairs` [rows, grid]; `d_model`, `d_ff`,
    `matrices` (3 or 2 an expert), `weight_bytes`, `element_bytes`, `result_bytes`, `phi`
    (FLOP/us), `beta` (bytes/us), `sms` [rows, 1]; `pass_bytes` [rows, grid], moved by passes that
    a 16-bit layer has not; `eager` [rows, 1], 1 where launches one by one hide what is fixed.
    """
    block_m, block_n, block_k = blocks
    tokens, d_model, d_ff = features["tokens"], features["d_model"], features["d_ff"]
    stored, size = features["weight_bytes"], features["element_bytes"]
    beta = values["bandwidth_share"] * features["beta"]
    pairs, active = features["pairs"], features["active"]
    up = (features["matrices"] - 1) * d_ff
    columns_up, columns_down = np.ceil(up / block_n), np.ceil(d_model / block_n)
    depth_up, depth_down = (np.ceil(each / block_k) * block_k for each in (d_model, d_ff))
    elements = block_n * (columns_up * depth_up + columns_down * depth_down)
    flop = 2.0 * count * block_m * elements
    fed = values["tflop_s_per_sm"] * FLOP_PER_US * features["sms"]
    compute = slowdown * flop * (1.0 / features["phi"] + 1.0 / fed)
    inputs = pairs * (d_model * columns_up + d_ff * columns_down)
    loaded = stored * (count * elements) + size * inputs
    l2 = values["l2_over_memory"] * features["beta"]
    tiles = values["tile_us"] * count * (columns_up + columns_down) / features["sms"]
    on_chip = np.maximum(compute, loaded / l2) + tiles
    weights = slowdown * stored * features["matrices"] * d_model * d_ff * active / beta
    # Rows cross the bus in 16 bits at least: what products write is read again to be quantised.
    rows = tokens * d_model + pairs * (3 * d_model + 2 * up + 2 * d_ff)
    moved = features["result_bytes"] * rows + features["pass_bytes"]
    off_chip = weights + values["routed_traffic"] * moved / beta
    parts = [off_chip, on_chip]
    load = values.get("load_us", 0.0)
    if steps_of_k is not None and load > 0:
        waited = steps_of_k(count * columns_up, d_model) + steps_of_k(count * columns_down, d_ff)
        parts.append(load * waited)
    fixed = values["fixed_us"] * (1.0 - features.get("eager", 0.0))
    return np.asarray(fixed + power_mean_sum(values["sharpness"], *parts))


_SHARED = (
    Constant(name="tflop_s_per_sm", unit="TFLOP/s", start=20.0, low=1.0, high=500.0,
             meaning="what an SM can be fed: the faster its tensor cores, the less of phi is left"),
    Constant(name="bandwidth_share", unit="1", start=0.95, low=0.2, high=1.3,
             meaning="share of beta that weights reach"),
    Constant(name="sharpness", unit="1", start=2.5, low=1.0, high=8.0,
             meaning="p: how well chip and memory overlap"),
    Constant(name="fixed_us", unit="us", start=25.0, low=0.0, high=80.0,
             meaning="routing, sorting and the launches of one layer"),
    Constant(name="l2_over_memory", unit="1", start=3.0, low=0.5, high=90.0,
             meaning="what SMs load from L2, as a multiple of beta"),
    Constant(name="tile_us", unit="us", start=0.4, low=0.0, high=4.0,
             meaning="what one tile costs an SM besides"),
    Constant(name="routed_traffic", unit="1", start=1.1, low=0.0, high=5.0,
             meaning="activations moved, as a multiple of each operand once"),
)  # fmt: skip

MOE_TRITON = Family(
    name="moe_triton",
    meaning="Triton's fused MoE of vLLM and SGLang, with the blocks that their rules say",
    modules=("moe_ffn",),
    speaks=lambda backend, kernel, _cached: is_moe_package(backend) and is_triton_moe(kernel),
    constants=(
        *_SHARED,
        Constant(name="narrow_k", unit="1", start=1.45, low=1.0, high=3.0,
                 meaning="slowdown where BLOCK_SIZE_K is 32"),
        Constant(name="half_k", unit="1", start=1.05, low=1.0, high=3.0,
                 meaning="slowdown where it is 64"),
        Constant(name="load_us", unit="us", start=0.7, low=0.0, high=6.0, neutral=0.0,
                 meaning="latency of a step of K that a pipeline waits for"),
    ),
    hypotheses=("rules",),
    latency_us=latency_us,
)  # fmt: skip

MOE_LIBRARY = Family(
    name="moe_library",
    meaning="grouped products of a library that picks its own tile",
    modules=("moe_ffn",),
    speaks=lambda backend, kernel, _cached: (
        backend in _LIBRARY_BACKENDS or bool(kernel and re.search(OTHER_MOE, kernel))
    ),
    constants=_SHARED,
    hypotheses=("best_tile",),
    latency_us=own_tile_latency_us,
)
