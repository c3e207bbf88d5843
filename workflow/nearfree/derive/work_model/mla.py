"""T(N) of latent attention: rows of all heads in tiles, against a latent that is read once.

Three forms. N positions among themselves are waves of tiles, as of attention without a cache, with
the widths of the latent's space (absorbed) or of a head (naive). Over a cache keys are split over
all SMs. Where positions are selected a tile holds one position and as many keys as are selected.
"""

import numpy as np
import polars as pl

from nearfree.core.modules.mla import MLA, NAIVE
from nearfree.derive.work_model.attention import tile_us, tiled
from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Values,
    column,
    power_mean_sum,
)


def mla_features(rows: pl.DataFrame, widened: Array) -> dict[str, Array]:
    """Return widths of questions of latent attention, [rows, 1] or [rows, grid], in elements.

    `widening` is the FLOPs that make keys and values of a cached latent, where that comes first.
    `pair_width` is what a pair of query and key multiplies, `query_width` what all heads read and
    write of a new position, `stored_width` what is read of a cached one; `row_axes` are
    the row axes of a request, each of `rows_per_position` rows a position.

    Parameters
    ----------
    widened
        Where an engine prefills instead of decoding, [rows, grid]: more than 0 there.
    """
    number = {
        name: column(rows, name, 0.0)
        for name in ("heads", "latent", "rope_dim", "nope_dim", "value_dim")
    }
    given = (rows["api"].fill_null("") == NAIVE).to_numpy()[:, None]
    naive = given | (widened > 0)
    key = np.where(naive, number["nope_dim"], number["latent"]) + number["rope_dim"]
    value = np.where(naive, number["value_dim"], number["latent"])
    heads = number["heads"]
    wide = heads * (number["nope_dim"] + number["value_dim"])
    return {
        "heads": heads,
        "pair_width": key + value,
        "query_width": heads * (key + value),
        "stored_width": np.where(naive, heads * (key + value), key),
        "widening": np.where(naive & ~given, 2.0 * number["latent"] * wide, 0.0),
        "selected": column(rows, "selected", np.inf),
    }


def among_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of N positions among themselves, [rows, grid], in microseconds.

    Parameters
    ----------
    features
        Those of `mla_features`; `n`, `tile_rows` and `rows_per_position` [rows, grid]; `batch`,
        `context`, `element_bytes`, `cache_bytes`, `phi` (FLOP/us), `beta` (bytes/us), `sms`
        [rows, 1].
    """
    tiles, keys = tiled(features)
    share = features["batch"] * features["row_axes"] * tiles / features["sms"]
    chip = np.ceil(share) * tile_us(features, values, features["pair_width"], keys)
    return values["fixed_us"] + power_mean_sum(
        values["sharpness"], chip, _moved_us(features, values, 1.0)
    )


def cached_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of N positions over a cache, [rows, grid], in microseconds.

    Keys are split over all SMs, where the kernel does; else tiles come in waves. A row tile beyond
    a request's first one reads the cache again, from DRAM in a share `reread`. Where an engine
    prefills, every cached latent is widened first, to keys and values that are written and read;
    those kernels compute at phi here, so that the step to them is the least that it can be.

    Parameters
    ----------
    features
        As of `among_us`; `context` is [rows, grid] where it varies.
    """
    tiles, keys = tiled(features)
    share = features["batch"] * features["row_axes"] * tiles / features["sms"]
    waves = np.where(features["splits"] > 0, share, np.ceil(share))
    prefills = features["widening"] > 0
    products = 2.0 * features["tile_rows"] * features["pair_width"] * keys
    at_phi = products * features["sms"] / features["phi"]
    chip = waves * np.where(
        prefills, at_phi, tile_us(features, values, features["pair_width"], keys)
    )
    widened = features["batch"] * features["context"] * features["widening"]
    chip = chip + widened / features["phi"]
    times = np.where(prefills, 2.0, 1.0 + values["reread"] * (tiles - 1.0))
    return values["fixed_us"] + power_mean_sum(
        values["sharpness"], chip, _moved_us(features, values, times)
    )


def selected_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of positions that attend to selected ones, [rows, grid], in microseconds.

    Tiles of `tile_rows` heads of one position come in waves over the SMs.

    Parameters
    ----------
    features
        As of `among_us`.
    """
    n, context = features["n"], features["context"]
    keys = np.minimum(context + (n + 1.0) / 2.0, features["selected"])
    tiles = features["batch"] * n * np.ceil(features["heads"] / features["tile_rows"])
    chip = np.ceil(tiles / features["sms"]) * tile_us(
        features, values, features["pair_width"], keys
    )
    read = features["batch"] * n * keys * features["stored_width"] * features["cache_bytes"]
    moved = read / (values["bandwidth_share"] * features["beta"])
    return values["fixed_us"] + power_mean_sum(values["sharpness"], chip, moved)


def _moved_us(features: Features, values: Values, times: float | Array) -> Array:
    n, context = features["n"], features["context"]
    queries = n * features["query_width"] * features["element_bytes"]
    cached = times * (context + n) * features["stored_width"] * features["cache_bytes"]
    beta = values["bandwidth_share"] * features["beta"]
    return np.asarray(features["batch"] * (queries + cached) / beta)


_CONSTANTS = (
    Constant(name="tflop_s_per_sm", unit="TFLOP/s", start=10.0, low=0.05, high=500.0,
             meaning="what an SM can be fed: the faster its tensor cores, the less of phi is left"),
    Constant(name="bandwidth_share", unit="1", start=0.7, low=0.02, high=1.5,
             meaning="share of beta that queries, keys and values reach"),
    Constant(name="sharpness", unit="1", start=2.0, low=1.0, high=8.0,
             meaning="p: how well chip and memory overlap"),
    Constant(name="fixed_us", unit="us", start=8.0, low=0.0, high=60.0,
             meaning="what a call costs besides"),
    Constant(name="tile_us", unit="us", start=1.0, low=0.0, high=100.0,
             meaning="what one tile costs an SM besides"),
)  # fmt: skip
_REREAD = Constant(
    name="reread",
    unit="1",
    start=0.2,
    low=0.0,
    high=1.0,
    meaning="share of the cache that a further row tile reads from DRAM again",
)

MLA_PREFILL = Family(
    name="mla_prefill",
    meaning="latent attention of N positions among themselves, absorbed or naive",
    modules=(MLA.name,),
    speaks=lambda _backend, _kernel, cached: not cached,
    constants=_CONSTANTS,
    hypotheses=("tiles_in_waves",),
    latency_us=among_us,
)
MLA_CACHED = Family(
    name="mla_cached",
    meaning="absorbed latent attention of N positions over a cache, keys split over SMs",
    modules=(MLA.name,),
    speaks=lambda _backend, _kernel, cached: cached,
    constants=(*_CONSTANTS, _REREAD),
    hypotheses=("split_keys",),
    latency_us=cached_us,
)
MLA_SELECTED = Family(
    name="mla_selected",
    meaning="latent attention to selected positions, a tile a position",
    modules=(MLA.name,),
    speaks=lambda _backend, _kernel, _cached: False,
    constants=_CONSTANTS,
    hypotheses=("tile_a_position",),
    latency_us=selected_us,
)
"""A question is of it where it says how many positions are selected."""
