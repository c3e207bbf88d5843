"""T(N) of attention: tiles of query rows over SMs, against the keys and values that are read.

Without a cache each tile is a thread block, so tiles run in waves over the SMs. Over a cache,
kernels split the keys so that all SMs work, and T(N) steps where a tile is full. A call that does
not split the keys has one block per tile there, too, which reads the whole cache.
"""

from functools import partial
from typing import Any

import numpy as np
import polars as pl

from nearfree.backends.decode_kernels import NAMES, WIDEST, backend_decoder, is_measured
from nearfree.core.modules.attention import ATTENTION
from nearfree.derive.work_model.family import (
    FLOP_PER_US,
    WAVES,
    Array,
    Constant,
    Family,
    Features,
    Flags,
    Limit,
    Values,
    column,
    common,
    power_mean_sum,
)

LEAST_KEYS = 64.0
"""Keys of one step: no tile computes fewer."""
_PACKING = r"(?i)flash|fa[234]\b"
"""Names of attention kernels that put the query heads of a key-value head on one row axis."""
_PREFILL_TILE = 128.0


def attention_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of attention, with the tiles of a kernel for several queries."""
    sizes = {name: column(rows, name) for name in ("heads", "kv_heads", "head_dim")}
    is_packed = rows["kernel"].fill_null("").str.contains(_PACKING).to_numpy()[:, None]
    packed = np.where(is_packed, sizes["heads"] / sizes["kv_heads"], 1.0)
    tiles = {"tile_rows": np.full(n.shape, _PREFILL_TILE)}
    rows_per_position = np.broadcast_to(packed, n.shape)
    return common(rows, n) | sizes | tiles | {"rows_per_position": rows_per_position}


def causal_keys(n: Array, context: Array, tile: Array, packed: Array) -> tuple[Array, Array]:
    """Return the number of tiles of a row axis, and the sum of their keys, [rows, grid].

    Tile i attends to the cache and to the positions up to its own last row. `tile` are the rows of
    a tile, `packed` the rows per position.
    """
    rows = n * packed
    full_tiles = np.floor(rows / tile)
    full_keys = full_tiles * context + full_tiles * (full_tiles + 1) / 2 * tile / packed
    return np.ceil(rows / tile), full_keys + np.where(rows > full_tiles * tile, context + n, 0.0)


def tiled(features: Features) -> tuple[Array, Array]:
    """Return the number of tiles of a row axis and the mean keys per tile, [rows, grid]."""
    tile, packed = features["tile_rows"], features["rows_per_position"]
    tiles, keys = causal_keys(features["n"], features["context"], tile, packed)
    return tiles, np.maximum(keys / tiles, LEAST_KEYS)


def tile_us(features: Features, values: Values, pair_width: Array, keys: Array) -> Array:
    """Return the time of one tile on one SM, [rows, grid], in microseconds.

    `pair_width` elements are multiplied per pair of query and key; the tile attends to `keys`.
    """
    feed_rate = values["tflop_s_per_sm"] * FLOP_PER_US
    rate = 1.0 / (features["sms"] / features["phi"] + 1.0 / feed_rate)  # FLOP/us of an SM
    products = 2.0 * features["tile_rows"] * pair_width * keys
    return np.asarray(products / rate + values["tile_us"])


def latency_us(features: Features, values: Values, _hypothesis: str, *, in_waves: bool) -> Array:
    """Return T(N) of N queries over L cached positions, [rows, grid], in microseconds.

    Parameters
    ----------
    features
        `n`, `tile_rows` and `rows_per_position` [rows, grid] (query heads that share a row axis);
        `unsplit` [rows, grid], 1 where a call does not split the keys, if a rule says so;
        `batch`, `context` (or [rows, grid] where it varies), `heads`, `kv_heads`, `head_dim`,
        `element_bytes`, `cache_bytes`, `phi` (FLOP/us), `beta` (bytes/us), `sms` [rows, 1].
    in_waves
        Whether each tile is a thread block: N queries among themselves, without a cache.
    """
    return call_us(values, *_parts(features, values, in_waves=in_waves))


def _parts(features: Features, values: Values, *, in_waves: bool) -> tuple[Array, Array]:
    """Return the time of compute and that of memory traffic, in microseconds, [rows, grid]."""
    n, context, packed = features["n"], features["context"], features["rows_per_position"]
    width, batch = features["head_dim"], features["batch"]
    tiles, keys = tiled(features)
    one_tile_us = tile_us(features, values, 2.0 * width, keys)
    tiles_per_sm = batch * features["heads"] / packed * tiles / features["sms"]
    in_blocks = (
        np.ones(tiles_per_sm.shape)
        if in_waves
        else features.get("unsplit", np.zeros(tiles_per_sm.shape))
    )
    compute_us = np.where(in_blocks > 0, np.ceil(tiles_per_sm), tiles_per_sm) * one_tile_us
    queries = n * features["heads"] * features["element_bytes"]
    cached = (context + n) * features["kv_heads"] * features["cache_bytes"]
    beta = values["bandwidth_share"] * features["beta"]
    traffic_us = 2.0 * batch * width * (queries + cached) / beta
    return np.asarray(compute_us), np.asarray(traffic_us)


def call_us(values: Values, compute_us: Array, traffic_us: Array) -> Array:
    """Return the time of a call whose compute and memory traffic overlap, in microseconds."""
    return values["fixed_us"] + power_mean_sum(values["sharpness"], compute_us, traffic_us)


_CONSTANTS = (
    Constant("tflop_s_per_sm", "TFLOP/s", 10.0, 0.5, 500.0,
             "what an SM can be fed: the faster its tensor cores, the less of phi is left"),
    Constant("bandwidth_share", "1", 0.7, 0.1, 1.5,
             "share of beta that queries, keys and values reach"),
    Constant("sharpness", "1", 2.0, 1.0, 8.0, "p: how well chip and memory overlap"),
    Constant("fixed_us", "us", 8.0, 0.0, 60.0, "what a call costs besides"),
    Constant("tile_us", "us", 1.0, 0.0, 20.0, "what one tile costs an SM besides"),
)  # fmt: skip

ATTENTION_PREFILL = Family(
    name="attention_prefill",
    meaning="attention of N queries among themselves, in the kernel for several queries",
    limit=WAVES,
    modules=(ATTENTION.name,),
    covers=lambda _backend, _kernel, cached: not cached,
    constants=_CONSTANTS,
    hypotheses=("tile_128",),
    latency_us=partial(latency_us, in_waves=True),
    features=attention_features,
)
ATTENTION_CACHED = Family(
    name="attention_cached",
    meaning="attention of N queries over a cache, with the tiles that rules say",
    limit=Limit(
        "padded query tiles over the cache", "one more tile of queries reads the whole cache"
    ),
    modules=(ATTENTION.name,),
    covers=lambda _backend, _kernel, cached: cached,
    constants=_CONSTANTS,
    hypotheses=("split_keys",),
    latency_us=partial(latency_us, in_waves=False),
    features=attention_features,
)


DECODE_TILE = 64.0
"""Assumed query rows of a decode kernel's tile, which tables do not give."""


def measured_curves(rows: pl.DataFrame) -> Flags:
    """Return which rows are public curves behind answers, not questions, [rows]."""
    kernels = rows.select("kernel", "backend", "sm", pl.coalesce("kv_dtype", "dtype")).rows()
    is_curve = {kernel: is_measured(*kernel) for kernel in dict.fromkeys(kernels)}
    return np.array([is_curve[kernel] for kernel in kernels], dtype=bool)


def decoders(rows: pl.DataFrame) -> list[str | None]:
    """Return the kernel whose public curves answer each question, None where there is none.

    It is the kernel that a question or a public curve names, else that of its backend.
    """
    kernels = rows.select(
        "kernel", "backend", "sm", pl.coalesce("kv_dtype", "dtype"), "head_dim"
    ).rows()
    return [
        None if head_dim > WIDEST else kernel if kernel in NAMES else backend_decoder(*backend_key)
        for kernel, *backend_key, head_dim in kernels
    ]


def as_decoding(features: Features) -> Features:
    """Return features with one position per tile, and keys split over SMs."""
    ones = np.ones_like(features["n"])
    return {**features, **decode_tiles(ones, features["heads"] / features["kv_heads"])}


def decode_tiles(ones: Array, group: Array) -> dict[str, Array]:
    """Return the tiles of a decode kernel, [rows, grid]: heads that share keys are rows."""
    return {
        "tile_rows": DECODE_TILE * ones,
        "rows_per_position": group * ones,
        "unsplit": 0.0 * ones,
    }
