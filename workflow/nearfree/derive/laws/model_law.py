"""The laws of a whole model on frames: idle compute of its FFN, and the principle's minimum."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from nearfree.core.modules import model
from nearfree.core.modules.kind import smallest_term
from nearfree.derive.laws.laws import ask_distinct

_FFN = ("dtype", "batch", "experts", "top_k", "routing")
_BALANCE = "balance_flop_per_byte"
_LAW = {
    "n_max": pl.Float64,
    "limiting_term": pl.String,
    "margin": pl.Float64,
    "tie": pl.String,
}


def idle_compute(rows: pl.DataFrame) -> pl.Series:
    """Return `idle`, N_idle of each row's FFN, whose experts have two matrices (paper, sec. 3).

    Parameters
    ----------
    rows
        balance_flop_per_byte, dtype, batch, experts, top_k, routing and d_ff (the width of an
        expert); a dense model has no experts.
    """
    return ask_distinct(
        rows.select(_BALANCE, *_FFN, "d_ff"), lambda row: _idle(**row), {"idle": pl.Float64}
    )["idle"]


def principle(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with n_max, limiting_term, margin and tie (paper, sec. 4.1 and 4.2).

    Parameters
    ----------
    rows
        As in `idle_compute` without d_ff, with m_moe (rows of an expert block), tau (the last
        number of tokens with that block, null for no limit) and m_attn (positions of a query
        tile).

    Returns
    -------
    polars.DataFrame
        `tie` names all terms that are equally the smallest; null if only one is.
    """
    questions = rows.select(_BALANCE, *_FFN, "m_moe", "tau", "m_attn")
    return rows.hstack(ask_distinct(questions, lambda row: _smallest(**row), _LAW))


def _idle(balance_flop_per_byte: float | None, **fields: Any) -> Mapping[str, float]:
    if balance_flop_per_byte is None:
        return {}
    return {"idle": model.idle_compute(model.ffn_setting(**fields), balance_flop_per_byte)}


def _smallest(
    balance_flop_per_byte: float | None,
    m_moe: int | None,
    tau: int | None,
    m_attn: int | None,
    **fields: Any,
) -> Mapping[str, Any]:
    ffn = model.ffn_setting(**fields)
    terms = model.principle_terms(ffn, balance_flop_per_byte, m_moe, tau, m_attn)
    if not terms:
        return {}
    least = smallest_term(terms)
    return {
        "n_max": least.value,
        "limiting_term": least.names[0],
        "margin": least.margin,
        "tie": " = ".join(least.names) if len(least.names) > 1 else None,
    }
