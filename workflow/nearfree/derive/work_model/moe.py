"""T(N) of a fused MoE layer: what crosses the memory bus, against what happens on the chip.

On the chip, the larger of the compute of padded blocks and the traffic between L2 and SMs, and what
each tile costs besides. Weights that are loaded in narrow steps of K, few bytes of a row, are
loaded slower.
"""

import re
from collections.abc import Callable

import numpy as np

from nearfree.core.modules.moe_ffn import OTHER_MOE, is_triton_moe
from nearfree.derive.granularity.releases import is_moe_package
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
_OWN_TILES = (16.0, 32.0, 64.0, 128.0)
_OWN_COLUMNS, _OWN_K = 128.0, 64.0


def latency_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) with the blocks that the rules of a release say, [rows, grid], in microseconds.

    Parameters
    ----------
    features
        `block_m`, `block_n`, `block_k` [rows, grid]; what `executed` asks for besides.
    """
    block_k = features["block_k"]
    step = np.floor(block_k * features["weight_bytes"])  # without the scales of float8_block
    steps = [step <= _NARROW_BYTES, step <= _HALF_BYTES]
    slowdown = np.select(steps, [values["narrow_k"], values["half_k"]], 1.0)
    blocks = features["block_m"], features["block_n"], block_k
    return _executed(features, values, blocks, slowdown)


def own_tile_latency_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of a library that picks the best of several row tiles, [rows, grid].

    Parameters
    ----------
    features
        `tile_m` [rows, grid] where its source says the tile, else NaN; what `executed` asks for.
    """
    ruled = np.broadcast_to(features["tile_m"], features["tokens"].shape)
    shape = features["tokens"].shape
    columns, depth, even = np.full(shape, _OWN_COLUMNS), np.full(shape, _OWN_K), np.ones(shape)
    tiles = [np.where(np.isnan(ruled), tile, ruled) for tile in _OWN_TILES]
    each = [_executed(features, values, (tile, columns, depth), even) for tile in tiles]
    return np.asarray(np.minimum.reduce(each))


def blocks_of(features: Features, block_m: Array) -> Array:
    """Return how many row blocks all experts have together: sum over experts of ceil(m_e / M).

    Balanced: every expert has floor(b N k / E) pairs and some one more; skewed: k have b N. Where
    whole experts are spread over ranks, the first of all lie on the rank that is asked. By a power
    law or measured loads: as many as are expected of the rank that has most pairs.
    """
    tokens, local = features["tokens"], features["local_experts"]
    whole, more = _evenly(features)
    balanced = more * np.ceil((whole + 1) / block_m) + (local - more) * np.ceil(whole / block_m)
    skewed = np.minimum(features["top_k"], local) * np.ceil(tokens / block_m)
    even = np.where(features["skewed"] > 0, skewed, balanced)
    return _expected(features, even, lambda spread, *layer: spread.blocks(*layer), block_m)


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

    Parameters
    ----------
    ask
        Is given the law, E, k, b N, what else is known at each N, and `ep`.
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
) -> Array:
    """Return T(N) of blocks of M rows, N columns and K; `slowdown` is that of narrow steps of K.

    Features: `tokens` (b N) [rows, grid]; `experts`, `ep` and `local_experts` of a rank, `top_k`,
    `skewed` (1 or 0), `spread` (the law of uneven loads, else None), `d_model`, `d_ff`, `matrices`
    (3 or 2 an expert), `weight_bytes`, `element_bytes`, `result_bytes`, `phi` (FLOP/us), `beta`
    (bytes/us), `sms` [rows, 1]; `pass_bytes` [rows, grid], moved by passes that a 16-bit layer has
    not.
    """
    block_m, block_n, block_k = blocks
    tokens, d_model, d_ff = features["tokens"], features["d_model"], features["d_ff"]
    stored, size = features["weight_bytes"], features["element_bytes"]
    beta = values["bandwidth_share"] * features["beta"]
    pairs, active = pairs_of(features), active_experts(features)
    up = (features["matrices"] - 1) * d_ff
    count = blocks_of(features, block_m)
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
    return values["fixed_us"] + power_mean_sum(values["sharpness"], off_chip, on_chip)


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
