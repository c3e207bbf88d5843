"""T(N) of latent attention: tiles of the rows of all heads, against a latent that is read once.

There are three forms. N positions among themselves run as waves of tiles, as in attention without a
cache, with the widths of the latent space (absorbed) or of a head (naive). Over a cache, keys are
split over all SMs. With selected positions, a tile holds one position and its selected keys.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import polars as pl

from nearfree.core.modules.mla import MLA, NAIVE
from nearfree.derive.work_model.attention import call_us, tile_us, tiled
from nearfree.derive.work_model.family import (
    WAVES,
    Array,
    Constant,
    Family,
    Features,
    Limit,
    Values,
    column,
)
from nearfree.errors import NearfreeError
from nearfree.sources.answers.latent import WIDE, LatentCall
from nearfree.sources.mla_tiles import NAIVE_TILE


def mla_features(rows: pl.DataFrame, widened: Array) -> dict[str, Array]:
    """Return widths of questions of latent attention, [rows, 1] or [rows, grid], in elements.

    `widening` is the FLOPs that expand a cached latent to keys and values, where that comes first.
    `pair_width` is multiplied per pair of query and key, `query_width` read and written by all
    heads per new position, and `stored_width` read per cached position. A request has `row_axes`
    row axes, each with `rows_per_position` rows per position.

    Parameters
    ----------
    widened
        More than 0 where an engine prefills instead of decoding, [rows, grid].
    """
    sizes = {
        name: column(rows, name, 0.0)
        for name in ("heads", "latent", "rope_dim", "nope_dim", "value_dim")
    }
    asks_naive = (rows["api"].fill_null("") == NAIVE).to_numpy()[:, None]
    naive = asks_naive | (widened > 0)
    key_width = np.where(naive, sizes["nope_dim"], sizes["latent"]) + sizes["rope_dim"]
    value_width = np.where(naive, sizes["value_dim"], sizes["latent"])
    heads = sizes["heads"]
    expanded_width = heads * (sizes["nope_dim"] + sizes["value_dim"])
    return {
        "heads": heads,
        "pair_width": key_width + value_width,
        "query_width": heads * (key_width + value_width),
        "stored_width": np.where(naive, heads * (key_width + value_width), key_width),
        "widening": np.where(naive & ~asks_naive, 2.0 * sizes["latent"] * expanded_width, 0.0),
        "selected": column(rows, "selected", np.inf),
    }


SIZES = ("tile_rows", "rows_per_position", "row_axes", "splits", "naive")
"""Sizes of a tile for a form: its rows, rows per position, row axes, whether keys are split, and
whether latents are first expanded to keys and values of each head."""
_CALL_COLUMNS = ("backend", "backend_version", "kernel", "heads", "sm")


def _calls(rows: pl.DataFrame) -> list[LatentCall]:
    calls = rows.select(
        *_CALL_COLUMNS,
        (pl.col("api").fill_null("") != NAIVE).alias("absorbed"),
        (pl.col("context") > 0).alias("cached"),
        pl.col("selected").is_not_null(),
        (~pl.coalesce("kv_dtype", "dtype").is_in(WIDE)).alias("few_bits"),
    )
    return [LatentCall(**row) for row in calls.iter_rows(named=True)]


def mla_tiles(rows: pl.DataFrame, n: Array) -> tuple[dict[str, Array], list[str | None]]:
    """Return SIZES of questions by name, [rows, grid], and per row None or its refusal's reason."""
    sizes = np.ones((len(SIZES), *n.shape))
    refusals: list[str | None] = [None] * rows.height
    sizes_of = cache(_sizes)
    for row, (call, grid) in enumerate(zip(_calls(rows), n.astype(int).tolist(), strict=True)):
        result = sizes_of(call, tuple(grid))
        if isinstance(result, str):
            refusals[row] = result
        else:
            sizes[:, row] = result
    return dict(zip(SIZES, sizes, strict=True)), refusals


def _sizes(call: LatentCall, grid: Sequence[int]) -> Array | str:
    """Return SIZES of a call, [sizes, grid], or the reason of a refusal."""
    try:
        tiles = call.tiles(grid)
    except NearfreeError as error:
        return error.what
    return np.array(
        [(tile.rows, tile.rows_per_position, 1 if tile.shared else call.heads,
          tile.splits, tile is NAIVE_TILE) for tile in tiles], dtype=np.float64,
    ).T  # fmt: skip


def mla_kernels(rows: pl.DataFrame) -> list[str]:
    """Return the kernel that decodes one position of each question, by its tile's path."""
    return [call.tiles([1])[0].path for call in _calls(rows)]


def mla_places(rows: pl.DataFrame, positions: Sequence[int]) -> list[str]:
    """Return the source of each question's kernel and tile at its number of positions."""
    return [call.place(n) for call, n in zip(_calls(rows), positions, strict=True)]


def among_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of N positions among themselves, [rows, grid], in microseconds.

    Features are those of `family.common`, `mla_features` and `mla_tiles`.
    """
    tiles, keys = tiled(features)
    tiles_per_sm = features["batch"] * features["row_axes"] * tiles / features["sms"]
    compute_us = np.ceil(tiles_per_sm) * tile_us(features, values, features["pair_width"], keys)
    return call_us(values, compute_us, _traffic_us(features, values, 1.0))


def cached_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of N positions over a cache, [rows, grid], in microseconds.

    Keys are split over all SMs if the kernel splits them; else tiles run in waves. Each row tile of
    a request after the first reads the cache again, a share `reread` of it from DRAM. Where an
    engine prefills, every cached latent is first expanded to keys and values, which are written and
    read. These kernels are taken to compute at phi, which makes the step to them as small as
    possible. Features are those of `among_us`; `context` is [rows, grid] where it varies.
    """
    tiles, keys = tiled(features)
    tiles_per_sm = features["batch"] * features["row_axes"] * tiles / features["sms"]
    waves = np.where(features["splits"] > 0, tiles_per_sm, np.ceil(tiles_per_sm))
    prefills = features["widening"] > 0
    flop = 2.0 * features["tile_rows"] * features["pair_width"] * keys
    tile_at_phi_us = flop * features["sms"] / features["phi"]
    compute_us = waves * np.where(
        prefills, tile_at_phi_us, tile_us(features, values, features["pair_width"], keys)
    )
    widening_flop = features["batch"] * features["context"] * features["widening"]
    compute_us = compute_us + widening_flop / features["phi"]
    cache_reads = np.where(prefills, 2.0, 1.0 + values["reread"] * (tiles - 1.0))
    return call_us(values, compute_us, _traffic_us(features, values, cache_reads))


def selected_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of positions that attend to selected ones, [rows, grid], in microseconds.

    Tiles of `tile_rows` heads of one position run in waves over the SMs. Features are those of
    `among_us`.
    """
    n, context = features["n"], features["context"]
    keys = np.minimum(context + (n + 1.0) / 2.0, features["selected"])
    tiles = features["batch"] * n * np.ceil(features["heads"] / features["tile_rows"])
    compute_us = np.ceil(tiles / features["sms"]) * tile_us(
        features, values, features["pair_width"], keys
    )
    read_bytes = features["batch"] * n * keys * features["stored_width"] * features["cache_bytes"]
    traffic_us = read_bytes / (values["bandwidth_share"] * features["beta"])
    return call_us(values, compute_us, traffic_us)


def _traffic_us(features: Features, values: Values, cache_reads: float | Array) -> Array:
    n, context = features["n"], features["context"]
    queries = n * features["query_width"] * features["element_bytes"]
    cached = cache_reads * (context + n) * features["stored_width"] * features["cache_bytes"]
    beta = values["bandwidth_share"] * features["beta"]
    return np.asarray(features["batch"] * (queries + cached) / beta)


_CONSTANTS = (
    Constant("tflop_s_per_sm", "TFLOP/s", 10.0, 0.05, 500.0,
             "what an SM can be fed: the faster its tensor cores, the less of phi is left"),
    Constant("bandwidth_share", "1", 0.7, 0.02, 1.5,
             "share of beta that queries, keys and values reach"),
    Constant("sharpness", "1", 2.0, 1.0, 8.0, "p: how well chip and memory overlap"),
    Constant("fixed_us", "us", 8.0, 0.0, 60.0, "what a call costs besides"),
    Constant("tile_us", "us", 1.0, 0.0, 100.0, "what one tile costs an SM besides"),
)  # fmt: skip
_REREAD = Constant(
    "reread", "1", 0.2, 0.0, 1.0, "share of the cache that a further row tile reads from DRAM again"
)

MLA_PREFILL = Family(
    name="mla_prefill",
    meaning="latent attention of N positions among themselves, absorbed or naive",
    limit=WAVES,
    modules=(MLA.name,),
    covers=lambda _backend, _kernel, cached: not cached,
    constants=_CONSTANTS,
    hypotheses=("tiles_in_waves",),
    latency_us=among_us,
)
MLA_CACHED = Family(
    name="mla_cached",
    meaning="absorbed latent attention of N positions over a cache, keys split over SMs",
    limit=Limit("tiles of heads over the latents", "one more tile of heads reads the whole cache"),
    modules=(MLA.name,),
    covers=lambda _backend, _kernel, cached: cached,
    constants=(*_CONSTANTS, _REREAD),
    hypotheses=("split_keys",),
    latency_us=cached_us,
)
MLA_SELECTED = Family(
    name="mla_selected",
    meaning="latent attention to selected positions, a tile a position",
    limit=Limit(
        "waves of positions, a tile each",
        "each position reads the tokens that were selected for it",
    ),
    modules=(MLA.name,),
    covers=lambda _backend, _kernel, _cached: False,
    constants=_CONSTANTS,
    hypotheses=("tile_a_position",),
    latency_us=selected_us,
)
"""The family of questions with `selected` positions."""
LATENT = (MLA_PREFILL, MLA_CACHED, MLA_SELECTED)
"""The forms of latent attention."""
