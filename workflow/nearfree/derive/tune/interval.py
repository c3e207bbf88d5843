"""Student's t intervals of a mean of few repeats, and of a ratio of sums."""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

CONFIDENCE = 0.95


class Interval(Struct, frozen=True):
    """A value with the ends of its interval."""

    value: float
    low: float
    high: float


def ratio_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean of positive values of several repeats, with its t-interval.

    A single value has an unbounded interval: its noise is unknown.
    """
    logs = [math.log(value) for value in values]
    count = len(logs)
    mean = sum(logs) / count
    if count < 2:
        return Interval(math.exp(mean), 0.0, math.inf)
    variance = sum((log - mean) ** 2 for log in logs) / (count - 1)
    half = t_quantile(CONFIDENCE, count - 1) * math.sqrt(variance / count)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def stratified_interval(
    value: float, strata: Iterable[Sequence[float]], confidence: float = CONFIDENCE
) -> Interval:
    """Return a ratio of sums with its interval, by the noise within strata.

    Variances of the strata are added; the degrees of freedom follow Welch and Satterthwaite,
    rounded down.

    Parameters
    ----------
    value
        The ratio, whose logarithm moves by the sum of the parts.
    strata
        By stratum, the amount by which each of its visits moves the logarithm. Differences between
        visits of a stratum are noise, differences between strata are not. The noise of a stratum
        with one visit is unknown, and the interval unbounded.
    """
    variances, degrees = [], []
    for parts in strata:
        count = len(parts)
        if count < 2:
            return Interval(value, 0.0, math.inf)
        mean = sum(parts) / count
        variances.append(count * sum((part - mean) ** 2 for part in parts) / (count - 1))
        degrees.append(count - 1)
    total = sum(variances)
    if not total:
        return Interval(value, value, value)
    spread = sum(part**2 / freedom for part, freedom in zip(variances, degrees, strict=True))
    half = t_quantile(confidence, max(1, int(total**2 / spread))) * math.sqrt(total)
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def t_quantile(confidence: float, degrees: int) -> float:
    """Return the t that holds a share of Student's distribution between -t and t."""
    low, high = 0.0, 1.0
    while central_probability(high, degrees) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if central_probability(middle, degrees) < confidence else (low, middle)
        )
    return high


def central_probability(t: float, degrees: int) -> float:
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
