"""Query tiles of many attention calls as arrays: calls with equal rules go together."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from nearfree.core.modules.attention import AttentionQuestion
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.tiles import Integers
from nearfree.errors import NearfreeError
from nearfree.sources.attention import Tile

POINTS_AT_ONCE = 1 << 18
"""Points (calls times grid) that are resolved in one array, to bound memory."""


def tile_sizes(
    resolver: Resolver, questions: Sequence[AttentionQuestion], positions: Integers
) -> tuple[Integers, list[NearfreeError | None]]:
    """Return the query tiles of many calls, equal to those of `Resolver.attention`.

    Parameters
    ----------
    positions
        Numbers of positions (N), [call, grid].

    Returns
    -------
    Rows of a tile, rows per position, and 1 where one tile loops over all keys (no split),
    [3, call, grid]; and per call the error of its question or of its first N without a tile, or
    None.
    """
    sizes = np.zeros((3, *positions.shape), np.int64)
    errors: list[NearfreeError | None] = [None] * len(questions)
    for rows in _groups_of_calls(questions, max(1, POINTS_AT_ONCE // max(1, positions.shape[1]))):
        group = [questions[row] for row in rows]
        sizes[:, rows] = _grouped_tiles(resolver, group, positions[rows])
    for row in np.flatnonzero((sizes[:2] < 1).any(axis=(0, 2))).tolist():
        try:
            steps = resolver.attention(questions[row])
            tiles = [steps.at(n) for n in positions[row].tolist()]
            sizes[:, row] = np.array([_sizes_of(tile) for tile in tiles]).T
        except NearfreeError as error:
            errors[row] = error
            sizes[:, row] = 1
    return sizes, errors


def _groups_of_calls(questions: Sequence[AttentionQuestion], limit: int) -> Iterator[list[int]]:
    """Yield the indices of calls that differ only in batch and context, at most `limit` a group."""
    groups: dict[AttentionQuestion, list[int]] = {}
    for row, question in enumerate(questions):
        captured = question.most if question.cuda_graph else 1
        # Rules may depend on whether there is a cache, so the key keeps that.
        key = replace(question, batch=1, context=min(question.context, 1), most=captured)
        groups.setdefault(key, []).append(row)
    for rows in groups.values():
        for begin in range(0, len(rows), limit):
            yield rows[begin : begin + limit]


def _grouped_tiles(
    resolver: Resolver, questions: Sequence[AttentionQuestion], positions: Integers
) -> Integers:
    """Return the tiles of one group of calls; 0 at points that must be resolved one by one."""
    shape = positions.shape
    try:
        batch, context = (
            np.repeat(np.array([getattr(call, name) for call in questions], np.int64), shape[1])
            for name in ("batch", "context")
        )
        codes, tiles = resolver.call(questions[0]).kinds(batch, context, positions.reshape(-1))
    except (NearfreeError, OverflowError):
        return np.zeros((3, *shape), np.int64)
    kind_sizes = [(0, 0, 0) if tile is None else _sizes_of(tile) for tile in tiles]
    return np.array(kind_sizes, np.int64)[codes].T.reshape(3, *shape)


def _sizes_of(tile: Tile) -> tuple[int, int, int]:
    return tile.tile, tile.rows_per_position, int(tile.unsplit)
