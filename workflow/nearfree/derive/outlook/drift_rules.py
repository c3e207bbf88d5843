"""One release's granularity of a layer or call at its baseline, and how two of them differ."""

from typing import Any

import polars as pl

from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import NearfreeError

RULES_SCHEMA = {
    "path": pl.String,
    "source": pl.String,
    "m_moe": pl.Int64,
    "block_n": pl.Int64,
    "block_k": pl.Int64,
    "tau": pl.Int64,
    "tile_rows": pl.Int64,
    "m_attn": pl.Int64,
    "rule": pl.String,
    "unread": pl.String,
}
"""Path, block or tile, how far it holds, and its place; or why there are no rules."""
_WORDS = {
    "path": "path",
    "m_moe": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "tau": "tau",
    "tile_rows": "tile rows",
    "m_attn": "M_attn",
    "source": "source",
}
"""What a change is one of, and what it is called."""
Row = dict[str, Any]


def said(row: Row, resolver: Resolver) -> Row:
    """Return what the rules say of a question: the columns of `RULES_SCHEMA`.

    Parameters
    ----------
    row
        A question with the facts of its platform.
    resolver
        The rules of releases.
    """
    try:
        return _moe(row, resolver) if row["module"] == "moe_ffn" else _attention(row, resolver)
    except NearfreeError as error:
        return {"unread": error.what}


def change(before: Row, after: Row) -> str | None:
    """Return how one release's rules differ from another's, in words; None if they do not."""
    if before["unread"] is not None or after["unread"] is not None:
        return _of_refusals(before["unread"], after["unread"])
    words = [
        f"{word} {_shown(name, before[name])} -> {_shown(name, after[name])}"
        for name, word in _WORDS.items()
        if before[name] != after[name]
    ]
    if not words:
        return None
    where = f" ({after['source']})" if before["source"] == after["source"] is not None else ""
    return ", ".join(words) + where


def _of_refusals(before: str | None, after: str | None) -> str | None:
    if before is not None and after is not None:
        return None
    return "a refusal -> an answer" if after is None else f"an answer -> a refusal: {after}"


def _shown(name: str, value: object) -> object:
    if value is not None:
        return value
    return "no limit" if name in ("tau", "m_attn") else "not said"


def _moe(row: Row, resolver: Resolver) -> Row:
    steps = resolver.moe(MoeQuestion(**{name: row[name] for name in MoeQuestion.__struct_fields__}))
    tokens = row["batch"] * row["baseline"]
    blocks = steps.at([tokens])
    return {
        "path": blocks.path[0],
        "source": blocks.source[0],
        "m_moe": blocks.block_m[0],
        "block_n": blocks.block_n[0],
        "block_k": blocks.block_k[0],
        "tau": steps.tau(tokens),
        "rule": blocks.evidence[0],
    }


def _attention(row: Row, resolver: Resolver) -> Row:
    names = [name for name in AttentionQuestion.__struct_fields__ if name != "most"]
    asked = {name: row[name] for name in names}
    steps = resolver.attention(AttentionQuestion(**asked, most=max(row["grid"])))
    tiles = steps.at([1])
    return {
        "path": tiles.path[0],
        "tile_rows": tiles.tile_rows[0],
        "m_attn": steps.m_attn(),
        "rule": tiles.evidence[0],
    }
