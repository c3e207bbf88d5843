"""The paper's deployment table resolved by releases' rules, with the shapes of its models."""

from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.backends.moe_kernels import ALIGNED
from nearfree.backends.records import page_size
from nearfree.core.modules.attention import M_ATTN, AttentionQuestion
from nearfree.core.modules.dense_ffn import IDLE
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.core.modules.routing import routing_baseline
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.steps import MOST_TOKENS, Steps
from nearfree.derive.laws.model_law import principle
from nearfree.errors import NearfreeError
from nearfree.sources.attention import Tile

SOURCED_SCHEMA = {
    "row": pl.Int64,
    "resolved_m_moe": pl.Int64,
    "resolved_tau": pl.Int64,
    "resolved_m_attn": pl.Int64,
    "one_tile_until": pl.Int64,
    "moe_rule": pl.String,
    "attention_rule": pl.String,
    "difference": pl.String,
    "unresolved": pl.String,
}
Row = dict[str, Any]


class Attention(Struct, frozen=True, kw_only=True):
    """A model's attention and the release that runs it over a cache of `context` positions."""

    backend: str
    version: str
    heads: int
    kv_heads: int
    head_dim: int
    context: int = 4096


class Experts(Struct, frozen=True, kw_only=True):
    """The facts of an MoE layer that the table lacks, and the release that runs it.

    `top_k` is the model's own, used for rows of any k.
    """

    backend: str
    version: str
    d_model: int
    top_k: int


QWEN3_8B = Attention(backend="flash_attn", version="2.8.3", heads=32, kv_heads=8, head_dim=128)
"""Attention of the dense rows (paper, sec. 5: Qwen3-8B with FlashAttention, in an engine with a
paged cache)."""
LING_MINI = Attention(
    backend="flashinfer_fa2", version="0.6.13", heads=16, kv_heads=4, head_dim=128
)
"""Attention of the MoE rows (paper, sec. 5: Ling-2.0-mini with FlashInfer, as SGLang calls it)."""
LING_MINI_EXPERTS = Experts(backend="sglang", version="0.5.9", d_model=2048, top_k=8)
"""Experts of the MoE rows (paper, sec. 5: Ling-2.0-mini with SGLang)."""
_OWN_K = pl.lit(LING_MINI_EXPERTS.top_k, pl.Int64)


def lookup_sources(paper: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    """Return the law with releases' values for each row: row, resolved, term, rule and inputs.

    Parameters
    ----------
    paper
        The table's rows with the facts of their platforms.
    """
    sourced = pl.DataFrame(
        [_resolved_row(row, resolver) for row in paper.to_dicts()], schema=SOURCED_SCHEMA
    )
    top_k = pl.coalesce("top_k", pl.when(pl.col("model_type") == "moe").then(_OWN_K))
    rows = paper.join(sourced, on="row", how="left", maintain_order="left").with_columns(top_k)
    resolved = principle(_law_inputs(rows, "resolved_m_attn"))
    is_resolved, term = pl.col("unresolved").is_null(), pl.col("limiting_term")
    rule = (
        pl.when(term == M_ATTN)
        .then("attention_rule")
        .when(term == IDLE)
        .then(pl.lit("paper sec. 4.1"))
        .otherwise("moe_rule")
    )
    one_tile = principle(_law_inputs(rows, "one_tile_until"))
    return resolved.select(
        "row",
        pl.when(is_resolved).then("n_max").alias("resolved"),
        pl.when(is_resolved).then(one_tile["n_max"]).alias("resolved_one_tile"),
        pl.when(is_resolved).then(term).alias("resolved_term"),
        pl.when(is_resolved).then(rule).alias("rule"),
        *(name for name in SOURCED_SCHEMA if name.startswith("resolved_")),
        *("one_tile_until", "difference", "unresolved"),
    )


def _law_inputs(rows: pl.DataFrame, m_attn: str) -> pl.DataFrame:
    """Return the rows with the releases' values as the law's inputs.

    Parameters
    ----------
    m_attn
        The column that is M_attn.
    """
    return rows.with_columns(
        pl.col("resolved_m_moe").alias("m_moe"),
        pl.col("resolved_tau").alias("tau"),
        pl.col(m_attn).alias("m_attn"),
    )


def _resolved_row(row: Row, resolver: Resolver) -> Row:
    moe = row["model_type"] == "moe"
    try:
        attention = _attention(row, LING_MINI if moe else QWEN3_8B, resolver)
        experts = _experts(row, LING_MINI_EXPERTS, resolver) if moe else {}
    except NearfreeError as error:
        return {"row": row["row"], "unresolved": error.what}
    differences = [*experts.pop("differences", []), *attention.pop("differences")]
    text = "; ".join(differences) or None
    return {"row": row["row"], **attention, **experts, "difference": text}


def _attention(row: Row, model: Attention, resolver: Resolver) -> Row:
    pages = page_size(model.backend)
    steps = _steps(row, model, resolver, pages)
    differences = _m_attn_differences(steps, row["m_attn"])
    if pages:
        unpaged = _m_attn_differences(_steps(row, model, resolver, None), row["m_attn"])
        differences += [f"without pages in the cache: {difference}" for difference in unpaged]
    return {
        "resolved_m_attn": steps.last_alike(),
        "one_tile_until": _one_tile_until(steps),
        "attention_rule": f"{steps.evidence(1)}, path {steps.at(1).path}",
        "differences": differences,
    }


def _steps(row: Row, model: Attention, resolver: Resolver, pages: int | None) -> Steps[Tile]:
    return resolver.attention(
        AttentionQuestion(
            backend=model.backend,
            backend_version=model.version,
            dtype=row["dtype"],
            batch=row["batch"],
            context=model.context,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            api=None,
            page_size=pages,
            cuda_graph=False,
            most=1,
            sm=row["sm"],
            sm_count=row["sm_count"],
        )
    )


def _m_attn_differences(steps: Steps[Tile], paper_m_attn: int) -> list[str]:
    """Return how a call's M_attn differs from the paper's, as a list of at most one sentence."""
    m_attn = steps.last_alike()
    if m_attn is None or m_attn == paper_m_attn:
        return []
    evidence = f"{_tile_text(steps, m_attn)}, {_tile_text(steps, m_attn + 1)}"
    until = _one_tile_until(steps)
    return [f"M_attn {m_attn}, not {paper_m_attn}: {evidence}; one tile a head up to N = {until}"]


def _tile_text(steps: Steps[Tile], n: int) -> str:
    tile = steps.at(n)
    return (
        f"N = {n} has tiles of {tile.tile} rows, {tile.rows_per_position} a position, on the path "
        f"{tile.path}"
    )


def _one_tile_until(steps: Steps[Tile]) -> int:
    """Return the last N up to which a request has one tile per head; MOST_TOKENS at most."""
    n = 1
    while n < MOST_TOKENS and steps.at(n + 1).tiles == 1:
        n += 1
    return n


def _experts(row: Row, model: Experts, resolver: Resolver) -> Row:
    top_k = row["top_k"] or model.top_k
    steps = resolver.moe(
        MoeQuestion(
            backend=model.backend,
            backend_version=model.version,
            kernel=None,
            dtype=row["dtype"],
            d_model=model.d_model,
            d_ff=row["d_ff"],
            experts=row["experts"],
            top_k=top_k,
            block_size_m=None,
            sm=row["sm"],
            device_name=row["device_name"],
        )
    )
    tokens = row["batch"] * routing_baseline(row["routing"], row["experts"], top_k, row["batch"])
    block, tau, evidence = steps.at(tokens), steps.tau(tokens), steps.evidence(tokens)
    m_moe, source = block.value, block.source
    differences = []
    if m_moe != row["m_moe"]:
        differences.append(f"M_moe {m_moe}, not {row['m_moe']}, from a {source} rule")
    paper_tau = row["experts"] if row["routing"] == "balanced" else None
    if paper_tau is not None and tau != paper_tau:
        differences.append(f"tau {tau} tokens, not E = {paper_tau}: {source}, {evidence}")
    if paper_tau is None and tau is not None and tau < m_moe:
        differences.append(f"tau {tau} tokens, where the paper has none: {source}")
    if block.path != ALIGNED:
        differences.append(f"the path {block.path} shares no blocks")
    return {
        "resolved_m_moe": m_moe,
        "resolved_tau": tau,
        "moe_rule": f"{evidence}, {source}, path {block.path}",
        "differences": differences,
    }
