"""Which entry of a tuned file holds at M tokens: the nearest, `min(keys, key=abs(key - M))`.

vLLM and SGLang, `try_get_optimal_moe_config` in every release: of two equally near keys Python's
`min` takes the first it meets, which is the first in the file.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from nearfree.errors import EvidenceError

Value = TypeVar("Value")


class Interval(NamedTuple, Generic[Value]):
    """The numbers of tokens M, both ends included, at which one value holds."""

    first: int
    last: int
    value: Value


def nearest(tokens: Sequence[int], m: int) -> int:
    """Return the number of the entry that a backend takes at `m` tokens, counted from 0.

    Parameters
    ----------
    tokens
        The file's keys, in the file's order.

    Raises
    ------
    EvidenceError
        There is no entry.
    """
    _check(tokens)
    distances = [abs(each - m) for each in tokens]
    return distances.index(min(distances))


def tuned_intervals(
    tokens: Sequence[int], values: Sequence[Value], first: int, last: int
) -> list[Interval[Value]]:
    """Return the value of each M from `first` to `last`, as intervals in rising order.

    Neighbours differ in their value: entries that agree are one interval. None if last < first.

    Parameters
    ----------
    tokens, values
        The file's keys and what each stands for, in the file's order.

    Raises
    ------
    EvidenceError
        There is no entry.
    """
    _check(tokens)
    entries: dict[int, Value] = {}
    for key, value in zip(tokens, values, strict=True):
        entries.setdefault(key, value)  # the first of equal keys is the one taken
    place = {key: index for index, key in enumerate(entries)}
    keys = sorted(entries)
    # Only neighbours compete for an M: keys differ, so a third one is farther than one of them.
    ends = [_last_of_lower(low, high, place) for low, high in pairwise(keys)]
    intervals: list[Interval[Value]] = []
    start = first
    for key, end in zip(keys, [*ends, last], strict=True):
        stop = min(end, last)
        if stop < start:
            continue
        if intervals and intervals[-1].value == entries[key]:
            intervals[-1] = intervals[-1]._replace(last=stop)
        else:
            intervals.append(Interval(start, stop, entries[key]))
        start = stop + 1
    return intervals


def _last_of_lower(low: int, high: int, place: dict[int, int]) -> int:
    """Return the largest M at which the lower of two neighbouring keys is taken."""
    # An M halfway between them exists if their sum is even; it goes to the first in the file.
    return (low + high) // 2 if place[low] < place[high] else (low + high - 1) // 2


def _check(tokens: Sequence[int]) -> None:
    if not tokens:
        raise EvidenceError(
            "a tuned file without entries chooses no block size",
            remedy="Use the rule in the source, or mend the file",
        )
