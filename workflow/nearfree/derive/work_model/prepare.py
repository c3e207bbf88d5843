"""Questions grouped by family, with the arrays that the family's form reads."""

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
from nearfree.hardware.occupancy import shared_memory
from nearfree.sources.answers.moe import Block
from nearfree.sources.mla_paths import ENGINES
from nearfree.units import US_PER_S

_FLOP_PER_TFLOP = 1e12
_BYTES_PER_GB = 1e9
_GATED, _PLAIN = 3.0, 2.0


def grids(rows: pl.DataFrame) -> tuple[Array, Flags]:
    """Return N and flags of a row's own points, [rows, grid]; shorter grids repeat their last N."""
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
    """Return the common features: phi in FLOP/us, beta in bytes/us, SMs, b N, bytes of elements."""
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
    """Return the features of rows of `gemm` or of `dense_ffn`, but not of both.

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
    """Return the features of MoE layers without the blocks of a release's rules.

    `spread` is the law of uneven loads, None for even loads; a column `shares` has measured loads.

    Parameters
    ----------
    triton
        Whether all of them are Triton's fused layers.
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
        "matrices": np.where(gated, _GATED, _PLAIN),
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


def attention_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of attention without its tiles."""
    names = ("batch", "context", "heads", "kv_heads", "head_dim")
    return {**common(rows, n), **{name: column(rows, name) for name in names}}


def _sizes(formats: pl.Series, sizes: Mapping[str, float] = ELEMENT_BYTES) -> Array:
    """Return the bytes of an element of each format, as [rows, 1]."""
    return np.array([sizes[format_] for format_ in formats])[:, None]


ROWS_AT_ONCE = 20_000
PACKING = r"(?i)flash|fa[234]\b"
"""Names of attention kernels that put the query heads of a key-value head on one row axis."""
_PREFILL_TILE = 128.0
RAN = "ran"
"""The column with the kernel's name in questions whose kernel several engines run."""
CARRIED_BAND = 2.0
"""Factor of the band where constants are carried to formats that they were not fitted to. It was
set before any score of such a format was seen, and not fitted since."""


class Prepared(Struct, frozen=True, kw_only=True):
    """Questions of one family: their rows, features, and which points belong to a row's grid.

    `carried` is a text on the formats that constants are carried to, None for fitted formats.
    """

    family: Family
    rows: pl.DataFrame
    features: Features
    counts: Flags
    carried: str | None = None

    def fitted(self, constants: Fitted) -> Fitted:
        """Return constants for these questions: with a wider band if they are carried."""
        wider = constants.band * CARRIED_BAND
        return constants if self.carried is None else structs.replace(constants, band=wider)


class Refused(Struct, frozen=True):
    """Questions without T(N): `asked` and `refusal`."""

    rows: pl.DataFrame


_TOGETHER = ("operation",)
"""Fields that all questions of a part share, besides module and formats."""


def prepare(
    rows: pl.DataFrame, resolver: Resolver, at_once: int = ROWS_AT_ONCE
) -> Iterator[Prepared | Refused]:
    """Yield questions by family, module and formats, at most `at_once` each, and the refused ones.

    Parameters
    ----------
    rows
        Questions with the facts of their platform; each grid is ascending and begins at its
        baseline. Measured loads are in `shares`, [layers, E].
    """
    with_family = rows.with_columns(family_of(rows))
    checked = with_family.with_columns(times_refusal().alias("refusal"), carried().alias("carried"))
    yield Refused(checked.filter(pl.col("refusal").is_not_null()).select("asked", "refusal"))
    answerable = checked.filter(pl.col("refusal").is_null())
    names = set(answerable["family"])
    for name in filter(names.__contains__, FAMILIES):
        family_rows = answerable.filter(pl.col("family") == name)
        for _, part in family_rows.group_by("module", "carried", *_TOGETHER, maintain_order=True):
            for begin in range(0, part.height, at_once):
                yield from _prepared(FAMILIES[name], part[begin : begin + at_once], resolver)


def _prepared(
    family: Family, rows: pl.DataFrame, resolver: Resolver
) -> Iterator[Prepared | Refused]:
    apply_rules = {"moe_triton": _moe_rules, "attention_cached": _attention_rules}.get(family.name)
    rule_sizes: dict[str, Array] = {}
    if apply_rules is not None or family in _LATENT:
        n, _ = grids(rows)
        rule_sizes, refusals = apply_rules(rows, n, resolver) if apply_rules else mla_tiles(rows, n)
        refusal = pl.Series("refusal", refusals, dtype=pl.String)
        yield Refused(rows.select("asked", refusal).drop_nulls("refusal"))
        has_rules = refusal.is_null()
        rows = rows.filter(has_rules)
        rule_sizes = {name: values[has_rules.to_numpy()] for name, values in rule_sizes.items()}
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
        sizes = {name: column(rows, name) for name in ("batch", "context")}
        return {**common(rows, n), **sizes, **_SIZES[family.name](rows)}
    features = attention_features(rows, n)
    is_packed = rows["kernel"].fill_null("").str.contains(PACKING).to_numpy()[:, None]
    group = column(rows, "heads") / column(rows, "kv_heads")
    return features | {
        "tile_rows": np.full(n.shape, _PREFILL_TILE),
        "rows_per_position": np.broadcast_to(np.where(is_packed, group, 1.0), n.shape),
    }


INDEXER = ("indexer",)
_PAGED = "paged_mqa_logits"


def _index_kernel() -> pl.Expr:
    """Return the kernel of an indexer's call; engines decode with DeepGEMM's paged one."""
    is_paged = pl.col("kernel").str.contains(_PAGED, literal=True)
    decodes = pl.col("kernel").is_null() & pl.col("backend").is_in(ENGINES)
    is_logits = pl.col("api").fill_null(LOGITS) == LOGITS
    return pl.when(is_logits & (is_paged | decodes)).then(pl.lit(_PAGED)).otherwise("kernel")


_LATENT = (MLA_PREFILL, MLA_CACHED, MLA_SELECTED)
_SIZES: dict[str, Callable[[pl.DataFrame], dict[str, Array]]] = {
    **dict.fromkeys((family.name for family in _LATENT), lambda _rows: {}),
    **dict.fromkeys((LAYER.name, DECODE_LAYER.name), layer_features),
    **dict.fromkeys((INDEXER_LOGITS.name, INDEXER_SELECT.name), indexer_features),
    **dict.fromkeys((DELTA_NET.name, MAMBA2.name), state_features),
    SHORT_CONV.name: conv_features,
    STREAM_MIXING.name: mixing_features,
}
"""Functions of the size features of families, which come on top of the common features."""


def _moe_rules(
    rows: pl.DataFrame, n: Array, resolver: Resolver
) -> tuple[dict[str, Array], list[str | None]]:
    """Return the sizes of blocks by name, [rows, grid], and the refusal of each row, or None.

    `unaligned` is 1 where the release gives each pair a block of its own.
    """
    tokens = (column(rows, "batch") * n).astype(np.int64)
    names = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "unaligned")
    sizes = np.ones((len(names), *n.shape))
    refusals: list[str | None] = [None] * rows.height
    rows_by_steps: dict[Steps[Block], list[int]] = {}
    for index, row in enumerate(rows.select(MoeQuestion.__struct_fields__).iter_rows(named=True)):
        try:
            rows_by_steps.setdefault(resolver.moe(MoeQuestion(**row)), []).append(index)
        except NearfreeError as error:
            refusals[index] = error.what
    for steps, indices in rows_by_steps.items():
        try:
            sizes[:, indices] = _blocks(steps, tokens[indices])
        except NearfreeError:  # at some numbers of tokens
            for index in indices:
                try:
                    sizes[:, index] = _blocks(steps, tokens[index])
                except NearfreeError as error:
                    refusals[index] = error.what
    return dict(zip(names, sizes, strict=True)), refusals


def _blocks(steps: Steps[Block], tokens: Integers) -> Integers:
    """Return `block_sizes` at numbers of tokens, and 1 where pairs share no blocks, [6, ...]."""
    numbers, inverse = np.unique(tokens, return_inverse=True)
    unaligned = np.array(
        [int(steps.at(number).path == NAIVE) for number in numbers.tolist()], np.int64
    )
    return np.concatenate(
        [block_sizes(steps, tokens), unaligned[inverse.reshape(1, *tokens.shape)]]
    )


def _attention_rules(
    rows: pl.DataFrame, n: Array, resolver: Resolver
) -> tuple[dict[str, Array], list[str | None]]:
    """Return the sizes of tiles by name, [rows, grid], and the refusal of each row, or None.

    A public curve's point of one position needs no rule.
    """
    curves = measured_curves(rows) & (n == 1).all(axis=1)
    with_most = rows.with_columns(pl.col("grid").list.max().alias("most"))
    fields = AttentionQuestion.__struct_fields__
    questions = [
        AttentionQuestion(**row)
        for row in with_most.filter(~pl.Series(curves)).select(fields).iter_rows(named=True)
    ]
    sizes, errors = tile_sizes(resolver, questions, n[~curves].astype(np.int64))
    refusals: list[str | None] = [None] * rows.height
    for index, error in zip(np.flatnonzero(~curves), errors, strict=True):
        refusals[index] = None if error is None else error.what
    tiles = decode_tiles(np.ones_like(n), column(rows, "heads") / column(rows, "kv_heads"))
    for name, values in zip(tiles, sizes.astype(float), strict=True):
        tiles[name][~curves] = values
    return tiles, refusals
