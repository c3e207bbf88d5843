"""The proof: tokens per second of settings that ran in turn, their gains, and the verdict."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from nearfree.core.drafting import Drafting
from nearfree.derive.tune.interval import (
    CONFIDENCE,
    Interval,
    ratio_interval,
    stratified_interval,
)
from nearfree.derive.tune.replayed import Trace
from nearfree.log.events import DecodeMeasured, Event

Verdict = Literal["speculate", "none", "undecided"]
Seconds = Literal["wall", "process"]
_DISTURBED = 1.1
"""Ratio of one thread's wall time to its process time above which a machine counts as busy."""


class RunResult(Struct, frozen=True, kw_only=True):
    """Measured speed and output of one setting's runs."""

    drafting: Drafting
    tokens_s: Interval
    identical: float
    """Share of runs whose output was the same as without drafts."""
    first_difference: int | None
    """The smallest number of equal tokens before a difference."""
    margin: float | None
    """Lead of the best logit over the second at that difference."""
    steps_equal: bool | None
    """Whether all recorded steps equal the replayed ones; None where no run recorded its steps."""
    exact: bool
    runs: int
    ids: tuple[str, ...]


def seconds_of(events: Sequence[Event]) -> Seconds:
    """Return which time counts: wall time, or on a busy machine one thread's process time."""
    wall = sum(event.data.wall_s for event in events)
    process = sum(event.data.process_s for event in events)
    alone = all(event.data.drafting.threads == 1 for event in events)
    return "process" if alone and wall > _DISTURBED * process > 0 else "wall"


def speeds(events: Iterable[Event], seconds: Seconds) -> dict[int, float]:
    """Return tokens per second by repeat, over all prompts together."""
    tokens: dict[int, int] = defaultdict(int)
    elapsed: dict[int, float] = defaultdict(float)
    for (_, repeat), visit in _visits(events, seconds).items():
        tokens[repeat] += visit.tokens
        elapsed[repeat] += visit.seconds
    return {repeat: tokens[repeat] / elapsed[repeat] for repeat in tokens if elapsed[repeat]}


def by_setting(events: Iterable[Event]) -> dict[Drafting, list[Event]]:
    """Return the runs by setting."""
    runs: dict[Drafting, list[Event]] = {}
    for event in events:
        runs.setdefault(event.data.drafting, []).append(event)
    return runs


def run_result(
    drafting: Drafting, events: Sequence[Event], traces: Mapping[str, Trace], seconds: Seconds
) -> RunResult:
    """Return the measured speed and output of a setting's runs.

    `events` are its runs, of all prompts that are reported; their steps are compared with those of
    `traces`, by prompt.
    """
    decodes = [event.data for event in events]
    differing = [decode for decode in decodes if decode.same_tokens < decode.output_tokens]
    first = min(differing, key=lambda data: data.same_tokens, default=None)
    return RunResult(
        drafting=drafting,
        tokens_s=ratio_interval(list(speeds(events, seconds).values())),
        identical=1 - len(differing) / len(events),
        first_difference=None if first is None else first.same_tokens,
        margin=None if first is None else first.margin,
        steps_equal=_steps_equal(drafting, events, traces),
        exact=all(event.data.exact for event in events),
        runs=len(events),
        ids=tuple(event.event_id for event in events),
    )


def _steps_equal(
    drafting: Drafting, events: Sequence[Event], traces: Mapping[str, Trace]
) -> bool | None:
    decodes = [event.data for event in events if event.data.steps is not None]
    if not decodes:
        return None
    return all(
        trace is not None and decode.steps == trace.steps(drafting)
        for decode, trace in ((decode, traces.get(decode.prompt_sha256)) for decode in decodes)
    )


def gain(
    events: Sequence[Event],
    reference: Sequence[Event],
    seconds: Seconds,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return how many times as fast one setting was as another, with its interval.

    It is the ratio of tokens per second over all visits that both made. Settings run in turn on a
    prompt, so a machine that slows down slows both; what still differs between visits of the same
    prompt is the noise. With a batch, all prompts of a repeat are one visit. `events` are runs of
    the setting, `reference` those of the one that it is compared with.
    """
    own_visits, reference_visits = _visits(events, seconds), _visits(reference, seconds)
    common = [key for key in own_visits if key in reference_visits]
    value, shifts = 1.0, dict.fromkeys(common, 0.0)
    for visits, sign in ((own_visits, 1), (reference_visits, -1)):
        tokens = sum(visits[key].tokens for key in common)
        elapsed = sum(visits[key].seconds for key in common)
        value *= (tokens / elapsed) ** sign
        for key in common:
            share = visits[key].tokens / tokens - visits[key].seconds / elapsed
            shifts[key] += sign * share
    strata: dict[str, list[float]] = defaultdict(list)
    for (stratum, _), shift in shifts.items():
        strata[stratum].append(shift)
    return stratified_interval(value, strata.values(), confidence)


class _Visit(NamedTuple):
    tokens: int
    seconds: float


def _visits(events: Iterable[Event], seconds: Seconds) -> dict[tuple[str, int], _Visit]:
    """Return tokens after the first, and seconds, by prompt and repeat."""
    visits: dict[tuple[str, int], _Visit] = {}
    for event in events:
        data: DecodeMeasured = event.data
        key = ("" if data.batch > 1 else data.prompt_sha256, data.repeat)
        tokens, elapsed = visits.get(key, _Visit(0, 0.0))
        duration = data.wall_s if seconds == "wall" else data.process_s
        visits[key] = _Visit(tokens + data.output_tokens - 1, elapsed + duration)
    return visits


def verdict(gains: Sequence[Interval]) -> Verdict:
    """Return whether to speculate, by the gains over no drafts of all settings that drafted.

    Speculate if any interval lies above 1. The verdict is none if no gain exceeds 1, and undecided
    if some setting was faster, but by less than its noise. Each gain has an interval that was
    widened for their number (Bonferroni).
    """
    if any(gain.low > 1 for gain in gains):
        return "speculate"
    return "undecided" if any(gain.value > 1 for gain in gains) else "none"


def joint_confidence(count: int) -> float:
    """Return the confidence of each of `count` intervals that hold jointly at CONFIDENCE."""
    return 1 - (1 - CONFIDENCE) / max(count, 1)
