"""Speculative decoding in tokens alone: how drafts are looked up, cut and accepted, step by step.

A step verifies d drafts in one forward of 1 + d rows and accepts the first of them that greedy
decoding would have chosen, so that the output is the same whatever is drafted.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from nearfree.core.protocols import Natural, Positive
from nearfree.errors import ConfigError

Drafter = Literal["none", "prompt_lookup", "draft_model"]


class Drafting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What drafts, how many tokens at most, and how the engine that verifies them is set.

    `prompt_lookup` proposes what followed the latest place at which the last n tokens stood before,
    of the largest n from `ngram_max` down to `ngram_min` that stood anywhere. `edges` are rows of a
    forward: where it is not empty, a draft is cut to the largest of them.
    """

    drafter: Drafter = "none"
    k: Natural = 0
    """Drafts of a step, at most."""
    ngram_max: Natural = 0
    ngram_min: Natural = 0
    edges: tuple[Positive, ...] = ()
    threads: Positive = 1
    repack: bool = True

    def __post_init__(self) -> None:
        lookup = self.drafter == "prompt_lookup"
        if (self.drafter == "none") != (self.k == 0):
            raise ConfigError(
                f"{self.drafter} drafts {self.k} tokens", remedy="Give a drafter and its K together"
            )
        if lookup != (0 < self.ngram_min <= self.ngram_max):
            raise ConfigError(
                f"{self.drafter} has n-grams of {self.ngram_min} to {self.ngram_max} tokens",
                remedy="Give lengths to prompt_lookup alone, the shorter one first",
            )


class Steps(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The steps of one decode after its prompt: rows of each forward, and drafts accepted of it."""

    rows: tuple[Positive, ...]
    accepted: tuple[Natural, ...]


class Available(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a drafter offers behind each token of an output, with K unbounded but by `longest`.

    `drafted[i]` tokens could be drafted after i + 1 tokens of the output, of which the first
    `agreed[i]` are those that greedy decoding chose. Any smaller K is a prefix of this.
    """

    longest: Positive
    drafted: tuple[Natural, ...]
    agreed: tuple[Natural, ...]


def looked_up(
    tokens: Sequence[int], k: int, *, ngram_max: int, ngram_min: int, latest: bool = True
) -> Sequence[int]:
    """Return up to K tokens that followed the last n tokens where they stood before.

    Parameters
    ----------
    tokens
        The prompt and the output so far.
    latest
        Whether the last such place counts; else the first.
    """
    end = len(tokens)
    for n in range(min(ngram_max, end - 1), ngram_min - 1, -1):
        last = list(tokens[end - n :])
        places = range(end - n - 1, -1, -1) if latest else range(end - n)
        for place in places:
            if tokens[place] == last[0] and list(tokens[place : place + n]) == last:
                return tokens[place + n : place + n + k]
    return ()


def cut(drafted: int, edges: Sequence[int]) -> int:
    """Return how many of some drafts are verified: as many as end at an edge of 1 + d rows."""
    if not edges:
        return drafted
    return max((rows - 1 for rows in edges if rows <= 1 + drafted), default=0)


def agreed(drafts: Sequence[int], output: Sequence[int]) -> int:
    """Return how many of some drafts are what the output goes on with."""
    count = 0
    for drafted, chosen in zip(drafts, output, strict=False):
        if drafted != chosen:
            break
        count += 1
    return count


def replay(available: Available, drafting: Drafting, limit: int) -> Steps:
    """Return the steps that a drafter's setting takes over an output that is known.

    The first token comes from the prompt's own forward. No step drafts beyond `limit` tokens.

    Parameters
    ----------
    available
        Of that drafter, one entry for each token of the output but the last.
    limit
        The most tokens of an output.
    """
    if drafting.k > available.longest:
        raise ConfigError(
            f"drafts of {drafting.k} tokens are asked of a trace with {available.longest}",
            remedy="Trace longer drafts",
        )
    total = len(available.drafted) + 1
    rows, accepted, done = [], [], 1
    while done < total:
        drafted = min(drafting.k, available.drafted[done - 1], max(0, limit - done - 1))
        drafted = cut(drafted, drafting.edges)
        taken = min(drafted, available.agreed[done - 1])
        rows.append(1 + drafted)
        accepted.append(taken)
        done += taken + 1
    return Steps(rows=tuple(rows), accepted=tuple(accepted))
