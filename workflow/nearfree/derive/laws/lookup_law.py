"""The law of a whole model as the deployment table uses it: idle compute, and the smallest term."""

import polars as pl

from nearfree.derive.laws import dense, moe
from nearfree.derive.laws.attention import M_ATTN
from nearfree.derive.laws.laws import DENSE_TERM
from nearfree.derive.laws.smallest import smallest
from nearfree.units import BYTES_PER_ELEMENT

_batch, _experts, _top_k = pl.col("batch"), pl.col("experts"), pl.col("top_k")
_routing, _balance = pl.col("routing"), pl.col("balance_flop_per_byte")
_bytes = pl.col("dtype").replace_strict(BYTES_PER_ELEMENT, return_dtype=pl.Float64)


def is_moe() -> pl.Expr:
    """Return whether a row's FFN has experts."""
    return _experts.is_not_null()


def idle_compute() -> pl.Expr:
    """Return N_idle of a row's FFN, whose experts have two matrices (paper, sec. 3.2 and 3.3)."""
    routed = moe.idle_compute(
        balance=_balance,
        element_bytes=_bytes,
        batch=_batch,
        active_experts=moe.active_experts(_routing, _experts, _top_k),
        top_k=_top_k,
        d_ff=pl.col("d_ff"),
    )
    return pl.when(is_moe()).then(routed).otherwise(dense.idle_compute(_balance, _batch, _bytes))


def principle(rows: pl.DataFrame, m_moe: pl.Expr, tau: pl.Expr, m_attn: pl.Expr) -> pl.DataFrame:
    """Return rows with n_max, limiting_term, margin and tie (paper, sec. 4.1 and 4.2).

    Parameters
    ----------
    rows
        balance_flop_per_byte, dtype, batch, experts, top_k and routing; no experts: a dense model.
    m_moe, tau
        Rows of an expert block, and the last number of tokens with it; null for no limit.
    m_attn
        Positions of a query tile.

    Returns
    -------
    polars.DataFrame
        `tie` names all terms that are the smallest, null where one alone is.
    """
    terms = {
        DENSE_TERM: pl.when(~is_moe()).then(dense.principle(_balance, _batch, _bytes)),
        **moe.slack_terms(
            routing=_routing, m_moe=m_moe, tau=tau, experts=_experts, top_k=_top_k, batch=_batch
        ),
        M_ATTN: m_attn,
    }
    equal = [pl.when(value == pl.col("n_max")).then(pl.lit(name)) for name, value in terms.items()]
    several = pl.sum_horizontal((value == pl.col("n_max")) for value in terms.values()) > 1
    return smallest(rows, terms).with_columns(
        pl.when(several).then(pl.concat_str(equal, separator=" = ", ignore_nulls=True)).alias("tie")
    )
