"""Where the granularity of one MoE layer or attention call steps, as its release chooses it."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from nearfree.derive.granularity.tiles import Whole
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.events import Quote
from nearfree.sources.answers.dense import Rows
from nearfree.sources.answers.granularity import MOST_POINTS, Files
from nearfree.sources.answers.intervals import Evidence, Interval
from nearfree.sources.answers.lookup import DEFAULT_STAGES, DEFAULT_WARPS
from nearfree.sources.answers.moe import Block
from nearfree.sources.attention import Tile
from nearfree.sources.language.closures import NO_VALUE
from nearfree.sources.language.thresholds import UnsettledError

MOST_TOKENS = 4096
"""Tokens (or positions) up to which a change of the granularity is looked for."""
SHORT_DIGEST = 12
Choice = TypeVar("Choice", Block, Tile, Rows)


class Steps(Generic[Choice]):
    """The expert blocks of one layer by tokens (b N), or the query tiles of one call by N.

    Or how one dense product takes its rows, by their number.

    The rule is evaluated once at each number.

    Parameters
    ----------
    at
        The rule.
    step
        What must stay the same, at a number.
    intervals
        Returns paths and intervals with their evidence, of a rule over a range of numbers.
    files
        The files that the rule was read from.
    most
        The largest number that is looked at.
    changes
        Returns every number up to the largest at which what must stay the same may change; without
        it, or where it cannot say, each number is looked at.
    """

    def __init__(
        self,
        at: Callable[[int], Choice],
        step: Callable[[int], object],
        intervals: Callable[..., tuple[Any, tuple[Interval, ...]]],
        files: Files,
        most: int = MOST_TOKENS,
        *,
        changes: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self._at: Callable[[int], Choice] = at
        self._step: Callable[[int], object] = cache(step)
        self._intervals, self._files, self._most = intervals, files, most
        self._told = changes
        self._known: dict[int, Choice] = {}
        self._ends: list[tuple[int, int]] = []
        self._cited: dict[int, str] = {}

    def at(self, number: int) -> Choice:
        """Return the block or tile at a number of tokens or positions."""
        if number not in self._known:
            self._known[number] = self._at(number)
        return self._known[number]

    def evidence(self, number: int) -> str:
        """Return where the block or tile at a number stands: file, lines, shortened digest."""
        if number not in self._cited:
            choice = self.at(number)
            place = min(number, MOST_POINTS)  # the last entry of a tuned file goes on from there
            _, (interval,) = self._intervals(lambda _: choice, place, place, self._files)
            self._cited[number] = _cited(interval)
        return self._cited[number]

    def quoted(self, quote: Quote) -> str:
        """Return where a quote stands: file, lines, shortened digest."""
        return _cited(self._files.place(quote))

    def last_alike(self, first: int = 1) -> int | None:
        """Return the last number before block and path, or tile size and count, first change.

        None if they stay those of `first` as far as is looked, which stands for no limit.
        """
        for begin, end in self._ends:
            if begin <= first <= end:
                return end if end < self._most else None
        same, last = self._step(first), max(first, self._most)
        for number in self._changes:
            if number > first and self._step(number) != same:
                last = number - 1
                break
        self._ends.append((first, last))
        return last if last < self._most else None

    @cached_property
    def _changes(self) -> Sequence[int]:
        """The numbers at which something may change from the one before."""
        every = range(2, self._most + 1)
        if self._told is None:
            return every
        try:
            return self._told(self._most)
        except (*NO_VALUE, UnsettledError, NearfreeError):
            return every

    def tau(self, tokens: int) -> int | None:
        """Return `last_alike` of a layer's tokens.

        Raises
        ------
        EvidenceError
            This many tokens are not looked at.
        """
        if tokens > self._most:
            raise EvidenceError(
                f"a change of block is looked for up to {self._most} tokens, not {tokens}",
                remedy="Ask for a smaller batch or baseline",
            )
        return self.last_alike(tokens)


def block_sizes(steps: Steps[Block], tokens: Whole) -> Whole:
    """Return BLOCK_SIZE_M, N and K, num_warps and num_stages, [5, ...], at numbers of tokens.

    Warps and stages that a configuration leaves open are Triton's defaults on CUDA.

    Raises
    ------
    EvidenceError
        The kernel chooses one of the sizes itself.
    """
    numbers, places = np.unique(tokens, return_inverse=True)
    blocks = [steps.at(number) for number in numbers.tolist()]
    if any(block.block_n is None or block.block_k is None for block in blocks):
        raise EvidenceError(
            "no rule says BLOCK_SIZE_N and BLOCK_SIZE_K of this layer",
            remedy="Ask for another release or element type",
        )
    sizes = [
        (block.value, block.block_n, block.block_k, block.num_warps or DEFAULT_WARPS,
         block.num_stages or DEFAULT_STAGES)
        for block in blocks
    ]  # fmt: skip
    return np.array(sizes, np.int64).T[:, places.reshape(tokens.shape)]


def tile_evidence(steps: Steps[Tile], positions: int) -> str:
    """Return where a call's tile stands, or of the first that splits no keys, what splits them.

    That is the last line by which a call of one position less differs from it.
    """
    fewer, here = steps.at(max(positions - 1, 1)), steps.at(positions)
    if here.unsplit and not fewer.unsplit:
        alike = set(here.branches[-1].quotes)
        apart = [each for each in fewer.branches[-1].quotes if each not in alike]
        return steps.quoted((apart or here.branches[-1].quotes)[-1])
    return steps.evidence(positions)


def _cited(place: Interval | Evidence) -> str:
    lines = "" if place.lines is None else f":{place.lines[0]}-{place.lines[1]}"
    digest = "" if place.sha256 is None else f" ({place.sha256[:SHORT_DIGEST]})"
    return f"{place.file}{lines}{digest}"
