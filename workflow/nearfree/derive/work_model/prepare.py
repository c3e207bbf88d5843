"""Questions sorted by family, with the arrays that each family's form asks for."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nearfree.backends.moe_kernels import NAIVE
from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.indexer import LOGITS
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.core.precision import ELEMENT_BYTES, RESULT_BYTES
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.steps import Steps, block_sizes
from nearfree.derive.granularity.tile_grid import tile_sizes
from nearfree.derive.granularity.tiles import Integers
from nearfree.derive.laws.spread import spread_of
from nearfree.derive.work_model.attention import ATTENTION_CACHED
from nearfree.derive.work_model.attention_rows import decode_tiles, decoders, measured_curves
from nearfree.derive.work_model.collective import COLLECTIVE
from nearfree.derive.work_model.delta_net import DELTA_NET, MAMBA2, state_features
from nearfree.derive.work_model.dense_rows import dense_sizes
from nearfree.derive.work_model.families import FAMILIES, carried, family_of, times_refusal
from nearfree.derive.work_model.family import Array, Family, Features, Fitted, Flags, column
from nearfree.derive.work_model.launches import eager_us
from nearfree.derive.work_model.layer import (
    DECODE_LAYER,
    INDEXER_LOGITS,
    INDEXER_SELECT,
    LAYER,
    indexer_features,
    layer_features,
    layer_kernels,
)
from nearfree.derive.work_model.links import collective_features
from nearfree.derive.work_model.mla import MLA_CACHED, MLA_PREFILL, MLA_SELECTED, mla_features
from nearfree.derive.work_model.mla_rows import mla_kernels, mla_tiles
from nearfree.derive.work_model.moe import MOE_TRITON, with_loads
from nearfree.derive.work_model.quantised import HOPPER, TRTLLM_CUTLASS, pass_bytes, token_tiles
from nearfree.derive.work_model.short_conv import SHORT_CONV, conv_features
from nearfree.derive.work_model.stream_mixing import STREAM_MIXING, mixing_features
from nearfree.errors import NearfreeError
from nearfree.hardware.platforms import shared_memory
from nearfree.sources.answers.moe import Block
from nearfree.sources.mla_paths import ENGINES
from nearfree.units import US_PER_S

_FLOP_PER_TFLOP = 1e12
_BYTES_PER_GB = 1e9
_GATED, _PLAIN = 3.0, 2.0


def grids(rows: pl.DataFrame) -> tuple[Array, Flags]:
    """Return N [rows, grid] and which of it is a row's own; shorter grids repeat their last N."""
    lengths = rows["grid"].list.len().to_numpy()
    width = int(lengths.max(initial=0))
    return padded(rows["grid"], width), np.arange(width)[None, :] < lengths[:, None]


def padded(lists: pl.Series, width: int) -> Array:
    """Return lists as [rows, width], where shorter ones repeat their last value."""
    lengths = lists.list.len().to_numpy().astype(np.int64)[:, None]
    first = np.cumsum(lengths, axis=0) - lengths
    values = lists.explode().cast(pl.Float64).to_numpy()
    return np.asarray(values[first + np.minimum(np.arange(width), lengths - 1)])


def common(rows: pl.DataFrame, n: Array) -> dict[str, Array]:
    """Return what every form asks for: phi in FLOP/us, beta in bytes/us, SMs, b N, and each s."""
    return {
        "phi": column(rows, "peak_tflops") * (_FLOP_PER_TFLOP / US_PER_S),
        "beta": column(rows, "bandwidth_gb_s") * (_BYTES_PER_GB / US_PER_S),
        "sms": column(rows, "sm_count"),
        "element_bytes": _sizes(rows["dtype"]),
        "weight_bytes": _sizes(rows["weights"].fill_null(rows["dtype"])),
        "result_bytes": _sizes(rows["dtype"], RESULT_BYTES),
        "cache_bytes": _sizes(rows["kv_dtype"].fill_null(rows["dtype"])),
        "n": n,
        "grid": n,
        "tokens": column(rows, "batch") * n,
    }


def gemm_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of rows of `gemm`, or of rows of `dense_ffn`: one module at a time.

    Gate and up of a gated FFN are one product, as engines run them.
    """
    shared = common(rows, n)
    d_model, d_ff = column(rows, "d_model"), column(rows, "d_ff")
    matrices = [(d_model, d_ff, 1.0)]
    if rows["module"][0] == "dense_ffn":
        gated = rows["gated"].fill_null(value=False).to_numpy()[:, None]
        matrices = [(d_model, np.where(gated, 2.0, 1.0) * d_ff, 1.0), (d_ff, d_model, 1.0)]
    return {**shared, "rows": shared["tokens"], "matrices": matrices}


def moe_features(rows: pl.DataFrame, n: Array, *, triton: bool) -> dict[str, Any]:
    """Return the features of MoE layers without the blocks that a release's rules say.

    `spread` is the law of uneven loads, None where they are even; `shares` of rows are measured.

    Parameters
    ----------
    triton
        Whether they are Triton's fused layers, all of them.
    """
    shares = rows["shares"].to_list() if "shares" in rows.columns else [None] * rows.height
    loads = dict(zip(rows["routing"].to_list(), shares, strict=True))
    laws = {routing: spread_of(routing, each) for routing, each in loads.items()}
    gated = rows["gated"].fill_null(value=True).to_numpy()[:, None]
    layer = {
        **common(rows, n),
        "local_experts": np.ceil(column(rows, "experts") / column(rows, "ep")),
        **{name: column(rows, name) for name in ("experts", "top_k", "ep", "d_model", "d_ff")},
        "skewed": (rows["routing"] == "skewed").to_numpy().astype(np.float64)[:, None],
        "spread": np.array([[laws[key]] for key in rows["routing"].to_list()], dtype=object),
        "matrices": np.where(gated, _GATED, _PLAIN),
        "eager": (eager_us(rows) > 0).astype(np.float64),
    }
    routed = rows.select(
        (pl.col("dtype") == "float8_block")
        & (pl.col("sm") == HOPPER)
        & pl.col("kernel").fill_null("").str.contains(TRTLLM_CUTLASS)
    ).to_numpy()
    if triton:
        layer |= {"sm": column(rows, "sm"), "smem_bytes": _smem_bytes(rows["sm"])}
    return layer | {
        "pass_bytes": pass_bytes(layer, triton=triton, routed=routed),
        "tile_m": token_tiles(layer["tokens"], layer["sms"], routed),
    }


def _smem_bytes(capabilities: pl.Series) -> Array:
    """Return the shared memory of an SM by its compute capability, [rows, 1]."""
    sizes = {sm: float(shared_memory(sm).per_sm) for sm in capabilities.drop_nulls().unique()}
    return capabilities.replace_strict(sizes, return_dtype=pl.Float64).to_numpy()[:, None]


def attention_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of attention without its tiles."""
    names = ("batch", "context", "heads", "kv_heads", "head_dim")
    return {**common(rows, n), **{name: column(rows, name) for name in names}}


def _sizes(formats: pl.Series, sizes: Mapping[str, float] = ELEMENT_BYTES) -> Array:
    """Return the bytes of an element of each format, as [rows, 1]."""
    return np.array([sizes[each] for each in formats])[:, None]


ROWS_AT_ONCE = 20_000
PACKING = r"(?i)flash|fa[234]\b"
"""Attention kernels that put the query heads of a key-value head on one row axis, by name."""
_PREFILL_TILE = 128.0
RAN = "ran"
"""The column of questions whose kernel several engines run: its name, whoever measured it."""
CARRIED_BAND = 2.0
"""How many times wider a band is where constants are carried to formats they were not fitted to:
fixed before any score of such a format was seen, and not fitted since."""


class Prepared(Struct, frozen=True, kw_only=True):
    """Questions of one family: their keys, arrays, and which points are a row's own grid.

    `carried` says to which formats constants are carried, where they were not fitted to them.
    """

    family: Family
    rows: pl.DataFrame
    features: Features
    counts: Flags
    carried: str | None = None

    def fitted(self, known: Fitted) -> Fitted:
        """Return constants as they hold for these questions: carried, in a wider band."""
        wider = known.band * CARRIED_BAND
        return known if self.carried is None else structs.replace(known, band=wider)


class Refused(Struct, frozen=True):
    """Questions that no T(N) is known of: `asked` and `refusal`."""

    rows: pl.DataFrame


_TOGETHER = ("operation",)
"""Fields in which questions of a part agree, besides module and formats."""


def prepare(
    rows: pl.DataFrame, resolver: Resolver, at_once: int = ROWS_AT_ONCE
) -> Iterator[Prepared | Refused]:
    """Yield questions by family, module and formats, so many at once at most, and those refused.

    Parameters
    ----------
    rows
        Questions with the facts of their platform; each grid rises and begins at its baseline.
        Those of measured loads have them as `shares`, [layers, E].
    """
    formed = rows.with_columns(family_of(rows))
    judged = formed.with_columns(times_refusal().alias("refusal"), carried().alias("carried"))
    yield Refused(judged.filter(pl.col("refusal").is_not_null()).select("asked", "refusal"))
    open_ = judged.filter(pl.col("refusal").is_null())
    asked = set(open_["family"])
    for name in filter(asked.__contains__, FAMILIES):
        mine = open_.filter(pl.col("family") == name)
        for _, part in mine.group_by("module", "carried", *_TOGETHER, maintain_order=True):
            for begin in range(0, part.height, at_once):
                yield from _prepared(FAMILIES[name], part[begin : begin + at_once], resolver)


def _prepared(
    family: Family, rows: pl.DataFrame, resolver: Resolver
) -> Iterator[Prepared | Refused]:
    ruled = {"moe_triton": _moe_rules, "attention_cached": _attention_rules}.get(family.name)
    rule_sizes: dict[str, Array] = {}
    if ruled is not None or family in _LATENT:
        n, _ = grids(rows)
        rule_sizes, refusals = ruled(rows, n, resolver) if ruled else mla_tiles(rows, n)
        refused = pl.Series("refusal", refusals, dtype=pl.String)
        yield Refused(rows.select("asked", refused).drop_nulls("refusal"))
        known = refused.is_null()
        rows = rows.filter(known)
        rule_sizes = {name: values[known.to_numpy()] for name, values in rule_sizes.items()}
    if rows.is_empty():
        return
    n, counts = grids(rows)
    width = n.shape[1]
    if family.name == "gemm":
        rule_sizes = dense_sizes(rows, n, resolver)
    features = _features(family, rows, n) | {k: v[:, :width] for k, v in rule_sizes.items()}
    if family.modules == MOE_TRITON.modules:
        features = with_loads(features)
    if family in _LATENT:
        features |= mla_features(rows, features["naive"])
    if family in (MLA_CACHED, MLA_SELECTED):
        rows = rows.with_columns(pl.Series(RAN, mla_kernels(rows), dtype=pl.String))
    if family is ATTENTION_CACHED:
        rows = rows.with_columns(pl.Series(RAN, decoders(rows), dtype=pl.String))
    if family in (LAYER, DECODE_LAYER):
        rows = layer_kernels(rows)
    if family.modules == INDEXER:
        rows = rows.with_columns(_index_kernel().alias(RAN))
    yield Prepared(
        family=family, rows=rows, features=features, counts=counts, carried=rows["carried"][0]
    )


def _features(family: Family, rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    if family.name == "gemm":
        return gemm_features(rows, n)
    if family.name.startswith("moe"):
        return moe_features(rows, n, triton=family is MOE_TRITON)
    if family.modules == COLLECTIVE:
        return collective_features(family.name, rows, n)
    if family.name in _SIZES:
        cached = {name: column(rows, name) for name in ("batch", "context")}
        return {**common(rows, n), **cached, **_SIZES[family.name](rows)}
    found = attention_features(rows, n)
    packs = rows["kernel"].fill_null("").str.contains(PACKING).to_numpy()[:, None]
    group = column(rows, "heads") / column(rows, "kv_heads")
    return found | {
        "tile_rows": np.full(n.shape, _PREFILL_TILE),
        "rows_per_position": np.broadcast_to(np.where(packs, group, 1.0), n.shape),
    }


INDEXER = ("indexer",)
_PAGED = "paged_mqa_logits"


def _index_kernel() -> pl.Expr:
    """Return the kernel of an indexer's call: engines decode with DeepGEMM's over pages."""
    named = pl.col("kernel").str.contains(_PAGED, literal=True)
    decoding = pl.col("kernel").is_null() & pl.col("backend").is_in(ENGINES)
    numbers = pl.col("api").fill_null(LOGITS) == LOGITS
    return pl.when(numbers & (named | decoding)).then(pl.lit(_PAGED)).otherwise("kernel")


_LATENT = (MLA_PREFILL, MLA_CACHED, MLA_SELECTED)
_SIZES: dict[str, Callable[[pl.DataFrame], dict[str, Array]]] = {
    **dict.fromkeys((each.name for each in _LATENT), lambda _rows: {}),
    **dict.fromkeys((LAYER.name, DECODE_LAYER.name), layer_features),
    **dict.fromkeys((INDEXER_LOGITS.name, INDEXER_SELECT.name), indexer_features),
    **dict.fromkeys((DELTA_NET.name, MAMBA2.name), state_features),
    SHORT_CONV.name: conv_features,
    STREAM_MIXING.name: mixing_features,
}
"""Families whose features are sizes of their rows, beside what every form asks for."""


def _moe_rules(
    rows: pl.DataFrame, n: Array, resolver: Resolver
) -> tuple[dict[str, Array], list[str | None]]:
    """Return the sizes of blocks [rows, grid] by name, and why where no rule says them.

    `unaligned` is 1 where the release gives each pair a block of its own.
    """
    tokens = (column(rows, "batch") * n).astype(np.int64)
    names = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "unaligned")
    sizes = np.ones((len(names), *n.shape))
    refused: list[str | None] = [None] * rows.height
    alike: dict[Steps[Block], list[int]] = {}
    for place, row in enumerate(rows.select(MoeQuestion.__struct_fields__).iter_rows(named=True)):
        try:
            alike.setdefault(resolver.moe(MoeQuestion(**row)), []).append(place)
        except NearfreeError as error:
            refused[place] = error.what
    for steps, places in alike.items():
        try:
            sizes[:, places] = _blocks(steps, tokens[places])
        except NearfreeError:  # at some numbers of tokens
            for place in places:
                try:
                    sizes[:, place] = _blocks(steps, tokens[place])
                except NearfreeError as error:
                    refused[place] = error.what
    return dict(zip(names, sizes, strict=True)), refused


def _blocks(steps: Steps[Block], tokens: Integers) -> Integers:
    """Return `block_sizes` at numbers of tokens, and 1 where pairs share no block, [6, ...]."""
    numbers, places = np.unique(tokens, return_inverse=True)
    alone = np.array([int(steps.at(each).path == NAIVE) for each in numbers.tolist()], np.int64)
    return np.concatenate([block_sizes(steps, tokens), alone[places.reshape(1, *tokens.shape)]])


def _attention_rules(
    rows: pl.DataFrame, n: Array, resolver: Resolver
) -> tuple[dict[str, Array], list[str | None]]:
    """Return the sizes of tiles [rows, grid] by name, and why where no rule says them.

    A public curve's point is of one position, whose tile no rule need say.
    """
    curves = measured_curves(rows) & (n == 1).all(axis=1)
    given = rows.with_columns(pl.col("grid").list.max().alias("most"))
    fields = AttentionQuestion.__struct_fields__
    asked = [
        AttentionQuestion(**row)
        for row in given.filter(~pl.Series(curves)).select(fields).iter_rows(named=True)
    ]
    sizes, errors = tile_sizes(resolver, asked, n[~curves].astype(np.int64))
    refused: list[str | None] = [None] * rows.height
    for place, error in zip(np.flatnonzero(~curves), errors, strict=True):
        refused[place] = None if error is None else error.what
    found = decode_tiles(np.ones_like(n), column(rows, "heads") / column(rows, "kv_heads"))
    for name, values in zip(found, sizes.astype(float), strict=True):
        found[name][~curves] = values
    return found, refused
