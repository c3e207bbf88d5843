"""T(N) of attention: tiles of query rows over SMs, against the keys and values that are read.

Without a cache a tile is a thread block of its own, so tiles come in waves over the SMs. Over a
cache, kernels split the keys so that all SMs work, and T(N) steps where a tile is full. A call that
splits no keys has a block for each tile there, too, which goes through the cache alone.
"""

from functools import partial

import numpy as np

from nearfree.core.modules.attention import ATTENTION
from nearfree.derive.work_model.family import (
    FLOP_PER_US,
    Array,
    Constant,
    Family,
    Features,
    Values,
    power_mean_sum,
)

LEAST_KEYS = 64.0
"""Keys of a step: no tile computes fewer."""


def causal_keys(n: Array, context: Array, tile: Array, packed: Array) -> tuple[Array, Array]:
    """Return the tiles of a row axis, and the keys that all of them see, [rows, grid].

    Tile i sees the cache and the positions up to its own last row.

    Parameters
    ----------
    tile, packed
        Rows of a tile, and rows that a position takes.
    """
    rows = n * packed
    whole = np.floor(rows / tile)
    seen = whole * context + whole * (whole + 1) / 2 * tile / packed
    return np.ceil(rows / tile), seen + np.where(rows > whole * tile, context + n, 0.0)


def tiled(features: Features) -> tuple[Array, Array]:
    """Return the tiles of a row axis and the keys that one sees in the mean, [rows, grid]."""
    tile, packed = features["tile_rows"], features["rows_per_position"]
    tiles, seen = causal_keys(features["n"], features["context"], tile, packed)
    return tiles, np.maximum(seen / tiles, LEAST_KEYS)


def tile_us(features: Features, values: Values, pair_width: Array, keys: Array) -> Array:
    """Return what a tile takes an SM, [rows, grid], in microseconds.

    Parameters
    ----------
    pair_width
        What a pair of query and key multiplies, in elements.
    keys
        Those that the tile sees.
    """
    fed = values["tflop_s_per_sm"] * FLOP_PER_US
    rate = 1.0 / (features["sms"] / features["phi"] + 1.0 / fed)  # FLOP/us of an SM
    products = 2.0 * features["tile_rows"] * pair_width * keys
    return np.asarray(products / rate + values["tile_us"])


def latency_us(features: Features, values: Values, _hypothesis: str, *, in_waves: bool) -> Array:
    """Return T(N) of N queries over L cached positions, [rows, grid], in microseconds.

    Parameters
    ----------
    features
        `n`, `tile_rows` and `rows_per_position` [rows, grid] (query heads that share a row axis);
        `unsplit` [rows, grid], whether a call splits no keys, where a rule says it;
        `batch`, `context` (or [rows, grid] where it varies), `heads`, `kv_heads`, `head_dim`,
        `element_bytes`, `cache_bytes`, `phi` (FLOP/us), `beta` (bytes/us), `sms` [rows, 1].
    in_waves
        Whether a tile is a thread block of its own: without a cache, N queries among themselves.
    """
    on_chip, moved = _parts(features, values, in_waves=in_waves)
    return values["fixed_us"] + power_mean_sum(values["sharpness"], on_chip, moved)


def _parts(features: Features, values: Values, *, in_waves: bool) -> tuple[Array, Array]:
    """Return the time on the chip and that of reading and writing, both [rows, grid]."""
    n, context, packed = features["n"], features["context"], features["rows_per_position"]
    width, batch = features["head_dim"], features["batch"]
    tiles, keys = tiled(features)
    one_us = tile_us(features, values, 2.0 * width, keys)
    share = batch * features["heads"] / packed * tiles / features["sms"]
    alone = np.ones(share.shape) if in_waves else features.get("unsplit", np.zeros(share.shape))
    on_chip = np.where(alone > 0, np.ceil(share), share) * one_us
    queries = n * features["heads"] * features["element_bytes"]
    cached = (context + n) * features["kv_heads"] * features["cache_bytes"]
    beta = values["bandwidth_share"] * features["beta"]
    moved = 2.0 * batch * width * (queries + cached) / beta
    return np.asarray(on_chip), np.asarray(moved)


_CONSTANTS = (
    Constant(name="tflop_s_per_sm", unit="TFLOP/s", start=10.0, low=0.5, high=500.0,
             meaning="what an SM can be fed: the faster its tensor cores, the less of phi is left"),
    Constant(name="bandwidth_share", unit="1", start=0.7, low=0.1, high=1.5,
             meaning="share of beta that queries, keys and values reach"),
    Constant(name="sharpness", unit="1", start=2.0, low=1.0, high=8.0,
             meaning="p: how well chip and memory overlap"),
    Constant(name="fixed_us", unit="us", start=8.0, low=0.0, high=60.0,
             meaning="what a call costs besides"),
    Constant(name="tile_us", unit="us", start=1.0, low=0.0, high=20.0,
             meaning="what one tile costs an SM besides"),
)  # fmt: skip

ATTENTION_PREFILL = Family(
    name="attention_prefill",
    meaning="attention of N queries among themselves, in the kernel for several queries",
    modules=(ATTENTION.name,),
    speaks=lambda _backend, _kernel, cached: not cached,
    constants=_CONSTANTS,
    hypotheses=("tile_128",),
    latency_us=partial(latency_us, in_waves=True),
)
ATTENTION_CACHED = Family(
    name="attention_cached",
    meaning="attention of N queries over a cache, with the tiles that rules say",
    modules=(ATTENTION.name,),
    speaks=lambda _backend, _kernel, cached: cached,
    constants=_CONSTANTS,
    hypotheses=("split_keys",),
    latency_us=partial(latency_us, in_waves=False),
)
