"""T(N) of whole attention layers and of indexers: kernels one after the other.

A layer is the sum of its projections, its indexer's logits over all entries, attention to the
selected ones, and the traffic between them; the host's launches are a floor. A tile of attention
holds one position, one of the indexer four (DeepGEMM's logits: its times rise in steps of 4
positions per SM), and tiles run in waves over the SMs.
"""

from typing import Any

import numpy as np
import polars as pl

from nearfree.backends.records import BY_NAME
from nearfree.core.modules.attention_layer import ATTENTION_LAYER, VERIFY
from nearfree.core.modules.indexer import INDEXER, SELECT
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

_HEADS_PER_TILE = 64.0
"""Query heads per tile; fewer leave rows of it empty (FlashMLA pads to 64 or 128)."""
_INDEXER_TILE = 4.0
"""Positions per tile of an indexer."""
_SCORE_BYTES = 8.0
"""Traffic per logit of a selection: a float32, written and read once."""


_ENTRY_KERNELS = {
    "vllm": "FLASHMLA_SPARSE_DSV4",
    "sglang": "compressed_flashmla",
    "trtllm": "DeepseekV4TrtllmAttention",
}
"""Public tables' names of engines' kernels for layers whose entries stand for several positions; an
engine has one name on all GPUs."""
_MSA, _TRITON = "MiniMaxM3SparseMSAImpl", "MiniMaxM3SparseTritonImpl"
"""Public tables' names of vLLM's kernels for layers that attend to selected blocks; the first is
for compute capability 10.
Source: vllm 0.33.0, vllm/models/minimax_m3/common/sparse_attention.py:545-591."""


def layer_kernels(rows: pl.DataFrame) -> pl.DataFrame:
    """Return questions of attention layers with engine and kernel as public curves name them.

    A backend of an engine is replaced by the engine.
    """
    engines = {name: backend.engine for name, backend in BY_NAME.items() if backend.engine}
    engine = pl.col("backend").replace(engines)
    entry_kernel = engine.replace_strict(_ENTRY_KERNELS, default=None, return_dtype=pl.String)
    block_kernel = pl.when(pl.col("sm") // 10 == 10).then(pl.lit(_MSA)).otherwise(pl.lit(_TRITON))
    is_blocks = pl.col("kv_heads").is_not_null() & (engine == "vllm")
    default = pl.when(pl.col("span") > 1).then(entry_kernel).when(is_blocks).then(block_kernel)
    return rows.with_columns(
        engine.alias("backend"), pl.coalesce("kernel", default).alias("kernel")
    )


def layer_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with sizes of layers or indexers, [rows, 1], in elements and positions."""
    heads, latent = column(rows, "heads", 0.0), column(rows, "latent", 0.0)
    entry = latent + column(rows, "rope_dim", 0.0)
    return {
        **common(rows, n),
        "heads": heads,
        "together": (rows["api"].fill_null("") == VERIFY).to_numpy()[:, None].astype(float),
        "d_model": column(rows, "d_model", 0.0),
        "projected": column(rows, "projected", 0.0),
        "span": column(rows, "span", 1.0),
        "selected": column(rows, "selected", np.inf),
        "pair_width": np.where(latent > 0, entry + latent, 2.0 * column(rows, "head_dim", 0.0)),
        "index_width": column(rows, "index_heads", 0.0) * column(rows, "index_dim", 0.0),
        "index_stored": column(rows, "index_dim", 0.0),
    }


def indexer_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with sizes of an indexer, [rows, 1]; a selection has no products."""
    features = layer_features(rows, n)
    width = column(rows, "head_dim", 0.0)
    is_selection = (rows["api"].fill_null("") == SELECT).to_numpy()[:, None]
    zero = np.zeros_like(width)
    return {
        **features,
        "index_width": np.where(is_selection, zero, features["heads"] * width),
        "index_stored": np.where(is_selection, zero, width),
    }


def layer_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of an attention layer over L cached positions, [rows, grid], in microseconds.

    Features are those of `layer_features`; `context` is [rows, grid] where it varies.
    """
    tokens = features["tokens"]
    beta = values["bandwidth_share"] * features["beta"]
    weights_us = features["projected"] * features["element_bytes"] / beta
    products_us = 2.0 * tokens * features["projected"] / (values["phi_share"] * features["phi"])
    projections_us = power_mean_sum(values["overlap"], weights_us + 0.0 * products_us, products_us)
    keys = np.minimum(_entries(features, mean=True), features["selected"])
    tile_heads = np.minimum(features["heads"], _HEADS_PER_TILE)
    tiles = tokens * np.ceil(features["heads"] / _HEADS_PER_TILE)
    feed_rate = values["tflop_s_per_sm"] * FLOP_PER_US
    tile_us = 2.0 * tile_heads * features["pair_width"] * keys / feed_rate + values["tile_us"]
    attention_us = np.ceil(tiles / features["sms"]) * tile_us
    passes_us = values["passes"] * tokens * features["d_model"] * 2.0 / beta
    index_us = np.where(features["index_width"] > 0, _indexed_us(features, values, beta), 0.0)
    return power_mean_sum(
        values["sharpness"],
        values["host_us"] + 0.0 * products_us,
        projections_us + attention_us + index_us + passes_us,
    )


def decode_us(features: Features, values: Values, hypothesis: str) -> Array:
    """Return T(N) with each of the b N positions as a row of its own, in the form of `layer_us`.

    Each row reads its entries and index keys, also those that the rows of one request share, unless
    the call reads the index keys of a request together.
    """
    tokens = features["tokens"]
    reads = np.where(features["together"] > 0, features["batch"] + 0.0 * tokens, tokens)
    rows = {**features, "n": np.ones_like(tokens), "batch": reads}
    return layer_us(rows, values, hypothesis)


def indexer_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of an indexer's logits, or of its selection, [rows, grid], in microseconds.

    Features are those of `indexer_features`.
    """
    beta = values["bandwidth_share"] * features["beta"]
    return np.asarray(values["host_us"] + _indexed_us(features, values, beta))


def _entries(features: Features, *, mean: bool) -> Array:
    """Return the entries of a request, or the mean number that a new position attends to."""
    n = features["n"]
    return np.asarray((features["context"] + ((n + 1.0) / 2.0 if mean else n)) / features["span"])


def _indexed_us(features: Features, values: Values, beta: Array) -> Array:
    """Return the time of logits over all entries: waves of tiles, plus traffic."""
    entries, tokens = _entries(features, mean=True), features["tokens"]
    feed_rate = values.get("index_tflop_s_per_sm", np.inf) * FLOP_PER_US
    waves = np.ceil(tokens / (_INDEXER_TILE * features["sms"]))
    compute_us = waves * _INDEXER_TILE * 2.0 * features["index_width"] * entries / feed_rate
    key_elements = features["batch"] * _entries(features, mean=False) * features["index_stored"]
    traffic_us = (key_elements * features["cache_bytes"] + _SCORE_BYTES * tokens * entries) / beta
    return np.asarray(compute_us + traffic_us)


_BANDWIDTH = Constant("bandwidth_share", "1", 0.7, 0.02, 1.5,
                      "share of beta that weights, entries and numbers reach")  # fmt: skip
_INDEX = Constant("index_tflop_s_per_sm", "TFLOP/s", 4.0, 0.02, 200.0,
                  "what an SM computes of an indexer's numbers")  # fmt: skip
_HOST = Constant("host_us", "us", 60.0, 1.0, 5000.0,
                 "what launching a layer's kernels takes")  # fmt: skip
LAYER = Family(
    name="layer_attention",
    meaning="an attention layer of N positions over a cache: the sum of its kernels over a floor",
    limit=Limit("projections, indexer and selected positions over the launches",
                "projections, indexer and selected tokens take longer than the launches"),
    modules=(ATTENTION_LAYER.name,),
    constants=(
        _HOST,
        Constant("phi_share", "1", 0.5, 0.02, 1.5, "share of phi that projections reach"),
        _BANDWIDTH,
        Constant("overlap", "1", 2.0, 1.0, 8.0,
                 "p of the projections: how well products and weights overlap"),
        Constant("tflop_s_per_sm", "TFLOP/s", 2.0, 0.02, 100.0,
                 "what an SM computes of attention to selected entries"),
        Constant("tile_us", "us", 1.0, 0.0, 200.0, "what one position's tile costs an SM besides"),
        _INDEX,
        Constant("passes", "1", 10.0, 0.0, 500.0,
                 "times that the hidden state is read or written between kernels"),
        Constant("sharpness", "1", 3.0, 1.0, 8.0, "p: how well launching and computing overlap"),
    ),
    hypotheses=("sum_of_kernels",),
    latency_us=layer_us,
    features=layer_features,
)  # fmt: skip
DECODE_LAYER = Family(
    name="decode_layer",
    meaning="an attention layer over a cache, each position a row of its own",
    limit=LAYER.limit,
    modules=(ATTENTION_LAYER.name,),
    covers=lambda _backend, _kernel, _cached: False,
    constants=LAYER.constants,
    hypotheses=LAYER.hypotheses,
    latency_us=decode_us,
    features=layer_features,
)
"""The family of questions whose `api` is `decode` or `verify`."""
INDEXER_LOGITS = Family(
    name="indexer_logits",
    meaning="an indexer's numbers of N positions over all entries",
    limit=Limit(
        "numbers over all entries", "the indexer scores every cached token for each position"
    ),
    modules=(INDEXER.name,),
    constants=(_HOST, _BANDWIDTH, _INDEX),
    hypotheses=("waves_of_four",),
    latency_us=indexer_us,
    features=indexer_features,
)
INDEXER_SELECT = Family(
    name="indexer_select",
    meaning="the choice of the largest of an indexer's numbers",
    limit=Limit("a pass over all numbers", "the selection reads every score for each position"),
    modules=(INDEXER.name,),
    covers=lambda _backend, _kernel, _cached: False,
    constants=(_HOST, _BANDWIDTH),
    hypotheses=("one_pass",),
    latency_us=indexer_us,
    features=indexer_features,
)
"""The family of questions whose `api` is `select`."""
