"""Draft lengths by expected tokens per second, from acceptance and latency.

A round drafts K tokens, verifies K + 1 positions in one forward, and yields the accepted drafts
plus one token. With P(i) the probability that the first i drafts are all accepted,

    tokens(K) = 1 + P(1) + ... + P(K)
    speedup(K) = tokens(K) / (T(K + 1) / T(1) + K c),

where c is the drafter's time per token as a share of T(1). K c may be replaced by the time of a
round of K drafts, which is not 0 at K = 0: the drafter still runs once, to fill its cache. With
drafts accepted independently at rate p, P(i) = p**i and tokens(K) = (1 - p**(K + 1)) / (1 - p):
Leviathan et al. 2023, arXiv 2211.17192, equation 1. Where T(K + 1) = T(1), the speedup is that of
its theorem 3.8.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from nearfree.derive.schedule.draft_lengths import (
    LONGEST_DRAFT,
    check_batch,
    check_most,
    is_number,
    is_whole,
    shown,
)
from nearfree.errors import ConfigError

LARGEST_N = 2**31 - 1
LARGEST_RATIO = 1e9


def checked_curve(ratio: Mapping[int, float], of: str) -> dict[int, float]:
    """Return a valid curve T(N) / T(1) by N, smallest N first.

    `ratio` is latency relative to that of one position, by N; `of` names what the curve describes,
    for messages. Raises ConfigError if the ratio at N = 1 is missing or not 1, an N is not a whole
    number, or a ratio is not a positive number.
    """
    for n, value in ratio.items():
        if not is_whole(n, 1, LARGEST_N):
            raise ConfigError(
                f"the latency curve of {of} has {shown(n)} for N",
                remedy="Give N as whole numbers from 1",
            )
        if not is_number(value) or not 0 < value <= LARGEST_RATIO:
            raise ConfigError(
                f"the latency curve of {of} has {shown(value)} for T({n}) / T(1)",
                remedy=f"Give numbers above 0, up to {LARGEST_RATIO:g}",
            )
    if not math.isclose(ratio.get(1, math.nan), 1, rel_tol=1e-12):
        raise ConfigError(
            f"the latency curve of {of} does not begin with T(1) / T(1) = 1",
            remedy="Give every latency relative to that of one position, and N = 1 too",
        )
    return dict(sorted(ratio.items()))


class Choice(NamedTuple):
    """A draft length K and its speedup: tokens per second over those without drafts."""

    k: int
    speedup: float


def independent_acceptance(rate: float, *, most: int) -> tuple[float, ...]:
    """Return P(1) to P(most) of drafts that are accepted independently at one rate.

    `rate` is the probability that a draft token is accepted, 0 to 1; `most` is the longest draft,
    in tokens. Raises ConfigError if the rate is not a probability, or `most` is out of range.
    """
    check_most(most)
    if not _is_probability(rate):
        raise ConfigError(
            f"the acceptance rate is {shown(rate)}", remedy="Give a probability from 0 to 1"
        )
    return tuple(accumulate([rate] * most, lambda before, p: before * p))


def acceptance_curve(rates: Sequence[float], *, most: int) -> tuple[float, ...]:
    """Return P(1), P(2), ... of one rate or of a measured curve.

    Raises ConfigError as `independent_acceptance` of one value, as `measured_acceptance` of more.
    """
    if len(rates) == 1:
        return independent_acceptance(rates[0], most=most)
    return measured_acceptance(rates)


def measured_acceptance(accepted: Sequence[float]) -> tuple[float, ...]:
    """Return a measured acceptance curve after checking it.

    It is P(1), P(2), ...: the share of rounds in which the first i drafts are all accepted, not the
    share among the rounds that reach the i-th draft. Raises ConfigError if a value is not a
    probability, the curve rises, or it is empty or too long.
    """
    if not 1 <= len(accepted) <= LONGEST_DRAFT:
        raise ConfigError(
            f"the acceptance curve has {len(accepted)} values",
            remedy=f"Give one a draft token, 1 to {LONGEST_DRAFT}",
        )
    for number, value in enumerate(accepted, 1):
        if not _is_probability(value):
            raise ConfigError(
                f"value {number} of the acceptance curve is {shown(value)}",
                remedy="Give probabilities from 0 to 1",
            )
    for number, (before, value) in enumerate(pairwise(accepted), 2):
        if value > before:
            raise ConfigError(
                f"value {number} of the acceptance curve rises from {before} to {value}",
                remedy="Give the share of rounds in which the first i drafts are all accepted",
            )
    return tuple(accepted)


def speedups(
    ratio_by_batch: Mapping[int, Mapping[int, float]],
    accepted: Sequence[float],
    *,
    draft_cost: float | Mapping[int, Sequence[float]],
) -> dict[int, dict[int, float]]:
    """Return the speedup by batch size and K: tokens per second over those without drafts.

    It covers the K whose N = K + 1 the curve of that batch size has, up to the length of the
    acceptance curve.

    Parameters
    ----------
    ratio_by_batch
        T(N) / T(1) by N, by batch size, each relative to T(1) of the same batch size.
    accepted
        P(1), P(2), ..., from `independent_acceptance` or `measured_acceptance`.
    draft_cost
        The drafter's time per token as a share of T(1), 0 or more; or by batch size the times of a
        round of 0, 1, 2, ... drafts, as shares of T(1).

    Raises
    ------
    ConfigError
        A curve, the acceptance or the cost is invalid, or no K above 0 can be compared.
    """
    accepted = measured_acceptance(accepted)
    tokens = tuple(accumulate(accepted, initial=1.0))
    by_batch = {}
    for batch, ratio in sorted(ratio_by_batch.items()):
        check_batch(batch)
        curve = checked_curve(ratio, f"batch {batch}")
        lengths = [n - 1 for n in curve if n <= len(tokens)]
        costs = _costs(draft_cost, batch, max(lengths))
        if len(lengths) == 1:
            raise ConfigError(
                f"the latency curve of batch {batch} has no N from 2 to {len(tokens)}",
                remedy="Give T(N) / T(1) at K + 1 positions for the K to choose from",
            )
        by_batch[batch] = {k: tokens[k] / (curve[k + 1] + costs[k]) for k in lengths}
    return by_batch


def best_choice(speeds: Mapping[int, float]) -> Choice:
    """Return the K of the largest speedup; the smallest K among equals."""
    choices = (Choice(k, speed) for k, speed in sorted(speeds.items()))
    return max(choices, key=lambda choice: choice.speedup)


def _costs(
    draft_cost: float | Mapping[int, Sequence[float]], batch: int, longest: int
) -> Sequence[float]:
    """Return the valid times of a round of 0, 1, ... drafts as shares of T(1)."""
    if isinstance(draft_cost, Mapping):
        costs, label = draft_cost.get(batch, ()), f"what drafts at batch {batch} cost"
        if len(costs) <= longest:
            raise ConfigError(
                f"{label} is given up to {len(costs) - 1} of {longest} drafts",
                remedy="Give it for every draft length from 0",
            )
        for cost in costs:
            check_draft_cost(cost, label)
        return costs
    check_draft_cost(draft_cost)
    return [k * draft_cost for k in range(longest + 1)]


def check_draft_cost(cost: float, label: str = "the cost of a draft token") -> None:
    """Raise ConfigError unless a drafter's time is a share of T(1), 0 or more."""
    if not is_number(cost) or not 0 <= cost <= LARGEST_RATIO:
        raise ConfigError(
            f"{label} is {shown(cost)}",
            remedy="Give the drafter's time for one token as a share of T(1), 0 or more",
        )


def _is_probability(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]
