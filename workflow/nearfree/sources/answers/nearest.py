"""Which entry of a tuned file holds at M tokens: the nearest, `min(keys, key=abs(key - M))`.

vLLM and SGLang, `try_get_optimal_moe_config` in every release: of two equally near keys Python's
`min` takes the first it meets, which is the first in the file.
"""

from itertools import pairwise
from typing import NamedTuple

from nearfree.errors import EvidenceError


class Interval(NamedTuple):
    """The numbers of tokens M, both ends included, at which one BLOCK_SIZE_M holds."""

    first: int
    last: int
    block_size_m: int


def nearest_block_size(tokens: tuple[int, ...], block_size_m: tuple[int, ...], m: int) -> int:
    """Return the BLOCK_SIZE_M that a backend takes at `m` tokens.

    Parameters
    ----------
    tokens, block_size_m
        The file's keys and what each stands for, in the file's order.

    Raises
    ------
    EvidenceError
        There is no entry.
    """
    entries = _by_key(tokens, block_size_m)
    return entries[min(entries, key=lambda key: abs(key - m))]


def tuned_intervals(
    tokens: tuple[int, ...], block_size_m: tuple[int, ...], first: int, last: int
) -> list[Interval]:
    """Return the BLOCK_SIZE_M of each M from `first` to `last`, as intervals in rising order.

    Neighbours differ in their value: entries that agree are one interval. None if last < first.

    Raises
    ------
    EvidenceError
        There is no entry.
    """
    entries = _by_key(tokens, block_size_m)
    place = {key: index for index, key in enumerate(entries)}
    keys = sorted(entries)
    # Only neighbours compete for an M: keys differ, so a third one is farther than one of them.
    ends = [_last_of_lower(low, high, place) for low, high in pairwise(keys)]
    intervals: list[Interval] = []
    start = first
    for key, end in zip(keys, [*ends, last], strict=True):
        stop = min(end, last)
        if stop < start:
            continue
        if intervals and intervals[-1].block_size_m == entries[key]:
            intervals[-1] = intervals[-1]._replace(last=stop)
        else:
            intervals.append(Interval(start, stop, entries[key]))
        start = stop + 1
    return intervals


def _last_of_lower(low: int, high: int, place: dict[int, int]) -> int:
    """Return the largest M at which the lower of two neighbouring keys is taken."""
    # An M halfway between them exists if their sum is even; it goes to the first in the file.
    return (low + high) // 2 if place[low] < place[high] else (low + high - 1) // 2


def _by_key(tokens: tuple[int, ...], block_size_m: tuple[int, ...]) -> dict[int, int]:
    """Return the entries by key, in the file's order; the first of equal keys is the one taken."""
    entries: dict[int, int] = {}
    for key, value in zip(tokens, block_size_m, strict=True):
        entries.setdefault(key, value)
    if not entries:
        raise EvidenceError(
            "a tuned file without entries chooses no block size",
            remedy="Use the rule in the source, or mend the file",
        )
    return entries
