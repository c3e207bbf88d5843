"""Intervals of a mean of few repeats, and of a ratio of sums, by Student's t."""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

CONFIDENCE = 0.95


class Interval(Struct, frozen=True):
    """A value with the ends of its interval."""

    value: float
    low: float
    high: float


def ratio_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the geometric mean of positive values of several repeats, with its t-interval.

    One value alone has an interval without ends: nothing is known of its noise.
    """
    logs = [math.log(value) for value in values]
    count = len(logs)
    mean = sum(logs) / count
    if count < 2:
        return Interval(math.exp(mean), 0.0, math.inf)
    variance = sum((each - mean) ** 2 for each in logs) / (count - 1)
    half = quantile(confidence, count - 1) * math.sqrt(variance / count)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def stratified_interval(
    value: float, strata: Iterable[Sequence[float]], confidence: float = CONFIDENCE
) -> Interval:
    """Return a ratio of sums with its interval, by the noise within strata.

    Parameters
    ----------
    value
        The ratio, whose logarithm moves by the sum of the parts.
    strata
        By how much each visit moves the logarithm, by what was visited again and again: how much
        the visits of a stratum differ from one another is noise, how much strata do is not. A
        stratum that was visited once has noise that is not known.

    The variances of strata are added, with degrees of freedom by Welch and Satterthwaite, rounded
    down.
    """
    variances, degrees = [], []
    for parts in strata:
        count = len(parts)
        if count < 2:
            return Interval(value, 0.0, math.inf)
        mean = sum(parts) / count
        variances.append(count * sum((each - mean) ** 2 for each in parts) / (count - 1))
        degrees.append(count - 1)
    total = sum(variances)
    if not total:
        return Interval(value, value, value)
    spread = sum(each**2 / free for each, free in zip(variances, degrees, strict=True))
    half = quantile(confidence, max(1, int(total**2 / spread))) * math.sqrt(total)
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def quantile(confidence: float, degrees: int) -> float:
    """Return the t that holds a share of Student's distribution between -t and t."""
    low, high = 0.0, 1.0
    while held(high, degrees) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle, degrees) < confidence else (low, middle)
    return high


def held(t: float, degrees: int) -> float:
    """Return the share of Student's distribution between -t and t.

    Source: Abramowitz and Stegun, equations 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = total = cosine if odd else 1.0
    if degrees == 1:
        return 2 * angle / math.pi
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
