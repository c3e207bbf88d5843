"""A schedule of draft lengths at one context, and the one that is safe at several contexts."""

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.doubts import all_caveats
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.schedule.expected import Choice, best_choice, independent_acceptance, speedups
from nearfree.derive.schedule.merging import NearFree, losses, merged_below, short_by_speed
from nearfree.derive.schedule.option import Option

RATES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Acceptances of the table that is printed where none is given."""
NO_OPTION = Option(place="", text="", notes=())
Write = Callable[[Mapping[int, int]], Option]
"""Writes an engine's option, given K by batch size."""


class ContextSchedule(Struct, frozen=True, kw_only=True):
    """Draft lengths K by batch size at one context, and the criterion that chose them.

    Exactly one of `near_free`, `speeds` and `best` is filled.
    """

    context: int
    """L, cached positions per request."""
    deployments: Sequence[Deployment]
    """By batch size from 1 on, those that do not fit in memory included."""
    forecast: Forecast
    option: Option = NO_OPTION
    """The engine's option, which `write` makes of the K of `choices`."""
    write: Write = lambda _: NO_OPTION
    choices: Mapping[int, Choice] = {}
    """K and its speedup by batch size, neighbours merged."""
    near_free: NearFree = {}
    """The near-free K by batch size."""
    speeds: Mapping[int, Mapping[int, float]] = {}
    """The speedup over no drafts, by batch size and K."""
    best: Mapping[float, Mapping[int, Choice]] = {}
    """The best choice by acceptance of RATES and batch size."""

    @property
    def lost(self) -> tuple[float, float] | None:
        """The shares of the best expected tokens per second that merging neighbours loses.

        The largest and the mean over batch sizes; None where K was not chosen by speed.
        """
        if not self.speeds:
            return None
        return losses(self.speeds, {batch: choice.k for batch, choice in self.choices.items()})

    def of_lengths(self, write: Write, near_free: NearFree, worth: float) -> "ContextSchedule":
        """Return the schedule with near-free draft lengths, merged downwards."""
        merged = merged_below(near_free, worth)
        choices = {batch: Choice(k, math.nan) for batch, k in merged.items()}
        return replace(
            self, option=write(merged), write=write, choices=choices, near_free=near_free
        )

    def of_speeds(
        self, write: Write, speeds: Mapping[int, Mapping[int, float]], worth: float
    ) -> "ContextSchedule":
        """Return the schedule with draft lengths of most expected tokens per second, merged."""
        merged = short_by_speed(speeds, worth)
        choices = {batch: Choice(k, speeds[batch][k]) for batch, k in merged.items()}
        return replace(self, option=write(merged), write=write, choices=choices, speeds=speeds)

    def of_rates(
        self,
        ratios: Mapping[int, Mapping[int, float]],
        costs: float | Mapping[int, Sequence[float]],
        *,
        most: int,
    ) -> "ContextSchedule":
        """Return the schedule with the best choices at each acceptance of RATES, and no option."""
        best = {}
        for rate in RATES:
            speedups_by_batch = speedups(
                ratios, independent_acceptance(rate, most=most), draft_cost=costs
            )
            best[rate] = {batch: best_choice(speeds) for batch, speeds in speedups_by_batch.items()}
        return replace(self, best=best)


def caveats(schedules: Sequence[ContextSchedule]) -> list[str]:
    """Return the distinct caveats of T(N) at any of the contexts."""
    forecasts = (schedule.forecast for schedule in schedules)
    every = (
        caveat for each in forecasts for caveat in all_caveats(each.total, each.deployments, 0)
    )
    return list(dict.fromkeys(every))


def shortest(schedules: Sequence[ContextSchedule], worth: float) -> ContextSchedule:
    """Return, at each batch size, the longest K that is near-free at every context.

    A context counts at the batch sizes that its memory holds, so the schedule ends with the largest
    batch size that any context holds.
    """
    last = max(schedules, key=lambda schedule: len(schedule.near_free))
    common = {
        batch: frozenset.intersection(
            *(schedule.near_free[batch] for schedule in schedules if batch in schedule.near_free)
        )
        for batch in last.near_free
    }
    return last.of_lengths(last.write, common, worth)


def least_loss(schedules: Sequence[ContextSchedule]) -> ContextSchedule:
    """Return the schedule whose largest loss of tokens per second over all contexts is least.

    A context counts at all batch sizes that its memory holds. Beyond its last batch size a schedule
    keeps its last K, as engines do.
    """

    def loss(one: ContextSchedule) -> float:
        end = max(one.choices)
        return max(
            1 - speeds[one.choices[min(batch, end)].k] / max(speeds.values())
            for schedule in schedules
            for batch, speeds in schedule.speeds.items()
        )

    return min(schedules, key=loss)
