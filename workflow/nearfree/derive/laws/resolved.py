"""What the rules of releases put into the law: M_moe with its tau, and M_attn, by question."""

from collections.abc import Callable
from typing import Any

import polars as pl

from nearfree.derive.granularity.resolve import AttentionQuestion, MoeQuestion, Resolver
from nearfree.errors import NearfreeError

RESOLVED_SCHEMA = {
    "m_moe": pl.Int64,
    "tau": pl.Int64,
    "m_attn": pl.Float64,
    "rule": pl.String,
    "unresolved": pl.String,
}
"""M_moe and tau in tokens (no tau: no limit), M_attn in positions (+inf: no limit), where the rule
stands, or why there is none."""
_TOKENS, _MOST, _BASELINE = "tokens", "most", "baseline"
_MOE = (*MoeQuestion.__struct_fields__, _TOKENS)
_ATTENTION = (*AttentionQuestion.__struct_fields__, _BASELINE)
Said = dict[str, Any]


def resolved_inputs(rows: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    """Return questions with the columns of `RESOLVED_SCHEMA`; each distinct one is asked once.

    Parameters
    ----------
    rows
        Questions with the facts of their platform; those of MoE layers and attention that have a
        `refusal` are not asked, nor are those of other modules.
    resolver
        What knows the rules.
    """
    given = rows.with_columns(
        (pl.col("batch") * pl.col("baseline")).alias(_TOKENS),
        pl.col("grid").list.max().fill_null(pl.col("baseline")).alias(_MOST),
        pl.col("backend_version").replace("", None),
    )
    open_ = pl.col("refusal").is_null()
    parts = [
        _each(given.filter(open_ & (pl.col("module") == "moe_ffn")), _MOE, resolver, _moe),
        _each(given.filter(open_ & (pl.col("module") == "attention")), _ATTENTION, resolver, _tile),
    ]
    return rows.join(pl.concat(parts), on="asked", how="left", maintain_order="left")


def _each(
    rows: pl.DataFrame,
    names: tuple[str, ...],
    resolver: Resolver,
    ask: Callable[[Resolver, Said], Said],
) -> pl.DataFrame:
    distinct = rows.select(names).unique(maintain_order=True)
    said = []
    for question in distinct.iter_rows(named=True):
        try:
            said.append(ask(resolver, question))
        except NearfreeError as error:
            said.append({"unresolved": error.what})
    # Rows of dicts that lack a key are null there.
    found = distinct.hstack(pl.DataFrame(said, schema=RESOLVED_SCHEMA))
    joined = rows.select("asked", *names).join(found, on=list(names), nulls_equal=True)
    return joined.select("asked", *RESOLVED_SCHEMA)


def _moe(resolver: Resolver, question: Said) -> Said:
    tokens = question.pop(_TOKENS)
    steps = resolver.moe(MoeQuestion(**question))
    blocks = steps.at([tokens])
    rule = f"{blocks.evidence[0]}, {blocks.source[0]}, path {blocks.path[0]}"
    return {"m_moe": blocks.block_m[0], "tau": steps.tau(tokens), "rule": rule}


def _tile(resolver: Resolver, question: Said) -> Said:
    baseline = question.pop(_BASELINE)
    steps = resolver.attention(AttentionQuestion(**question))
    last = steps.m_attn(baseline)
    tiles = steps.at([baseline])
    m_attn = float("inf") if last is None else float(last)
    return {"m_attn": m_attn, "rule": f"{tiles.evidence[0]}, path {tiles.path[0]}"}
