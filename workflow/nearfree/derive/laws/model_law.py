"""The law of a whole model, asked of frames: idle compute of its FFN, and the smallest term."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from nearfree.core.modules import model
from nearfree.core.modules.kind import smallest
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
        balance_flop_per_byte, dtype, batch, experts, top_k, routing and d_ff, an expert's width; no
        experts: a dense model.
    """
    return ask_distinct(
        rows.select(_BALANCE, *_FFN, "d_ff"), lambda row: _idle(**row), {"idle": pl.Float64}
    )["idle"]


def principle(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with n_max, limiting_term, margin and tie (paper, sec. 4.1 and 4.2).

    Parameters
    ----------
    rows
        As in `idle_compute` but for d_ff, with m_moe (rows of an expert block), tau (the last
        number of tokens with it, null for no limit) and m_attn (positions of a query tile).

    Returns
    -------
    polars.DataFrame
        `tie` names all terms that are the smallest, null where one alone is.
    """
    asked = rows.select(_BALANCE, *_FFN, "m_moe", "tau", "m_attn")
    return rows.hstack(ask_distinct(asked, lambda row: _smallest(**row), _LAW))


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
    found = smallest(terms)
    return {
        "n_max": found.value,
        "limiting_term": found.names[0],
        "margin": found.margin,
        "tie": " = ".join(found.names) if len(found.names) > 1 else None,
    }
