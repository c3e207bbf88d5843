"""N_max from a curve: last pass, first exit, interval and verdict (paper, sec. 2.2)."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

from msgspec import Struct

from nearfree.errors import EvidenceError

Verdict = Literal["sharp", "bracketed", "censored"]
CONFIDENCE = 0.95


class Ratio(Struct, frozen=True):
    """T(N) / T(baseline) at one N: the median over rounds and its confidence interval."""

    n: int
    value: float
    low: float
    high: float


class Boundary(Struct, frozen=True):
    """The near-free boundary of one curve at one tolerance, in positions.

    `last_pass` is the paper's N_max, the largest sampled N within the tolerance; `first_exit` is
    the last N before the first violation. `low` and `high` bound `last_pass` by the confidence
    intervals of the ratios; `next_n` is the grid point after `last_pass`, None at the grid's end.
    """

    last_pass: int
    first_exit: int
    low: int
    high: int
    next_n: int | None
    verdict: Verdict


def median(values: Sequence[float]) -> float:
    """Return the middle value, the mean of the two middle ones for an even count."""
    ordered = sorted(values)
    middle, odd = divmod(len(ordered), 2)
    return ordered[middle] if odd else (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the distribution-free confidence interval of the median by order statistics.

    The k-th smallest and k-th largest of n values hold the median with probability
    1 - 2 P(Binomial(n, 1/2) < k); the largest k that keeps `CONFIDENCE` is taken, and the whole
    range where even k = 1 does not reach it (n < 6).
    """
    ordered = sorted(values)
    k = _rank(len(ordered))
    return ordered[k - 1], ordered[len(ordered) - k]


@cache
def _rank(count: int) -> int:
    tail, k = 0.0, 0
    while k < (count + 1) // 2:
        tail += math.comb(count, k) / 2**count
        if 1 - 2 * tail < CONFIDENCE:
            break
        k += 1
    return max(k, 1)


def ratios(curve: Mapping[int, Mapping[int, float]], baseline: int) -> list[Ratio]:
    """Return T(N)/T(baseline) for each N, paired within rounds so that slow drift cancels.

    Parameters
    ----------
    curve
        For each N the latency in microseconds by round; rounds without the baseline are left out.
    baseline
        The N that ratios refer to, 1 or the paper's ceil(E / (b k)) for balanced routing.
    """
    if not curve.get(baseline):
        raise EvidenceError(
            f"the curve lacks its baseline N={baseline}", remedy="Take it again with its baseline"
        )
    reference = curve[baseline]
    out = []
    for n in sorted(curve):
        paired = [value / reference[r] for r, value in curve[n].items() if r in reference]
        if paired:
            low, high = median_interval(paired)
            out.append(Ratio(n=n, value=median(paired), low=low, high=high))
    return out


def boundary(curve: Sequence[Ratio], epsilon: float, baseline: int) -> Boundary:
    """Return N_max(epsilon) of a curve over its grid, from the baseline upwards.

    Source: paper, sec. 2.2, N_max = max{N : T(N) <= (1 + epsilon) T(1)}.
    """
    limit = 1.0 + epsilon
    points = [point for point in curve if point.n >= baseline]
    grid = [point.n for point in points]
    passing = [point.n for point in points if point.value <= limit]
    last = max([baseline, *passing])
    exits = [point.n for point in points if point.value > limit]
    before = [n for n in grid if not exits or n < exits[0]]
    low = max([baseline, *(p.n for p in points if p.high <= limit)])
    high = max([baseline, *(p.n for p in points if p.low <= limit)])
    following = [n for n in grid if n > last]
    if high == grid[-1]:
        verdict: Verdict = "censored"
    else:
        verdict = "sharp" if low == high else "bracketed"
    return Boundary(
        last_pass=last,
        first_exit=max([baseline, *before]),
        low=min(low, last),
        high=max(high, last),
        next_n=following[0] if following else None,
        verdict=verdict,
    )
