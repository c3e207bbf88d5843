"""Where the granularity of one MoE layer or attention call steps, as its release chooses it."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Generic, TypeVar

from msgspec import Struct

from nearfree.errors import EvidenceError
from nearfree.sources.answers.granularity import (
    MOST_POINTS,
    Files,
    Interval,
    attention_intervals,
    moe_intervals,
)
from nearfree.sources.answers.moe import Block
from nearfree.sources.attention import Tile

MOST_TOKENS = 4096
"""Tokens (or positions) up to which a change of the granularity is looked for."""
SHORT_DIGEST = 12
Choice = TypeVar("Choice", Block, Tile)


class Blocks(Struct, frozen=True, kw_only=True):
    """Expert blocks at some numbers of tokens, one entry each.

    `block_m` is BLOCK_SIZE_M in tokens, `path` the way through the backend (aligned or naive),
    `source` what chose the block (override, tuned, fallback), and `evidence` the lines that say
    so. `block_n` and `block_k` are BLOCK_SIZE_N and BLOCK_SIZE_K, None where no rule says them.
    """

    tokens: tuple[int, ...]
    block_m: tuple[int, ...]
    block_n: tuple[int | None, ...]
    block_k: tuple[int | None, ...]
    path: tuple[str, ...]
    source: tuple[str, ...]
    evidence: tuple[str, ...]


class Tiles(Struct, frozen=True, kw_only=True):
    """Query tiles at some numbers of positions, one entry each.

    `tile_rows` are the rows of a tile, of which a position takes `rows_per_position`; `tiles` is
    how many a request takes for each (key-value) head.
    """

    positions: tuple[int, ...]
    tile_rows: tuple[int, ...]
    rows_per_position: tuple[int, ...]
    tiles: tuple[int, ...]
    path: tuple[str, ...]
    evidence: tuple[str, ...]


class Memo(Generic[Choice]):
    """A rule asked once at each number, and how far what it says stays the same.

    Parameters
    ----------
    at
        The rule.
    step
        What must stay the same, at a number.
    most
        The largest number that is looked at.
    """

    def __init__(
        self, at: Callable[[int], Choice], step: Callable[[int], object], most: int = MOST_TOKENS
    ) -> None:
        self._at: Callable[[int], Choice] = at
        self._step: Callable[[int], object] = cache(step)
        self.most = most
        self._known: dict[int, Choice] = {}
        self._ends: list[tuple[int, int]] = []
        self.cited: dict[int, str] = {}
        """Where the answer at a number stands, once it was asked for."""

    def at(self, number: int) -> Choice:
        """Return the rule's answer."""
        if number not in self._known:
            self._known[number] = self._at(number)
        return self._known[number]

    def last_alike(self, first: int) -> int | None:
        """Return the last number up to which every answer is alike that at `first`.

        None if they are alike as far as is looked, which stands for no limit.
        """
        for begin, end in self._ends:
            if begin <= first <= end:
                return end if end < self.most else None
        same, last = self._step(first), first
        while last < self.most and self._step(last + 1) == same:
            last += 1
        self._ends.append((first, last))
        return last if last < self.most else None


class BlockSteps:
    """The expert blocks of one layer."""

    def __init__(self, memo: Memo[Block], files: Files) -> None:
        self._memo, self._files = memo, files

    def at(self, tokens: Sequence[int]) -> Blocks:
        """Return the blocks at some numbers of tokens (b N)."""
        found = [self._memo.at(each) for each in tokens]
        return Blocks(
            tokens=tuple(tokens),
            block_m=tuple(block.value for block in found),
            block_n=tuple(block.block_n for block in found),
            block_k=tuple(block.block_k for block in found),
            path=tuple(block.path for block in found),
            source=tuple(block.source for block in found),
            evidence=tuple(self._evidence(*each) for each in zip(tokens, found, strict=True)),
        )

    def sizes(self, tokens: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Return BLOCK_SIZE_M, BLOCK_SIZE_N and BLOCK_SIZE_K at some numbers of tokens.

        Raises
        ------
        EvidenceError
            The kernel chooses one of them itself.
        """
        found = [self._memo.at(each) for each in tokens]
        columns = [block.block_n for block in found if block.block_n is not None]
        depths = [block.block_k for block in found if block.block_k is not None]
        if len(columns) < len(found) or len(depths) < len(found):
            raise EvidenceError(
                "no rule says BLOCK_SIZE_N and BLOCK_SIZE_K of this layer",
                remedy="Ask for another release or element type",
            )
        return [block.value for block in found], columns, depths

    def tau(self, tokens: int) -> int | None:
        """Return the last number of tokens with the block and path of this one, None for no limit.

        Raises
        ------
        EvidenceError
            This many tokens are not looked at.
        """
        if tokens > self._memo.most:
            raise EvidenceError(
                f"a change of block is looked for up to {self._memo.most} tokens, not {tokens}",
                remedy="Ask for a smaller batch or baseline",
            )
        return self._memo.last_alike(tokens)

    def _evidence(self, tokens: int, block: Block) -> str:
        if tokens not in self._memo.cited:
            at = min(tokens, MOST_POINTS)  # the last entry of a tuned file goes on from there
            _, (interval,) = moe_intervals(lambda _: block, at, at, self._files)
            self._memo.cited[tokens] = cited(interval)
        return self._memo.cited[tokens]


class TileSteps:
    """The query tiles of one attention call."""

    def __init__(self, memo: Memo[Tile], files: Files) -> None:
        self._memo, self._files = memo, files

    def at(self, positions: Sequence[int]) -> Tiles:
        """Return the tiles at some numbers of positions (N)."""
        found = [self._memo.at(each) for each in positions]
        return Tiles(
            positions=tuple(positions),
            tile_rows=tuple(tile.tile for tile in found),
            rows_per_position=tuple(tile.rows_per_position for tile in found),
            tiles=tuple(tile.tiles for tile in found),
            path=tuple(tile.path for tile in found),
            evidence=tuple(self._evidence(*each) for each in zip(positions, found, strict=True)),
        )

    def m_attn(self, baseline: int = 1) -> int | None:
        """Return the last N before tile size or tile count first differ from the baseline's.

        None if they never do, as far as is looked.
        """
        return self._memo.last_alike(baseline)

    def _evidence(self, positions: int, tile: Tile) -> str:
        if positions not in self._memo.cited:
            at = min(positions, MOST_POINTS)
            _, (interval,) = attention_intervals(lambda _: tile, at, at, self._files)
            self._memo.cited[positions] = cited(interval)
        return self._memo.cited[positions]


def cited(interval: Interval) -> str:
    """Return where an interval's value stands: file, lines and the file's digest, shortened."""
    lines = "" if interval.lines is None else f":{interval.lines[0]}-{interval.lines[1]}"
    digest = "" if interval.sha256 is None else f" ({interval.sha256[:SHORT_DIGEST]})"
    return f"{interval.file}{lines}{digest}"
