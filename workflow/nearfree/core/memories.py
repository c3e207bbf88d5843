"""Drafters that remember their own drafts: stepped over a text, and traced setting by setting.

What such a drafter offers depends on where its steps ended, so on K: one trace answers for one
setting. It needs no engine, since the output is known.
"""

from collections.abc import Sequence
from typing import Protocol

from nearfree.core.drafting import Available, Drafting, agreed
from nearfree.core.ngram_cache import NgramCache
from nearfree.core.ngram_map import NgramMap
from nearfree.core.ngram_mod import NgramMod
from nearfree.errors import ConfigError


class Memory(Protocol):
    """What a drafter knows of one text."""

    def draft(self, known: Sequence[int]) -> list[int]:
        """Return what is drafted after the prompt and the output so far."""

    def accept(self, count: int) -> None:
        """Be told how many tokens of the last draft were right."""


def memory_of(drafting: Drafting, prompt: Sequence[int]) -> Memory:
    """Return the memory of a text that begins with a prompt, as of a server just started.

    Raises
    ------
    ConfigError
        Its drafter remembers nothing.
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
        f"{drafting.label} remembers nothing of a text", remedy="Look its drafts up instead"
    )


def next_drafts(memory: Memory, known: Sequence[int], left: int) -> list[int]:
    """Return the drafts of a step: none where the output takes one more token, and none beyond it.

    Source: `get_n_draft_max` of llama.cpp's tools/server/server-context.cpp, lines 483 to 505, and
    `common_speculative_draft` of common/speculative.cpp, lines 2807 to 2890, in release 3.22.1 of
    node-llama-cpp.

    Parameters
    ----------
    left
        Tokens that the output may still take.
    """
    return memory.draft(known)[: left - 1] if left > 1 else []


def followed(
    drafting: Drafting, prompt: Sequence[int], output: Sequence[int], limit: int
) -> Available:
    """Return what a setting offers on its way over a known output, and nothing off its way.

    Parameters
    ----------
    limit
        Tokens that the output could have had.
    """
    memory = memory_of(drafting, prompt)
    drafted, right = [0] * (len(output) - 1), [0] * (len(output) - 1)
    known, done = [*prompt, *output[:1]], 1
    while done < len(output):
        drafts = next_drafts(memory, known, limit - done)
        taken = agreed(drafts, output[done:])
        if drafts:
            memory.accept(taken)
        drafted[done - 1], right[done - 1] = len(drafts), taken
        known += output[done : done + taken + 1]
        done += taken + 1
    return Available(
        prompt_tokens=len(prompt), longest=drafting.k, drafted=tuple(drafted), agreed=tuple(right)
    )
