"""Drafters with a memory of their own drafts: run along a text, and traced per setting.

The offers of such a drafter depend on where its steps ended, and so on K: each setting needs its
own trace. Tracing needs no engine, since the output is known.
"""

from collections.abc import Sequence
from typing import Protocol

from nearfree.core.drafting import Available, Drafting, agreed_length
from nearfree.core.ngram_cache import NgramCache
from nearfree.core.ngram_map import NgramMap
from nearfree.core.ngram_mod import NgramMod
from nearfree.errors import ConfigError


class Memory(Protocol):
    """A drafter's memory of one text."""

    def draft(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft after `tokens`, the prompt and the output so far."""

    def accept(self, count: int) -> None:
        """Receive the number of accepted tokens of the last draft."""


def memory_of(drafting: Drafting, prompt: Sequence[int]) -> Memory:
    """Return the memory of a text that begins with a prompt, as in a newly started server.

    Raises
    ------
    ConfigError
        The drafter has no memory.
    """
    n, k = drafting.ngram_max, drafting.k
    if drafting.drafter == "ngram_map_k":
        return NgramMap(prompt, n=n, m=k, values=False)
    if drafting.drafter == "ngram_map_k4v":
        return NgramMap(prompt, n=n, m=k, values=True)
    if drafting.drafter == "ngram_mod":
        return NgramMod(prompt, n=n, longest=k, shortest=drafting.shortest)
    if drafting.drafter == "ngram_cache":
        return NgramCache(longest=k)
    raise ConfigError(
        f"the drafter {drafting.label} has no memory", remedy="Use `lookup_draft` for its drafts"
    )


def next_drafts(memory: Memory, tokens: Sequence[int], left: int) -> list[int]:
    """Return the drafts of a step; none if one output token is left, and none beyond the limit.

    Source: `get_n_draft_max` of llama.cpp's tools/server/server-context.cpp, lines 483 to 505, and
    `common_speculative_draft` of common/speculative.cpp, lines 2807 to 2890, in release 3.22.1 of
    node-llama-cpp.

    Parameters
    ----------
    left
        Number of tokens that the output may still grow by.
    """
    return memory.draft(tokens)[: left - 1] if left > 1 else []


def trace_memory(
    drafting: Drafting, prompt: Sequence[int], output: Sequence[int], limit: int
) -> Available:
    """Return the offers of a setting along a known output, 0 where none of its steps begins.

    Parameters
    ----------
    limit
        The largest number of tokens that the output could have had.
    """
    memory = memory_of(drafting, prompt)
    drafted, agreeing = [0] * (len(output) - 1), [0] * (len(output) - 1)
    tokens, output_length = [*prompt, *output[:1]], 1
    while output_length < len(output):
        drafts = next_drafts(memory, tokens, limit - output_length)
        taken = agreed_length(drafts, output[output_length:])
        if drafts:
            memory.accept(taken)
        drafted[output_length - 1], agreeing[output_length - 1] = len(drafts), taken
        tokens += output[output_length : output_length + taken + 1]
        output_length += taken + 1
    return Available(
        prompt_tokens=len(prompt),
        longest=drafting.k,
        drafted=tuple(drafted),
        agreed=tuple(agreeing),
    )
