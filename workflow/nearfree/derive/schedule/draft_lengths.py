"""Draft lengths K by batch size, from boundaries, and their ranges of batch sizes.

The forward that verifies K draft tokens has K + 1 positions, so a boundary of N_max positions gives
K = N_max - 1.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import NamedTuple

from nearfree.errors import ConfigError

LARGEST_BATCH = 2**31 - 1
LONGEST_DRAFT = 4096
"""Larger batches and longer drafts are refused as mistakes: no engine or drafter has them."""


class Range(NamedTuple):
    """Batch sizes `first` to `last`, both included, and their draft length K."""

    first: int
    last: int
    k: int


def draft_lengths(boundary_by_batch: Mapping[int, float], *, most: int) -> dict[int, int]:
    """Return the near-free K by batch size.

    Parameters
    ----------
    boundary_by_batch
        N_max in positions by batch size b; a fraction is rounded down, a value below 1 counts as 1,
        and infinity means no bound.
    most
        The longest draft, in tokens, at least 1.

    Raises
    ------
    ConfigError
        A batch size or `most` is not a whole number in range, or a boundary is not positive.
    """
    check_most(most)
    for batch, n_max in boundary_by_batch.items():
        check_batch(batch)
        if not is_number(n_max) or not n_max > 0:
            raise ConfigError(
                f"the boundary of batch {batch} is {shown(n_max)}",
                remedy="Give a number of positions above 0",
            )
    return {
        batch: math.floor(min(max(n_max, 1), most + 1)) - 1
        for batch, n_max in sorted(boundary_by_batch.items())
    }


def ranges(k_by_batch: Mapping[int, int]) -> tuple[Range, ...]:
    """Return K for every batch size from 1 to the largest given, with equal neighbours merged.

    A batch size between two given ones gets the smaller of their K. Under the laws of the paper
    (sec. 3.2, 3.3), where N_max falls as 1/b, that is the K of the larger batch, which is never too
    long. Where latency has steps K may rise with the batch; a given rise is kept, as no engine
    requires falling K. `k_by_batch` is K by batch size, including batch 1. Raises ConfigError if
    batch 1 is missing, no K is above 0, or a batch size or K is not a whole number in range.
    """
    for batch, k in k_by_batch.items():
        check_batch(batch)
        if not is_whole(k, 0, LONGEST_DRAFT):
            raise ConfigError(
                f"the draft length of batch {batch} is {shown(k)}",
                remedy=f"Give a whole number from 0 to {LONGEST_DRAFT}",
            )
    if 1 not in k_by_batch:
        raise ConfigError(
            "the schedule has no batch size 1, where engines want it to begin",
            remedy="Give the boundary of batch 1 too",
        )
    if not any(k_by_batch.values()):
        raise ConfigError(
            "no batch size of the schedule has a draft length above 0",
            remedy="Serve without speculative decoding, or ask with another tolerance, acceptance "
            "or draft cost",
        )
    return _merged(_parts(sorted(k_by_batch.items())))


def _parts(points: list[tuple[int, int]]) -> Iterable[Range]:
    yield Range(points[0][0], points[0][0], points[0][1])
    for (previous, previous_k), (batch, k) in pairwise(points):
        if batch > previous + 1:
            yield Range(previous + 1, batch - 1, min(previous_k, k))
        yield Range(batch, batch, k)


def _merged(parts: Iterable[Range]) -> tuple[Range, ...]:
    runs = ([*run] for _, run in groupby(parts, key=lambda part: part.k))
    return tuple(run[0]._replace(last=run[-1].last) for run in runs)


def check_batch(batch: object) -> None:
    """Raise ConfigError unless `batch` is a batch size."""
    _check_whole(batch, "batch size", "a whole number", LARGEST_BATCH)


def check_most(most: object) -> None:
    """Raise ConfigError unless `most` is a number of draft tokens."""
    _check_whole(most, "longest draft", "a whole number of tokens", LONGEST_DRAFT)


def _check_whole(value: object, quantity: str, kind: str, largest: int) -> None:
    if not is_whole(value, 1, largest):
        raise ConfigError(
            f"{shown(value)} is no {quantity}", remedy=f"Give {kind} from 1 to {largest}"
        )


def is_whole(value: object, low: int, high: int) -> bool:
    """Return whether a value is a whole number within bounds, and not a bool."""
    return type(value) is int and low <= value <= high


def is_number(value: object) -> bool:
    """Return whether a value is a number, possibly infinite, but neither a bool nor NaN."""
    if isinstance(value, float):
        return not math.isnan(value)
    return type(value) is int


def shown(value: object) -> str:
    """Return a short text of any value, for a message."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    if isinstance(value, int | float | str | None):
        return repr(value)[:40]
    return f"a {type(value).__name__}"
