"""What releases say of the deployment table's rows, with the shapes of the models behind them."""

from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.backends.moe_kernels import ALIGNED
from nearfree.backends.records import page_size
from nearfree.core.modules.attention import M_ATTN, AttentionQuestion
from nearfree.core.modules.dense_ffn import IDLE
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.core.modules.routing import first_full
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
    """What the table does not say of an MoE layer, and the release that runs it.

    `top_k` is the model's own, for rows of any k.
    """

    backend: str
    version: str
    d_model: int
    top_k: int


QWEN3_8B = Attention(backend="flash_attn", version="2.8.3", heads=32, kv_heads=8, head_dim=128)
"""Attention of the dense rows (paper, sec. 5: Qwen3-8B with FlashAttention, in an
engine that keeps its cache in pages)."""
LING_MINI = Attention(
    backend="flashinfer_fa2", version="0.6.13", heads=16, kv_heads=4, head_dim=128
)
"""Attention of the MoE rows (paper, sec. 5: Ling-2.0-mini with FlashInfer, as SGLang calls it)."""
LING_MINI_EXPERTS = Experts(backend="sglang", version="0.5.9", d_model=2048, top_k=8)
"""Experts of the MoE rows (paper, sec. 5: Ling-2.0-mini with SGLang)."""
_OWN_K = pl.lit(LING_MINI_EXPERTS.top_k, pl.Int64)


def lookup_sources(paper: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    """Return what releases say of each row: row, resolved, resolved_term, rule and the inputs.

    Parameters
    ----------
    paper
        The table's rows with the facts of their platforms.
    """
    sourced = pl.DataFrame(
        [_sourced(row, resolver) for row in paper.to_dicts()], schema=SOURCED_SCHEMA
    )
    routed = pl.coalesce("top_k", pl.when(pl.col("model_type") == "moe").then(_OWN_K))
    rows = paper.join(sourced, on="row", how="left", maintain_order="left").with_columns(routed)
    found = principle(_inputs(rows, "resolved_m_attn"))
    stands, term = pl.col("unresolved").is_null(), pl.col("limiting_term")
    rule = (
        pl.when(term == M_ATTN)
        .then("attention_rule")
        .when(term == IDLE)
        .then(pl.lit("paper sec. 4.1"))
        .otherwise("moe_rule")
    )
    one_tile = principle(_inputs(rows, "one_tile_until"))
    return found.select(
        "row",
        pl.when(stands).then("n_max").alias("resolved"),
        pl.when(stands).then(one_tile["n_max"]).alias("resolved_one_tile"),
        pl.when(stands).then(term).alias("resolved_term"),
        pl.when(stands).then(rule).alias("rule"),
        *(name for name in SOURCED_SCHEMA if name.startswith("resolved_")),
        *("one_tile_until", "difference", "unresolved"),
    )


def _inputs(rows: pl.DataFrame, m_attn: str) -> pl.DataFrame:
    """Return the rows with what releases say as the law's inputs."""
    return rows.with_columns(
        pl.col("resolved_m_moe").alias("m_moe"),
        pl.col("resolved_tau").alias("tau"),
        pl.col(m_attn).alias("m_attn"),
    )


def _sourced(row: Row, resolver: Resolver) -> Row:
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
    differences = _otherwise(steps, row["m_attn"])
    if pages:
        bare = _otherwise(_steps(row, model, resolver, None), row["m_attn"])
        differences += [f"without pages in the cache: {each}" for each in bare]
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


def _otherwise(steps: Steps[Tile], given: int) -> list[str]:
    """Return what a call's tiles say otherwise than the M_attn that the table is given."""
    m_attn = steps.last_alike()
    if m_attn is None or m_attn == given:
        return []
    where = f"{_tile(steps, m_attn)}, {_tile(steps, m_attn + 1)}"
    until = _one_tile_until(steps)
    return [f"M_attn {m_attn}, not {given}: {where}; one tile a head up to N = {until}"]


def _tile(steps: Steps[Tile], n: int) -> str:
    tile = steps.at(n)
    return (
        f"N = {n} has tiles of {tile.tile} rows, {tile.rows_per_position} a position, on the path "
        f"{tile.path}"
    )


def _one_tile_until(steps: Steps[Tile]) -> int:
    """Return the last N up to which a request takes one tile a head, as far as is looked."""
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
    tokens = row["batch"] * first_full(row["routing"], row["experts"], top_k, row["batch"])
    block, tau, evidence = steps.at(tokens), steps.tau(tokens), steps.evidence(tokens)
    m_moe, source = block.value, block.source
    differences = []
    if m_moe != row["m_moe"]:
        differences.append(f"M_moe {m_moe}, not {row['m_moe']}, from a {source} rule")
    given = row["experts"] if row["routing"] == "balanced" else None
    if given is not None and tau != given:
        differences.append(f"tau {tau} tokens, not E = {given}: {source}, {evidence}")
    if given is None and tau is not None and tau < m_moe:
        differences.append(f"tau {tau} tokens, where the paper has none: {source}")
    if block.path != ALIGNED:
        differences.append(f"the path {block.path} shares no blocks")
    return {
        "resolved_m_moe": m_moe,
        "resolved_tau": tau,
        "moe_rule": f"{evidence}, {source}, path {block.path}",
        "differences": differences,
    }
