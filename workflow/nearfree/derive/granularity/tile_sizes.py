"""Query tiles of many calls: those that differ in batch and context alone are asked together."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from nearfree.core.modules.attention import AttentionQuestion
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.granularity.tiles import Whole
from nearfree.errors import NearfreeError

POINTS_AT_ONCE = 1 << 18


def tile_sizes(
    resolver: Resolver, asked: Sequence[AttentionQuestion], positions: Whole
) -> tuple[Whole, list[NearfreeError | None]]:
    """Return the tiles of many calls, as `Resolver.attention` gives those of one.

    Parameters
    ----------
    resolver
        What the rules are asked of.
    asked
        The calls.
    positions
        Numbers of positions (N), [call, grid].

    Returns
    -------
    Rows of a tile, and the rows that a position takes, [2, call, grid]; and an error for each call
    that has none: that of its question, or of the first N without a tile.
    """
    sizes = np.zeros((2, *positions.shape), np.int64)
    errors: list[NearfreeError | None] = [None] * len(asked)
    for places in _alike(asked, max(1, POINTS_AT_ONCE // max(1, positions.shape[1]))):
        part = [asked[place] for place in places]
        sizes[:, places] = _together(resolver, part, positions[places])
    for place in np.flatnonzero((sizes < 1).any(axis=(0, 2))).tolist():
        try:
            steps = resolver.attention(asked[place])
            tiles = [steps.at(n) for n in positions[place].tolist()]
            sizes[:, place] = np.array([(tile.tile, tile.rows_per_position) for tile in tiles]).T
        except NearfreeError as error:
            errors[place] = error
            sizes[:, place] = 1
    return sizes, errors


def _alike(asked: Sequence[AttentionQuestion], most: int) -> Iterator[list[int]]:
    """Yield the places of calls that differ in batch and context, so many at once at most."""
    groups: dict[AttentionQuestion, list[int]] = {}
    for place, each in enumerate(asked):
        captured = each.most if each.cuda_graph else 1
        # What is asked of a release may depend on whether there is a cache.
        alike = replace(each, batch=1, context=min(each.context, 1), most=captured)
        groups.setdefault(alike, []).append(place)
    for places in groups.values():
        for begin in range(0, len(places), most):
            yield places[begin : begin + most]


def _together(resolver: Resolver, asked: Sequence[AttentionQuestion], positions: Whole) -> Whole:
    """Return the tiles of calls that are alike; zero at points that must be asked alone."""
    shape = positions.shape
    try:
        batch, context = (
            np.repeat(np.array(each, np.int64), shape[1])
            for each in ([one.batch for one in asked], [one.context for one in asked])
        )
        codes, tiles = resolver.call(asked[0]).kinds(batch, context, positions.reshape(-1))
    except (NearfreeError, OverflowError):
        return np.zeros((2, *shape), np.int64)
    of_kind = [(0, 0) if tile is None else (tile.tile, tile.rows_per_position) for tile in tiles]
    return np.array(of_kind, np.int64)[codes].T.reshape(2, *shape)
