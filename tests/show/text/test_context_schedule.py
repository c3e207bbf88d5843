"""The schedule that is safe at several contexts."""

from typing import Any

from msgspec.structs import replace
from nearfree.derive.schedule.expected import Choice
from nearfree.show.text.context_schedule import ContextSchedule, least_loss, shortest


def planned(context: int, *ks: int) -> ContextSchedule:
    """Return what is near-free at one context, for one request."""
    forecast: Any = None
    return ContextSchedule(
        context=context, deployments=(), forecast=forecast, near_free={1: frozenset(ks)}
    )


def test_the_safe_length_is_near_free_at_each_context() -> None:
    """The safe K is near-free at each context, unlike the longest K of one of them."""
    schedule = shortest([planned(512, 0, 1, 2, 5), planned(4096, 0, 1, 2, 3, 4)], 0.0)
    assert {batch: choice.k for batch, choice in schedule.choices.items()} == {1: 2}


def test_a_context_counts_as_far_as_memory_holds_its_batches() -> None:
    """Beyond the largest batch of one context, the safe K is that of the others."""
    long, short = planned(4096, 0, 1, 2), planned(512, 0, 1, 2, 3)
    more = {2: frozenset({0, 1, 2, 3}), 3: frozenset({0, 1})}
    schedule = shortest([long, replace(short, near_free={**short.near_free, **more})], 0.0)
    assert {batch: choice.k for batch, choice in schedule.choices.items()} == {1: 2, 2: 3, 3: 1}


def test_a_schedule_loses_behind_its_end_too() -> None:
    """Beyond its end a schedule keeps its last K, whose loss there counts."""
    none: Any = None

    def at(
        context: int, ks: dict[int, int], speeds: dict[int, dict[int, float]]
    ) -> ContextSchedule:
        choices = {batch: Choice(k, 1.0) for batch, k in ks.items()}
        return ContextSchedule(
            context=context, deployments=(), forecast=none, choices=choices, speeds=speeds
        )

    alike = {1: {1: 1.0, 3: 1.01}}
    long = at(4096, {1: 3}, alike)
    short = at(512, {1: 1, 2: 1}, {**alike, 2: {1: 2.0, 3: 1.0}})
    assert least_loss([long, short]) is short
    assert least_loss([long, at(512, {1: 1}, alike)]) is long
