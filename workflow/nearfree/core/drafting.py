"""Speculative decoding in tokens: how drafts are looked up, cut and accepted, step by step.

A step verifies d drafts in one forward of 1 + d rows. It accepts the longest prefix of the drafts
that plain decoding would have chosen, so that the output does not depend on the drafts.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

from nearfree.core.precision import Dtype
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
"""Drafters that copy from the earlier text."""


class Drafting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A drafter, its largest number of drafts per step, and the settings of the verifying engine.

    `prompt_lookup` finds an earlier place of the last n tokens and proposes the tokens after it. It
    uses the largest n from `ngram_max` down to `ngram_min` that occurs, at its latest place, or at
    its first with `first`. `ngram_simple` and the remembering lookups are llama.cpp's drafters of
    these names; they have one n, and `ngram_cache` all n from 1 to 4. If `edges` is not empty, a
    step is cut to the largest of these numbers of rows that it fills.
    """

    drafter: Drafter = "none"
    k: Natural = 0
    """Largest number of drafts per step."""
    ngram_max: Natural = 0
    ngram_min: Natural = 0
    shortest: Natural = 0
    """`ngram_mod` discards drafts of fewer tokens."""
    first: bool = False
    padded: bool = False
    """Whether a draft shorter than K is padded: every step then has 1 + K rows, except one that is
    cut to `edges`."""
    edges: tuple[Positive, ...] = ()
    threads: Positive = 1
    repack: bool = True
    kv_dtype: Dtype | None = None
    """The format of the engine's KV cache, and so of what it computes; None: the engine's own."""

    def __post_init__(self) -> None:
        if (self.drafter == "none") != (self.k == 0):
            raise ConfigError(
                f"{self.drafter} drafts {self.k} tokens", remedy="Give a drafter and its K together"
            )
        if (self.drafter in LOOKUPS) != (0 < self.ngram_min <= self.ngram_max):
            raise ConfigError(
                f"{self.drafter} has n-grams of {self.ngram_min} to {self.ngram_max} tokens",
                remedy="Give n-gram lengths for lookups only, the shorter one first",
            )
        if self.remembers and self.edges:
            raise ConfigError(
                f"drafts of {self.drafter} are cut at {list(self.edges)} rows",
                remedy="Leave `edges` empty: its next drafts depend on all of its last ones",
            )

    @property
    def remembers(self) -> bool:
        """Whether drafts depend on the drafter's earlier drafts, and so on K."""
        return self.drafter in REMEMBERING

    @property
    def label(self) -> str:
        """The drafter with its n-gram lengths and flags, and the format of the cache, as text."""
        lengths = dict.fromkeys((self.ngram_min, self.ngram_max))
        sizes = f" {'-'.join(map(str, lengths))}" if self.drafter in LOOKUPS else ""
        minimum = f" from {self.shortest}" if self.shortest else ""
        flags = f"{' first' if self.first else ''}{' cut' if self.edges else ''}"
        cache = f", {self.kv_dtype}" if self.kv_dtype else ""
        return f"{self.drafter}{sizes}{minimum}{flags}{cache}"

    @property
    def place(self) -> tuple[bool, str, int]:
        """What the engine runs on, the simplest first: storage, cache and threads.

        Simplest is repacked, as engines store weights by default, then the engine's own cache, then
        fewest threads.
        """
        return not self.repack, self.kv_dtype or "", self.threads

    def beside(self, other: "Drafting") -> bool:
        """Return whether threads and storage are those of another setting."""
        return (self.threads, self.repack) == (other.threads, other.repack)

    def placed_as(self, other: "Drafting") -> "Drafting":
        """Return the same drafter and K with another setting's threads, storage and cache."""
        return structs.replace(
            self, threads=other.threads, repack=other.repack, kv_dtype=other.kv_dtype
        )

    @property
    def kin(self) -> "Drafting":
        """The same drafter with K = 1 and without engine settings, to group settings by."""
        return structs.replace(self.placed_as(Drafting()), k=self.k and 1, edges=())

    @property
    def source(self) -> "Drafting":
        """The key of the trace that serves this setting: its kin, with K if it remembers."""
        return structs.replace(self.kin, k=self.k if self.remembers else self.k and 1)


class Steps(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The steps of one decode after its prompt: rows and accepted drafts of each forward."""

    rows: tuple[Positive, ...]
    accepted: tuple[Natural, ...]


class Available(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A drafter's offers after each token of an output except the last, up to `longest` tokens.

    After the prompt and i + 1 tokens of the output it offers `drafted[i]` tokens, of which the
    first `agreed[i]` match the output. The offers for any smaller K follow from these.
    """

    prompt_tokens: Positive
    longest: Positive
    drafted: tuple[Natural, ...]
    agreed: tuple[Natural, ...]


def lookup_draft(tokens: Sequence[int], k: int, drafting: Drafting) -> Sequence[int]:
    """Return up to K tokens that followed an earlier occurrence of the last n tokens."""
    if drafting.drafter == "ngram_simple":
        return _ngram_simple(tokens, k, drafting.ngram_max)
    end = len(tokens)
    for n in range(min(drafting.ngram_max, end - 1), drafting.ngram_min - 1, -1):
        places = range(end - n) if drafting.first else range(end - n - 1, -1, -1)
        place = _match_place(tokens, n, places)
        if place is not None:
            return tokens[place + n : place + n + k]
    return ()


def _ngram_simple(tokens: Sequence[int], k: int, n: int) -> Sequence[int]:
    """Return the draft of llama.cpp's ngram-simple, before it discards short drafts.

    A match at position 0 does not count, and a draft does not reach the token just sampled.

    Source: `common_ngram_simple_draft` of llama.cpp's common/ngram-map.cpp, release 3.22.1 of
    node-llama-cpp.
    """
    end = len(tokens) - 1
    place = _match_place(tokens, n, range(end - n - 1, 0, -1))
    return () if place is None else tokens[place + n : min(place + n + k, end)]


def _match_place(tokens: Sequence[int], n: int, places: range) -> int | None:
    """Return the first of `places` at which the last n tokens occur; None if there is none."""
    last = list(tokens[len(tokens) - n :])
    head = last[0]
    for place in places:
        if tokens[place] == head and list(tokens[place : place + n]) == last:
            return place
    return None


def verified_drafts(drafting: Drafting, offered: int, known: int, left: int) -> int:
    """Return how many offered drafts a step verifies.

    Parameters
    ----------
    offered
        Number of tokens that the drafter offers.
    known
        Number of tokens of the prompt and the output so far.
    left
        Number of tokens that the output may still grow by.
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


def agreed_length(drafts: Sequence[int], output: Sequence[int]) -> int:
    """Return how many leading drafts agree with the output's next tokens."""
    count = 0
    for drafted, chosen in zip(drafts, output, strict=False):
        if drafted != chosen:
            break
        count += 1
    return count


def trace_offers(
    prompt: Sequence[int], output: Sequence[int], drafting: Drafting, chosen: Sequence[int]
) -> Available:
    """Return the offers of a drafter without memory along a known output, up to K each time.

    Parameters
    ----------
    chosen
        A draft model's choice after each token of the output except the last; unused for lookups.
    """
    offered, agreeing = [], []
    for length in range(1, len(output)):
        if drafting.drafter in LOOKUPS:
            drafts = lookup_draft([*prompt, *output[:length]], drafting.k, drafting)
            offered.append(len(drafts))
        else:
            drafts = chosen[length - 1 : length - 1 + drafting.k]
            offered.append(drafting.k)
        agreeing.append(agreed_length(drafts, output[length:]))
    return Available(
        prompt_tokens=len(prompt),
        longest=drafting.k,
        drafted=tuple(offered),
        agreed=tuple(agreeing),
    )


def replay(available: Available | None, drafting: Drafting, tokens: int, limit: int) -> Steps:
    """Return the steps that a setting makes along a known output.

    The first token comes from the prompt's prefill. No step drafts beyond the limit.

    Parameters
    ----------
    available
        The offers of the setting's drafter along that output; None without a drafter.
    tokens, limit
        Number of tokens of the output, and the largest number that it could have had.

    Raises
    ------
    ConfigError
        The trace has shorter drafts than the setting.
    """
    if available is None or drafting.drafter == "none":
        return Steps(rows=(1,) * (tokens - 1), accepted=(0,) * (tokens - 1))
    if drafting.k > available.longest:
        raise ConfigError(
            f"drafts of {drafting.k} tokens were requested of a trace with {available.longest}",
            remedy="Trace longer drafts",
        )
    rows, accepted, output_length = [], [], 1
    while output_length < tokens:
        known_tokens = available.prompt_tokens + output_length
        drafted = verified_drafts(
            drafting, available.drafted[output_length - 1], known_tokens, limit - output_length
        )
        taken = min(drafted, available.agreed[output_length - 1])
        rows.append(1 + (drafting.k if drafting.padded and not drafting.edges else drafted))
        accepted.append(taken)
        output_length += taken + 1
    return Steps(rows=tuple(rows), accepted=tuple(accepted))
