"""Draft lengths by batch size: from boundaries, then as ranges of batch sizes.

K draft tokens make K + 1 positions in the forward that verifies them, so a boundary of N_max
positions leaves K = N_max - 1.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from nearfree.errors import ConfigError

LARGEST_BATCH = 2**31 - 1
LONGEST_DRAFT = 4096
"""No engine serves a larger batch and no drafter proposes a longer draft; more is a mistake."""


class Range(NamedTuple):
    """Batch sizes `first` to `last`, both included, and their draft length K."""

    first: int
    last: int
    k: int


def draft_lengths(boundary_by_batch: Mapping[int, float], *, most: int) -> dict[int, int]:
    """Return K by batch size: the drafts that the verifying forward takes nearly for free.

    Parameters
    ----------
    boundary_by_batch
        N_max in positions by batch size b; a fraction counts as the positions below it, one below
        1 as 1, and infinity as no bound.
    most
        The longest draft, in tokens, at least 1.

    Raises
    ------
    ConfigError
        A batch size or `most` is no whole number in range, or a boundary no positive number.
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
    """Return K for every batch size from 1 to the largest known one, equal neighbours merged.

    Between two known batch sizes the smaller of their two K is taken. Under the laws of the paper
    (sec. 3.2, 3.3), where N_max falls as 1/b, that is the K of the larger batch, which is never
    too long. Latency in stairs may let K rise with the batch; a rise that is given is kept, as no
    engine asks for falling K.

    Parameters
    ----------
    k_by_batch
        K by batch size; batch 1 must be among them.

    Raises
    ------
    ConfigError
        Batch 1 is missing, no K is above 0, or a batch size or K is no whole number in range.
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


def _parts(known: list[tuple[int, int]]) -> Iterable[Range]:
    yield Range(known[0][0], known[0][0], known[0][1])
    for (before, k_before), (batch, k) in pairwise(known):
        if batch > before + 1:
            yield Range(before + 1, batch - 1, min(k_before, k))
        yield Range(batch, batch, k)


def _merged(parts: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for part in parts:
        if merged and merged[-1].k == part.k:
            merged[-1] = merged[-1]._replace(last=part.last)
        else:
            merged.append(part)
    return tuple(merged)


def check_batch(batch: object) -> None:
    """Refuse what is no batch size; ConfigError."""
    _check(batch, "batch size", "a whole number", LARGEST_BATCH)


def check_most(most: object) -> None:
    """Refuse what is no longest draft; ConfigError."""
    _check(most, "longest draft", "a whole number of tokens", LONGEST_DRAFT)


def _check(value: object, what: str, kind: str, largest: int) -> None:
    if not is_whole(value, 1, largest):
        raise ConfigError(f"{shown(value)} is no {what}", remedy=f"Give {kind} from 1 to {largest}")


def is_whole(value: object, low: int, high: int) -> bool:
    """Return whether a value is a whole number, no bool, within bounds."""
    return type(value) is int and low <= value <= high


def is_number(value: object) -> bool:
    """Return whether a value is a number, no bool and not NaN; it may be infinite."""
    if isinstance(value, float):
        return not math.isnan(value)
    return type(value) is int


def shown(value: object) -> str:
    """Return a value as a message shows it: in a few characters, whatever it is."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    if isinstance(value, int | float | str | None):
        return repr(value)[:40]
    return f"a {type(value).__name__}"
