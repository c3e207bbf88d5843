"""Gains of settings that ran in turn: their noise, and the coverage of their intervals."""

import math
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from nearfree.core.drafting import Drafting
from nearfree.derive.tune.interval import stratified_interval
from nearfree.derive.tune.plans import trace_plan
from nearfree.derive.tune.proof import gain
from nearfree.log.events import Event

from derive.tune.tuned import SOURCES, decode, tuned_subject

PLAIN, DRAFTS = Drafting(), Drafting(drafter="ngram_simple", k=8, ngram_max=4, ngram_min=4)
PROMPTS, REPEATS = 8, 3


def ran(drafting: Drafting, seconds: Callable[[int, int], float], batch: int = 1) -> list[Event]:
    """Return a setting's decodes with the given seconds per prompt and repeat."""
    plan = trace_plan(tuned_subject(batch=batch), SOURCES, PLAIN)
    (first, *_) = plan.prompts

    def events() -> Iterator[object]:
        for repeat in range(REPEATS):
            for prompt in range(PROMPTS):
                data = decode(
                    plan, first, drafting, seconds=seconds(prompt, repeat), repeat=repeat,
                    prompt_sha256=f"{prompt:064x}", batch=batch,
                )  # fmt: skip
                yield SimpleNamespace(data=data)

    return [cast("Event", event) for event in events()]


def test_that_prompts_win_more_or_less_is_not_noise() -> None:
    """Differences between prompts that repeat equally are not noise."""
    plain = ran(PLAIN, lambda prompt, _: 1.0 + prompt)
    drafts = ran(DRAFTS, lambda prompt, _: 2.0 if prompt % 2 else 0.5)
    measured_gain = gain(drafts, plain, "wall")
    assert measured_gain.value == pytest.approx(36 / 10)
    assert measured_gain.low == pytest.approx(measured_gain.value) == measured_gain.high


def test_what_slows_down_both_is_not_noise() -> None:
    """A slowdown of both settings leaves the ratio unchanged."""

    def slowed(prompt: int, repeat: int) -> float:
        return 2.0 if (prompt + repeat) % 3 else 1.0

    plain = ran(PLAIN, slowed)
    drafts = ran(DRAFTS, lambda *at: slowed(*at) / 1.25)
    measured_gain = gain(drafts, plain, "wall")
    assert (measured_gain.low, measured_gain.value, measured_gain.high) == pytest.approx(
        (1.25,) * 3
    )


def test_of_a_batch_a_repeat_is_one_visit() -> None:
    """Prompts decoded together share noise, so only repeats count."""
    noise = {0: 0.9, 1: 1.0, 2: 1.1}
    alone, together = (
        gain(
            ran(DRAFTS, lambda _, repeat: noise[repeat], batch),
            ran(PLAIN, lambda *_: 1.0, batch),
            "wall",
        )
        for batch in (1, 2)
    )
    assert together.value == pytest.approx(alone.value)
    assert math.log(together.high / together.low) > 2 * math.log(alone.high / alone.low)


def test_one_visit_tells_nothing_of_its_noise() -> None:
    """If one prompt was visited once, the interval has no ends."""
    interval = stratified_interval(1.5, [[0.1, 0.2], [0.1]])
    assert (interval.value, interval.low, interval.high) == (1.5, 0.0, math.inf)


def test_intervals_hold_the_gain_as_often_as_they_say() -> None:
    """With prompts of several lengths, a machine that drifts, and noise of its own at each visit.

    95 % of 600 are 570, and 5.3 is their standard deviation. Degrees of freedom that are rounded
    down make intervals somewhat wider than they need be, but not so that all hold.
    """
    rng, held = random.Random(11), 0  # noqa: S311 (a simulation)
    lengths = [0.5 * 1.3**prompt for prompt in range(PROMPTS)]
    wins = [1.0, 1.1, 1.2, 2.0, 1.0, 0.9, 1.5, 1.0]
    truth = sum(lengths) / sum(long / win for long, win in zip(lengths, wins, strict=True))
    for _ in range(600):
        drift = {
            (prompt, repeat): math.exp(0.3 * math.sin(prompt + 9 * repeat) + rng.gauss(0, 0.1))
            for prompt in range(PROMPTS)
            for repeat in range(REPEATS)
        }

        def spent(
            prompt: int, repeat: int, win: float, by: dict[tuple[int, int], float] = drift
        ) -> float:
            noise = math.exp(rng.gauss(0, 0.08))
            return lengths[prompt] / win * by[prompt, repeat] * noise

        plain = ran(PLAIN, lambda *at, time=spent: time(*at, 1.0))
        drafts = ran(DRAFTS, lambda *at, time=spent: time(*at, wins[at[0]]))
        measured_gain = gain(drafts, plain, "wall")
        held += measured_gain.low <= truth <= measured_gain.high
    assert 554 <= held <= 594
