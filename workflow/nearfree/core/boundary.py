"""N_max from a curve: last pass, first exit, interval and verdict (paper, sec. 2.2)."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Literal

from msgspec import Struct

from nearfree.core.protocols import Sampling
from nearfree.errors import EvidenceError

Verdict = Literal["sharp", "bracketed", "undecided", "censored"]
CONFIDENCE = 0.95
Interval = Callable[[Sequence[float]], tuple[float, float]]


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


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the distribution-free confidence interval of the median by order statistics.

    The k-th smallest and k-th largest of n values hold the median with probability
    1 - 2 P(Binomial(n, 1/2) < k). The largest k that keeps the confidence is used. If even k = 1
    does not reach it (n < 6 at 95 %), the interval is the whole range.
    """
    ordered = sorted(values)
    k = max(_rank(len(ordered), confidence), 1)
    return ordered[k - 1], ordered[len(ordered) - k]


def cautious_interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return `median_interval`; for too few values, the range widened at both ends by high / low.

    Values are ratios, so positive.
    """
    low, high = median_interval(values, confidence)
    if _rank(len(values), confidence) == 0:
        return low * low / high, high * high / low
    return low, high


def interval_of(protocol: Sampling) -> Interval:
    """Return the interval function of a ratio, corrected where a protocol looks repeatedly."""
    confidence = protocol.look_confidence
    if confidence is None:
        return median_interval
    return partial(cautious_interval, confidence=confidence)


@cache
def _rank(count: int, confidence: float) -> int:
    k, tail = 0, 0.5**count
    while 1 - 2 * tail >= confidence:  # at the middle the tail is a half
        k += 1
        tail += math.comb(count, k) / 2**count
    return k


def ratios(
    curve: Mapping[int, Mapping[int, float]], baseline: int, interval: Interval = median_interval
) -> list[Ratio]:
    """Return T(N)/T(baseline) for each N, paired within rounds so that slow drift cancels.

    Parameters
    ----------
    curve
        Latency in microseconds by N and round; rounds without the baseline are left out.
    baseline
        The N that ratios refer to, 1 or the paper's ceil(E / (b k)) for balanced routing.
    """
    reference = _reference(curve, baseline)
    result = []
    for n in sorted(curve):
        paired = [
            latency_us / reference[number]
            for number, latency_us in curve[n].items()
            if number in reference
        ]
        if paired:
            low, high = interval(paired)
            result.append(Ratio(n=n, value=median(paired), low=low, high=high))
    return result


def unpaired_ratios(curve: Mapping[int, Mapping[int, float]], baseline: int) -> list[Ratio]:
    """Return the ratio of medians for each N, for curves that time one N after the other (paper).

    The interval divides each end of one median's interval by the opposite end of the other's.
    """
    reference = list(_reference(curve, baseline).values())
    baseline_median = median(reference)
    baseline_low, baseline_high = median_interval(reference)
    result = []
    for n in sorted(curve):
        values = list(curve[n].values())
        if values:
            low, high = median_interval(values)
            at_baseline = 1.0 if n == baseline else None
            result.append(
                Ratio(
                    n=n,
                    value=at_baseline or median(values) / baseline_median,
                    low=at_baseline or low / baseline_high,
                    high=at_baseline or high / baseline_low,
                )
            )
    return result


def _reference(curve: Mapping[int, Mapping[int, float]], baseline: int) -> Mapping[int, float]:
    if not curve.get(baseline):
        raise EvidenceError(
            f"the curve lacks its baseline N={baseline}", remedy="Take it again with its baseline"
        )
    return curve[baseline]


def last_pass(points: Sequence[Ratio], limit: float, baseline: int) -> int:
    """Return the largest N at or above the baseline whose ratio is within a limit."""
    return max([baseline, *(point.n for point in points if point.value <= limit)])


def boundary(
    curve: Sequence[Ratio], epsilon: float, baseline: int, resolution: float | None = None
) -> Boundary:
    """Return N_max(epsilon) of a curve over its grid, from the baseline up.

    Source: paper, sec. 2.2, N_max = max{N : T(N) <= (1 + epsilon) T(1)}.

    Parameters
    ----------
    resolution
        The factor within which the protocol had to find N_max; a wider interval is undecided.
    """
    limit = 1.0 + epsilon
    points = [point for point in curve if point.n >= baseline]
    grid = [point.n for point in points]
    last_pass_n = last_pass(points, limit, baseline)
    exits = [point.n for point in points if point.value > limit]
    passing = [n for n in grid if not exits or n < exits[0]]
    low = min(max([baseline, *(point.n for point in points if point.high <= limit)]), last_pass_n)
    high = max([baseline, last_pass_n, *(point.n for point in points if point.low <= limit)])
    later = [n for n in grid if n > last_pass_n]
    return Boundary(
        last_pass=last_pass_n,
        first_exit=max([baseline, *passing]),
        low=low,
        high=high,
        next_n=later[0] if later else None,
        verdict=_verdict(low, high, grid[-1], resolution),
    )


def _verdict(low: int, high: int, end: int, resolution: float | None) -> Verdict:
    if resolution is not None and high > resolution * low:
        return "undecided"
    if high == end:
        return "censored"
    return "sharp" if low == high else "bracketed"
