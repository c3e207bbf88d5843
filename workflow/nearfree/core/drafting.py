"""Speculative decoding in tokens alone: how drafts are looked up, cut and accepted, step by step.

A step verifies d drafts in one forward of 1 + d rows and accepts the first of them that are
what decoding would have chosen, so that the output is the same whatever is drafted.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

from nearfree.core.protocols import Natural, Positive
from nearfree.errors import ConfigError

Drafter = Literal[
    "none",
    "prompt_lookup",
    "ngram_simple",
    "ngram_map_k",
    "ngram_map_k4v",
    "ngram_mod",
    "ngram_cache",
    "draft_model",
]
REMEMBERING: tuple[Drafter, ...] = ("ngram_map_k", "ngram_map_k4v", "ngram_mod", "ngram_cache")
"""Lookups whose drafts depend on their earlier ones (`core.memories`)."""
LOOKUPS: tuple[Drafter, ...] = ("prompt_lookup", "ngram_simple", *REMEMBERING)
"""Drafters that copy what stood before."""


class Drafting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What drafts, how many tokens at most, and how the engine that verifies them is set.

    `prompt_lookup` proposes what followed the place at which the last n tokens stood before, of the
    largest n from `ngram_max` down to `ngram_min` that stood anywhere: the latest such place, or
    the first. `ngram_simple` and those that remember are llama.cpp's types of these names, of one
    n, but `ngram_cache` of all from 1 to 4. Where `edges` is not empty, a draft is cut to the
    largest of these numbers of rows that it fills.
    """

    drafter: Drafter = "none"
    k: Natural = 0
    """Drafts of a step, at most."""
    ngram_max: Natural = 0
    ngram_min: Natural = 0
    shortest: Natural = 0
    """Of `ngram_mod`: a draft of fewer tokens is none."""
    first: bool = False
    padded: bool = False
    """Whether a draft that is shorter than K is filled up: every step then has 1 + K rows, but one
    that is cut to `edges`."""
    edges: tuple[Positive, ...] = ()
    threads: Positive = 1
    repack: bool = True

    def __post_init__(self) -> None:
        if (self.drafter == "none") != (self.k == 0):
            raise ConfigError(
                f"{self.drafter} drafts {self.k} tokens", remedy="Give a drafter and its K together"
            )
        if (self.drafter in LOOKUPS) != (0 < self.ngram_min <= self.ngram_max):
            raise ConfigError(
                f"{self.drafter} has n-grams of {self.ngram_min} to {self.ngram_max} tokens",
                remedy="Give lengths to a lookup alone, the shorter one first",
            )
        if self.remembers and self.edges:
            raise ConfigError(
                f"drafts of {self.drafter} are cut at {list(self.edges)} rows",
                remedy="Leave them whole: what it drafts next depends on them",
            )

    @property
    def remembers(self) -> bool:
        """Whether what is offered depends on what was offered before, and so on K."""
        return self.drafter in REMEMBERING

    @property
    def label(self) -> str:
        """What drafts, with its n-gram lengths, in words."""
        lengths = dict.fromkeys((self.ngram_min, self.ngram_max))
        of = f" {'-'.join(map(str, lengths))}" if self.drafter in LOOKUPS else ""
        least = f" from {self.shortest}" if self.shortest else ""
        how = f"{' first' if self.first else ''}{' cut' if self.edges else ''}"
        return f"{self.drafter}{of}{least}{how}"

    @property
    def kin(self) -> "Drafting":
        """What drafts, whatever K is and on what it runs."""
        return structs.replace(self, k=self.k and 1, edges=(), threads=1, repack=True)

    @property
    def source(self) -> "Drafting":
        """What one trace answers for: its kin, and of a drafter that remembers this K alone."""
        return structs.replace(self.kin, k=self.k if self.remembers else self.k and 1)


class Steps(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The steps of one decode after its prompt: rows of each forward, and drafts accepted of it."""

    rows: tuple[Positive, ...]
    accepted: tuple[Natural, ...]


class Available(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a drafter offers behind each token of an output but the last, `longest` at most.

    After a prompt and i + 1 tokens of its output it offers `drafted[i]` tokens, of which the first
    `agreed[i]` are those that decoding chose. What any smaller K offers follows from it.
    """

    prompt_tokens: Positive
    longest: Positive
    drafted: tuple[Natural, ...]
    agreed: tuple[Natural, ...]


def looked_up(tokens: Sequence[int], k: int, drafting: Drafting) -> Sequence[int]:
    """Return up to K tokens that followed the last n tokens where they stood before.

    Parameters
    ----------
    tokens
        The prompt and the output so far.
    """
    if drafting.drafter == "ngram_simple":
        return _ngram_simple(tokens, k, drafting.ngram_max)
    end = len(tokens)
    for n in range(min(drafting.ngram_max, end - 1), drafting.ngram_min - 1, -1):
        places = range(end - n) if drafting.first else range(end - n - 1, -1, -1)
        place = _found(tokens, n, places)
        if place is not None:
            return tokens[place + n : place + n + k]
    return ()


def _ngram_simple(tokens: Sequence[int], k: int, n: int) -> Sequence[int]:
    """Return what llama.cpp's ngram-simple finds, before it leaves out short drafts.

    Source: `common_ngram_simple_draft` of llama.cpp's common/ngram-map.cpp, release 3.22.1 of
    node-llama-cpp. The place at the very start counts as none, and so does the token just sampled.
    """
    past = len(tokens) - 1
    place = _found(tokens, n, range(past - n - 1, 0, -1))
    return () if place is None else tokens[place + n : min(place + n + k, past)]


def _found(tokens: Sequence[int], n: int, places: range) -> int | None:
    """Return the first of some places at which the last n tokens stand, None if there is none."""
    last = list(tokens[len(tokens) - n :])
    head = last[0]
    for place in places:
        if tokens[place] == head and list(tokens[place : place + n]) == last:
            return place
    return None


def usable(drafting: Drafting, offered: int, known: int, left: int) -> int:
    """Return how many offered drafts are verified in a step.

    Parameters
    ----------
    offered
        Tokens that the drafter has.
    known
        Tokens of the prompt and the output so far.
    left
        Tokens that the output may still take.
    """
    drafted = min(drafting.k, offered)
    if drafting.drafter == "ngram_simple":
        n = drafting.ngram_max
        if drafted < n or known - 1 <= n + drafting.k + 1:  # llama.cpp drafts nothing then
            return 0
    drafted = max(0, min(drafted, left - 1))
    if drafting.edges:
        return max((rows - 1 for rows in drafting.edges if rows <= 1 + drafted), default=0)
    return drafted


def agreed(drafts: Sequence[int], output: Sequence[int]) -> int:
    """Return how many of some drafts are what the output goes on with."""
    count = 0
    for drafted, chosen in zip(drafts, output, strict=False):
        if drafted != chosen:
            break
        count += 1
    return count


def offers(
    prompt: Sequence[int], output: Sequence[int], drafting: Drafting, chosen: Sequence[int]
) -> Available:
    """Return what a drafter that remembers nothing offers over a known output, up to K each time.

    Parameters
    ----------
    chosen
        What a draft model chooses after each token of the output but the last; a lookup needs none.
    """
    offered, right = [], []
    for done in range(1, len(output)):
        if drafting.drafter in LOOKUPS:
            drafts = looked_up([*prompt, *output[:done]], drafting.k, drafting)
            offered.append(len(drafts))
        else:
            drafts = chosen[done - 1 : done - 1 + drafting.k]
            offered.append(drafting.k)
        right.append(agreed(drafts, output[done:]))
    return Available(
        prompt_tokens=len(prompt),
        longest=drafting.k,
        drafted=tuple(offered),
        agreed=tuple(right),
    )


def replay(available: Available | None, drafting: Drafting, tokens: int, limit: int) -> Steps:
    """Return the steps that a setting takes over an output that is known.

    The first token comes from the prompt's own forward. No step drafts beyond the limit.

    Parameters
    ----------
    available
        What the setting's drafter offers over that output; None for no drafter.
    tokens, limit
        Tokens of the output, and as many as it could have had.

    Raises
    ------
    ConfigError
        The trace has shorter drafts than the setting.
    """
    if available is None or drafting.drafter == "none":
        return Steps(rows=(1,) * (tokens - 1), accepted=(0,) * (tokens - 1))
    if drafting.k > available.longest:
        raise ConfigError(
            f"drafts of {drafting.k} tokens are asked of a trace with {available.longest}",
            remedy="Trace longer drafts",
        )
    rows, accepted, done = [], [], 1
    while done < tokens:
        known = available.prompt_tokens + done
        drafted = usable(drafting, available.drafted[done - 1], known, limit - done)
        taken = min(drafted, available.agreed[done - 1])
        rows.append(1 + (drafting.k if drafting.padded and not drafting.edges else drafted))
        accepted.append(taken)
        done += taken + 1
    return Steps(rows=tuple(rows), accepted=tuple(accepted))
