"""The numbers of rows at which a release changes the granularity of a layer, call or product."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Generic, TypeVar

import numpy as np

from nearfree.backends.moe_kernels import NAIVE
from nearfree.derive.granularity.tiles import Integers
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.events import Quote
from nearfree.sources.answers.dense import Rows
from nearfree.sources.answers.granularity import MOST_POINTS, Files, intervals
from nearfree.sources.answers.intervals import Evidence, Interval, place_of
from nearfree.sources.answers.lookup import DEFAULT_STAGES, DEFAULT_WARPS
from nearfree.sources.answers.moe import Block
from nearfree.sources.attention import Tile
from nearfree.sources.language.closures import NO_VALUE
from nearfree.sources.language.thresholds import UnsettledError

MOST_TOKENS = 4096
"""The search for changes of granularity ends at this number of tokens or positions."""
SHORT_DIGEST = 12
"""Hexadecimal digits of a file's SHA-256 in a citation."""
Choice = TypeVar("Choice", Block, Tile, Rows)


class Steps(Generic[Choice]):
    """The granularity that a rule chooses, as a function of one number.

    The number is tokens (b N) for the expert blocks of a layer, N for the query tiles of a call,
    and rows for a dense product. The rule is evaluated once for each number.

    Parameters
    ----------
    at
        The rule: returns the choice at a number.
    step
        Returns the part of the choice that must stay the same within one step, at a number.
    files
        The files that the rule was read from.
    largest
        The search for changes ends here.
    changes
        Returns every number up to a largest one at which `step` may change. Without it, or where
        it raises, every number is tested.
    """

    def __init__(
        self,
        at: Callable[[int], Choice],
        step: Callable[[int], object],
        files: Files,
        largest: int = MOST_TOKENS,
        *,
        changes: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self.at: Callable[[int], Choice] = cache(at)
        """Returns the choice at a number of tokens, positions or rows."""
        self._step: Callable[[int], object] = cache(step)
        self._files, self._largest = files, largest
        self._candidates = changes
        self._constant_ranges: list[tuple[int, int]] = []
        self.evidence: Callable[[int], str] = cache(self._evidence)
        """Returns the source of the choice at a number: file, lines, shortened digest."""

    def _evidence(self, number: int) -> str:
        choice = self.at(number)
        point = min(number, MOST_POINTS)  # the last entry of a tuned file holds beyond
        _, (interval,) = intervals(lambda _: choice, point, point, self._files)
        return _citation(interval)

    def quoted(self, quote: Quote) -> str:
        """Return the source of a quote: file, lines, shortened digest."""
        return _citation(self._files.quote_evidence(quote))

    def last_alike(self, first: int = 1) -> int | None:
        """Return the last number before the step of `first` changes.

        None stands for no limit: the step does not change within the search range.
        """
        for begin, end in self._constant_ranges:
            if begin <= first <= end:
                return end if end < self._largest else None
        first_step, last = self._step(first), max(first, self._largest)
        for number in self._changes:
            if number > first and self._step(number) != first_step:
                last = number - 1
                break
        self._constant_ranges.append((first, last))
        return last if last < self._largest else None

    @cached_property
    def _changes(self) -> Sequence[int]:
        """The numbers at which the step may differ from that of the previous number."""
        numbers = range(2, self._largest + 1)
        if self._candidates is None:
            return numbers
        try:
            return self._candidates(self._largest)
        except (*NO_VALUE, UnsettledError, NearfreeError):
            return numbers

    def tau(self, tokens: int) -> int | None:
        """Return the granularity limit tau of a layer: `last_alike` at a number of tokens.

        Raises EvidenceError if the tokens are beyond the search range.
        """
        if tokens > self._largest:
            raise EvidenceError(
                f"changes of block are searched up to {self._largest} tokens, not {tokens}",
                remedy="Ask for a smaller batch or baseline",
            )
        return self.last_alike(tokens)


def block_sizes(steps: Steps[Block], tokens: Integers) -> Integers:
    """Return the sizes of blocks at numbers of tokens, [6, ...].

    They are BLOCK_SIZE_M, N and K, num_warps, num_stages, and 1 where each pair has a block of its
    own, else 0. Triton's defaults on CUDA stand for warps and stages that a configuration leaves
    open. Raises EvidenceError if the kernel chooses one of the sizes itself.
    """
    numbers, inverse = np.unique(tokens, return_inverse=True)
    blocks = [steps.at(number) for number in numbers.tolist()]
    unsaid = [block for block in blocks if block.block_n is None or block.block_k is None]
    if unsaid:
        sizes_unsaid, kernel = "BLOCK_SIZE_N and BLOCK_SIZE_K", unsaid[0].kernel
        what = f"no rule says {sizes_unsaid} of this layer"
        if kernel:
            what = f"{kernel} runs this layer and chooses {sizes_unsaid} itself"
        raise EvidenceError(what, remedy="Ask for another release or element type")
    sizes = [
        (block.value, block.block_n, block.block_k, block.num_warps or DEFAULT_WARPS,
         block.num_stages or DEFAULT_STAGES, block.path == NAIVE)
        for block in blocks
    ]  # fmt: skip
    return np.array(sizes, np.int64).T[:, inverse.reshape(tokens.shape)]


def tile_evidence(steps: Steps[Tile], positions: int) -> str:
    """Return the source of a call's tile.

    Where this call stops splitting keys and the one with a position less still splits them, it is
    the source of that difference: the last quote of the smaller call that this one lacks.
    """
    previous, tile = steps.at(max(positions - 1, 1)), steps.at(positions)
    if tile.unsplit and not previous.unsplit:
        shared = set(tile.branches[-1].quotes)
        new_quotes = [quote for quote in previous.branches[-1].quotes if quote not in shared]
        return steps.quoted((new_quotes or tile.branches[-1].quotes)[-1])
    return steps.evidence(positions)


def _citation(place: Interval | Evidence) -> str:
    digest = "" if place.sha256 is None else f" ({place.sha256[:SHORT_DIGEST]})"
    return f"{place_of(place.file, place.lines)}{digest}"
