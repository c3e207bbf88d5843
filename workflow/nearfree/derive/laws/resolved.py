"""What the rules of releases put into a law: the granularity of a layer or call."""

from collections.abc import Callable
from typing import Any

from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.kind import Granularity
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.derive.granularity.resolve import Resolver


def resolved(resolver: Resolver, question: Any, baseline: int, tokens: int) -> Granularity:
    """Return the granularity of a layer or call at its baseline N, of so many tokens.

    Raises
    ------
    NearfreeError
        There are no rules of it, or the answer depends on a fact that is not known.
    """
    return _BY_QUESTION[type(question)](resolver, question, baseline, tokens)


def _blocks(resolver: Resolver, question: MoeQuestion, _baseline: int, tokens: int) -> Granularity:
    steps = resolver.moe(question)
    blocks = steps.at([tokens])
    place = f"{blocks.evidence[0]}, {blocks.source[0]}, path {blocks.path[0]}"
    return Granularity(rows=blocks.block_m[0], until=steps.tau(tokens), place=place)


def _tiles(
    resolver: Resolver, question: AttentionQuestion, baseline: int, _tokens: int
) -> Granularity:
    steps = resolver.attention(question)
    last = steps.m_attn(baseline)
    tiles = steps.at([baseline])
    place = f"{tiles.evidence[0]}, path {tiles.path[0]}"
    return Granularity(rows=float("inf") if last is None else last, place=place)


_BY_QUESTION: dict[type, Callable[[Resolver, Any, int, int], Granularity]] = {
    MoeQuestion: _blocks,
    AttentionQuestion: _tiles,
}
