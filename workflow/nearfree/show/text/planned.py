"""A schedule at a context with what it was chosen by, and the one that is safe at several."""

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.schedule.expected import Choice, best_choice, independent, speedups
from nearfree.derive.schedule.merging import NearFree, few_by_speed, losses, merged_below
from nearfree.derive.schedule.option import Option

RATES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Acceptances of the table that stands where none is given."""
NOTHING = Option(place="", text="", notes=())
Write = Callable[[Mapping[int, int]], Option]
"""Writes an engine's option, given K by batch size."""


def nothing(_: Mapping[int, int]) -> Option:
    """Return no option."""
    return NOTHING


class Planned(Struct, frozen=True, kw_only=True):
    """A schedule at one context L, cached positions.

    `asked` are the deployments by batch size, beyond memory, too; `option` is what `write` makes of
    `choices`, K and speedup by batch size, merged. Of what these were chosen by, one is known:
    `near_free` are the near-free K by batch size, `speeds` is the speedup by K by batch size, and
    `best` the best choice by batch size at each of RATES.
    """

    context: int
    asked: Sequence[Deployment]
    answers: Forecast
    option: Option = NOTHING
    write: Write = nothing
    choices: Mapping[int, Choice] = {}
    near_free: NearFree = {}
    speeds: Mapping[int, Mapping[int, float]] = {}
    best: Mapping[float, Mapping[int, Choice]] = {}

    @property
    def lost(self) -> tuple[float, float] | None:
        """The share of the best expected tokens per second that few entries lose.

        At worst, and in the mean over batch sizes; None where K was not chosen by them.
        """
        if not self.speeds:
            return None
        return losses(self.speeds, {batch: choice.k for batch, choice in self.choices.items()})

    def of_lengths(self, write: Write, near_free: NearFree, worth: float) -> "Planned":
        """Return it with near-free draft lengths, merged downwards."""
        merged = merged_below(near_free, worth)
        choices = {batch: Choice(k, math.nan) for batch, k in merged.items()}
        return replace(
            self, option=write(merged), write=write, choices=choices, near_free=near_free
        )

    def of_speeds(
        self, write: Write, speeds: Mapping[int, Mapping[int, float]], worth: float
    ) -> "Planned":
        """Return it with draft lengths by expected tokens per second."""
        merged = few_by_speed(speeds, worth)
        choices = {batch: Choice(k, speeds[batch][k]) for batch, k in merged.items()}
        return replace(self, option=write(merged), write=write, choices=choices, speeds=speeds)

    def of_rates(
        self,
        ratios: Mapping[int, Mapping[int, float]],
        costs: float | Mapping[int, Sequence[float]],
        *,
        most: int,
    ) -> "Planned":
        """Return it with the best choices at each of RATES, and no option."""
        best = {}
        for rate in RATES:
            found = speedups(ratios, independent(rate, most=most), draft_cost=costs)
            best[rate] = {batch: best_choice(speeds) for batch, speeds in found.items()}
        return replace(self, best=best)


def shortest(every: Sequence[Planned], worth: float) -> Planned:
    """Return the schedule with the longest K that is near-free at all contexts at each batch size.

    Of each context the batch sizes that memory holds count, so that it ends with the last of them.
    """
    last = max(every, key=lambda each: len(each.near_free))
    common = {
        batch: frozenset.intersection(
            *(each.near_free[batch] for each in every if batch in each.near_free)
        )
        for batch in last.near_free
    }
    return last.of_lengths(last.write, common, worth)


def least_loss(every: Sequence[Planned]) -> Planned:
    """Return the schedule whose largest loss of tokens per second over all contexts is least.

    Of each context all batch sizes that memory holds count. Beyond its end a schedule keeps its
    last K, as engines do.
    """

    def loss(one: Planned) -> float:
        end = max(one.choices)
        return max(
            1 - speeds[one.choices[min(batch, end)].k] / max(speeds.values())
            for each in every
            for batch, speeds in each.speeds.items()
        )

    return min(every, key=loss)
