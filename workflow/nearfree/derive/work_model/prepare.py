"""Questions grouped by family, with the arrays that the family's form reads."""

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nearfree.core.modules.indexer import LOGITS
from nearfree.derive.granularity.query_frame import attention_questions, moe_questions
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.steps import Steps, block_sizes
from nearfree.derive.granularity.tile_grid import tile_sizes
from nearfree.derive.work_model.attention import (
    ATTENTION_CACHED,
    decode_tiles,
    decoders,
    measured_curves,
)
from nearfree.derive.work_model.families import FAMILIES, carried, family_of, times_refusal
from nearfree.derive.work_model.family import Array, Family, Features, Fitted, Flags, column
from nearfree.derive.work_model.gemm import dense_sizes
from nearfree.derive.work_model.layer import (
    DECODE_LAYER,
    INDEXER_LOGITS,
    INDEXER_SELECT,
    LAYER,
    layer_kernels,
)
from nearfree.derive.work_model.mla import (
    LATENT,
    MLA_CACHED,
    MLA_SELECTED,
    mla_features,
    mla_kernels,
    mla_tiles,
)
from nearfree.derive.work_model.moe import MOE_TRITON, with_loads
from nearfree.errors import NearfreeError
from nearfree.sources.answers.moe import Block
from nearfree.sources.mla_paths import ENGINES


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


ROWS_AT_ONCE = 20_000
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


Sizes = tuple[dict[str, Array], list[str | None]]
"""Sizes that rules give by name, [rows, grid], and the refusal of each row, or None."""


class Refused(Struct, frozen=True):
    """Questions without T(N): `asked` and `refusal`."""

    rows: pl.DataFrame


def prepare(
    rows: pl.DataFrame, resolver: Resolver, at_once: int = ROWS_AT_ONCE
) -> Iterator[Prepared | Refused]:
    """Yield questions by family, module, formats and operation, at most `at_once` each.

    Those without T(N) are yielded as refused.

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
        for _, part in family_rows.group_by("module", "carried", "operation", maintain_order=True):
            for begin in range(0, part.height, at_once):
                yield from _prepared(FAMILIES[name], part[begin : begin + at_once], resolver)


def _prepared(
    family: Family, rows: pl.DataFrame, resolver: Resolver
) -> Iterator[Prepared | Refused]:
    rule_sizes: dict[str, Array] = {}
    if family.name in _RULES:
        n, _ = grids(rows)
        rule_sizes, refusals = _RULES[family.name](rows, n, resolver)
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
    features = family.features(rows, n) | {k: v[:, :width] for k, v in rule_sizes.items()}
    if family.modules == MOE_TRITON.modules:
        features = with_loads(features)
    if family in LATENT:
        features |= mla_features(rows, features["naive"])
    if family in (LAYER, DECODE_LAYER):
        rows = layer_kernels(rows)
    if family.name in _KERNELS:
        rows = rows.with_columns(pl.Series(RAN, _KERNELS[family.name](rows), dtype=pl.String))
    yield Prepared(
        family=family, rows=rows, features=features, counts=counts, carried=rows["carried"][0]
    )


_PAGED = "paged_mqa_logits"


def _index_kernels(rows: pl.DataFrame) -> pl.Series:
    """Return the kernels of indexers' calls; engines decode with DeepGEMM's paged one."""
    is_paged = pl.col("kernel").str.contains(_PAGED, literal=True)
    decodes = pl.col("kernel").is_null() & pl.col("backend").is_in(ENGINES)
    is_logits = pl.col("api").fill_null(LOGITS) == LOGITS
    kernel = pl.when(is_logits & (is_paged | decodes)).then(pl.lit(_PAGED)).otherwise("kernel")
    return rows.select(kernel.alias(RAN))[RAN]


def _moe_rules(rows: pl.DataFrame, n: Array, resolver: Resolver) -> Sizes:
    """Return the sizes of blocks by name, [rows, grid], and the refusal of each row, or None.

    `unaligned` is 1 where the release gives each pair a block of its own.
    """
    tokens = (column(rows, "batch") * n).astype(np.int64)
    names = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "unaligned")
    sizes = np.ones((len(names), *n.shape))
    refusals: list[str | None] = [None] * rows.height
    rows_by_steps: dict[Steps[Block], list[int]] = {}
    for index, question in enumerate(moe_questions(rows)):
        try:
            rows_by_steps.setdefault(resolver.moe(question), []).append(index)
        except NearfreeError as error:
            refusals[index] = error.what
    for steps, indices in rows_by_steps.items():
        try:
            sizes[:, indices] = block_sizes(steps, tokens[indices])
        except NearfreeError:  # at some numbers of tokens
            for index in indices:
                try:
                    sizes[:, index] = block_sizes(steps, tokens[index])
                except NearfreeError as error:
                    refusals[index] = error.what
    return dict(zip(names, sizes, strict=True)), refusals


def _attention_rules(rows: pl.DataFrame, n: Array, resolver: Resolver) -> Sizes:
    """Return the sizes of tiles by name, [rows, grid], and the refusal of each row, or None.

    A public curve's point of one position needs no rule.
    """
    curves = measured_curves(rows) & (n == 1).all(axis=1)
    questions = attention_questions(rows.filter(~pl.Series(curves)))
    sizes, errors = tile_sizes(resolver, questions, n[~curves].astype(np.int64))
    refusals: list[str | None] = [None] * rows.height
    for index, error in zip(np.flatnonzero(~curves), errors, strict=True):
        refusals[index] = None if error is None else error.what
    tiles = decode_tiles(np.ones_like(n), column(rows, "heads") / column(rows, "kv_heads"))
    for name, values in zip(tiles, sizes.astype(float), strict=True):
        tiles[name][~curves] = values
    return tiles, refusals


_RULES: dict[str, Callable[[pl.DataFrame, Array, Resolver], Sizes]] = {
    MOE_TRITON.name: _moe_rules,
    ATTENTION_CACHED.name: _attention_rules,
    **dict.fromkeys((family.name for family in LATENT), lambda rows, n, _: mla_tiles(rows, n)),
}
"""Functions of the sizes that rules give, by family: sizes by name, [rows, grid], and refusals."""
_KERNELS: dict[str, Callable[[pl.DataFrame], pl.Series | list[str] | list[str | None]]] = {
    **dict.fromkeys((MLA_CACHED.name, MLA_SELECTED.name), mla_kernels),
    ATTENTION_CACHED.name: decoders,
    **dict.fromkeys((INDEXER_LOGITS.name, INDEXER_SELECT.name), _index_kernels),
}
"""Functions of the kernels that several engines run, by family."""
