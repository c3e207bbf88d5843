"""The paper's laws, asked of frames: idle compute, the principle, and the principle resolved.

A law knows no tolerance: its answer is the same at each. Beside the paper's value stands that of
the extended formula: batch in the MoE law, g = heads / kv_heads in attention's idle compute, three
matrices where experts are gated; it is equal where the extension changes nothing.
"""

from collections.abc import Sequence

import polars as pl

from nearfree.derive.granularity import printed
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.laws import attention, dense, moe
from nearfree.derive.laws.refusals import idle_refusal, principle_refusal, resolved_refusal
from nearfree.derive.laws.resolved import resolved_inputs
from nearfree.derive.laws.smallest import smallest
from nearfree.errors import ConfigError
from nearfree.units import BYTES_PER_ELEMENT

ANSWERS_SCHEMA = {
    "asked": pl.Int64,
    "predictor": pl.String,
    "epsilon": pl.Float64,
    "n_max": pl.Float64,
    "n_max_extended": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "limiting_module": pl.String,
    "limiting_term": pl.String,
    "evidence": pl.String,
    "margin": pl.Float64,
    "constants": pl.String,
    "calibration": pl.String,
    "refusal": pl.String,
}
"""What a predictor says of a question at a tolerance: a value (+inf: unbounded) or a refusal.

`evidence` is where its rule or formula stands, `calibration` the event of its constants."""
DENSE_TERM, _DENSE_PLACE = "rho s / 2 b", "paper sec. 4.1"
_KEYS = {"asked", "predictor", "epsilon", "refusal"}
_module = pl.col("module")
_balance = pl.col("balance_flop_per_byte")
_element_bytes = pl.col("dtype").replace_strict(
    BYTES_PER_ELEMENT, default=None, return_dtype=pl.Float64
)
_batch, _experts, _top_k = pl.col("batch"), pl.col("experts"), pl.col("top_k")
_routing = pl.col("routing")


def answer_laws(
    asked: pl.DataFrame,
    facts: pl.DataFrame,
    epsilons: Sequence[float],
    resolver: Resolver,
    predictors: Sequence[str] = ("idle_compute", "principle", "principle_resolved"),
) -> pl.DataFrame:
    """Return what each law says of each question: a row a question, predictor and tolerance.

    Parameters
    ----------
    asked
        Questions: asked (their key), platform, the setting's columns, backend_version, kernel,
        baseline, grid.
    facts
        phi, beta and rho, one row a platform and dtype, as `datasheet_facts` gives them.
    epsilons
        Tolerances; a law says the same at each.
    resolver
        The rules of releases, asked by principle_resolved alone.
    predictors
        Which laws.

    Raises
    ------
    ConfigError
        There is no such law.
    """
    unknown = [name for name in predictors if name not in _LAWS]
    if unknown:
        raise ConfigError(f"no law {unknown[0]!r}", remedy=f"Choose from {', '.join(_LAWS)}")
    rows = with_facts(asked, facts)
    tolerances = pl.DataFrame({"epsilon": list(epsilons)}, schema={"epsilon": pl.Float64})
    said = [_said(rows, name, resolver).join(tolerances, how="cross") for name in predictors]
    empty = pl.DataFrame(schema=ANSWERS_SCHEMA)
    return pl.concat([empty, *(frame.select(*ANSWERS_SCHEMA) for frame in said)])


def _said(rows: pl.DataFrame, predictor: str, resolver: Resolver) -> pl.DataFrame:
    judged = _LAWS[predictor](rows, resolver)
    stands = pl.col("refusal").is_null()
    return judged.with_columns(
        pl.lit(predictor).alias("predictor"),
        _module.alias("limiting_module"),
        *(
            pl.lit(None, ANSWERS_SCHEMA[name]).alias(name)
            for name in ("low", "high", "constants", "calibration")
        ),
    ).with_columns(
        pl.when(stands).then(pl.col(name)).alias(name)
        for name in ANSWERS_SCHEMA
        if name not in _KEYS
    )


def _idle(rows: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    del resolver
    group = pl.col("heads") / pl.col("kv_heads")
    gated = pl.when(pl.col("gated").fill_null(value=True)).then(moe.GATED_MATRICES)
    n_dense = dense.idle_compute(_balance, _batch, _element_bytes)
    n_moe, n_gated = _idle_moe(moe.MATRICES), _idle_moe(gated.otherwise(moe.MATRICES))
    n_alone, n_grouped = (
        attention.idle_compute(_balance, _element_bytes, pl.col("context"), each)
        for each in (pl.lit(1), group)
    )
    return rows.with_columns(
        _by_module(n_dense, n_moe, n_alone).alias("n_max"),
        _by_module(n_dense, n_gated, n_grouped).alias("n_max_extended"),
        _by_module(
            pl.lit(DENSE_TERM), pl.lit("AI(N) = rho with E_act"), pl.lit("rho s L / (2 L - rho s)")
        ).alias("limiting_term"),
        _by_module(
            pl.lit("paper sec. 3.2"),
            pl.lit("paper sec. 3.3, app. B.1"),
            pl.lit("paper sec. 3.4, app. B.2"),
        ).alias("evidence"),
        pl.lit(None, pl.Float64).alias("margin"),
        idle_refusal().alias("refusal"),
    )


def _by_module(dense_value: pl.Expr, moe_value: pl.Expr, attention_value: pl.Expr) -> pl.Expr:
    return (
        pl.when(_module == "moe_ffn")
        .then(moe_value)
        .when(_module == "attention")
        .then(attention_value)
        .otherwise(dense_value)
    )


def _idle_moe(matrices: pl.Expr | int) -> pl.Expr:
    return moe.idle_compute(
        balance=_balance,
        element_bytes=_element_bytes,
        batch=_batch,
        active_experts=moe.active_experts(_routing, _experts, _top_k),
        top_k=_top_k,
        d_ff=pl.col("d_ff"),
        matrices=matrices,
    )


def _principle(rows: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    del resolver
    tau = pl.when(_routing == "balanced").then(_experts)
    m_attn = pl.when(_module == "attention").then(printed.m_attn())
    paper = smallest(rows, _terms(printed.m_moe(), tau, m_attn, pl.lit(1)))
    wider = smallest(rows, _terms(printed.m_moe(), tau, m_attn, _batch))
    return paper.with_columns(
        wider["n_max"].alias("n_max_extended"),
        _by_module(pl.lit(_DENSE_PLACE), printed.m_moe_place(), printed.m_attn_place()).alias(
            "evidence"
        ),
        principle_refusal().alias("refusal"),
    )


def _resolved(rows: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    judged = rows.with_columns(resolved_refusal().alias("refusal"))
    found = resolved_inputs(judged, resolver)
    terms = _terms(pl.col("m_moe"), pl.col("tau"), pl.col("m_attn"), _batch)
    return smallest(found, terms).with_columns(
        pl.col("n_max").alias("n_max_extended"),
        pl.coalesce("rule", pl.lit(_DENSE_PLACE)).alias("evidence"),
        pl.coalesce("refusal", "unresolved").alias("refusal"),
    )


def _terms(m_moe: pl.Expr, tau: pl.Expr, m_attn: pl.Expr, batch: pl.Expr) -> dict[str, pl.Expr]:
    """Return the terms of every module's law by itself, null for the other modules."""
    routing = pl.when(_module == "moe_ffn").then(_routing)
    slack = moe.slack_terms(
        routing=routing, m_moe=m_moe, tau=tau, experts=_experts, top_k=_top_k, batch=batch
    )
    n_dense = dense.principle(_balance, _batch, _element_bytes)
    idle = pl.when(_module.is_in(["gemm", "dense_ffn"])).then(n_dense)
    return {DENSE_TERM: idle, **slack, attention.M_ATTN: m_attn}


_LAWS = {"idle_compute": _idle, "principle": _principle, "principle_resolved": _resolved}
LAWS = tuple(_LAWS)
"""The predictors that are laws of the paper."""
