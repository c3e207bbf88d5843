"""What was proven: tokens a second of settings that ran in turn, gains, and the verdict."""

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
"""Wall time over process time of one thread from which on a machine counts as busy."""


class Proven(Struct, frozen=True, kw_only=True):
    """What the runs of one setting say."""

    drafting: Drafting
    tokens_s: Interval
    identical: float
    """The share of runs whose output was that without drafts."""
    first_difference: int | None
    """The smallest number of equal tokens before a difference."""
    margin: float | None
    """By how much the best logit led at that difference."""
    steps_equal: bool | None
    """Whether all step lists were those that were replayed; None where none were told."""
    exact: bool
    runs: int
    ids: tuple[str, ...]


def seconds_of(events: Sequence[Event]) -> Seconds:
    """Return which time counts: wall time, or process time of one thread on a busy machine."""
    wall = sum(event.data.wall_s for event in events)
    process = sum(event.data.process_s for event in events)
    alone = all(event.data.drafting.threads == 1 for event in events)
    return "process" if alone and wall > _DISTURBED * process > 0 else "wall"


def speeds(events: Iterable[Event], seconds: Seconds) -> dict[int, float]:
    """Return tokens a second by repeat, of all prompts together."""
    tokens: dict[int, int] = defaultdict(int)
    spent: dict[int, float] = defaultdict(float)
    for (_, repeat), visit in _visits(events, seconds).items():
        tokens[repeat] += visit.tokens
        spent[repeat] += visit.seconds
    return {repeat: tokens[repeat] / spent[repeat] for repeat in tokens if spent[repeat]}


def by_setting(events: Iterable[Event]) -> dict[Drafting, list[Event]]:
    """Return the runs of each setting."""
    found: dict[Drafting, list[Event]] = {}
    for event in events:
        found.setdefault(event.data.drafting, []).append(event)
    return found


def proven(
    drafting: Drafting, events: Sequence[Event], known: Mapping[str, Trace], seconds: Seconds
) -> Proven:
    """Return what the runs of a setting say.

    Parameters
    ----------
    events
        Its runs, of all prompts that are reported.
    known
        Traces by prompt, whose replayed steps are compared.
    """
    differing = [e.data for e in events if e.data.same_tokens < e.data.output_tokens]
    first = min(differing, key=lambda data: data.same_tokens, default=None)
    return Proven(
        drafting=drafting,
        tokens_s=ratio_interval(list(speeds(events, seconds).values())),
        identical=1 - len(differing) / len(events),
        first_difference=None if first is None else first.same_tokens,
        margin=None if first is None else first.margin,
        steps_equal=_steps_equal(drafting, events, known),
        exact=all(event.data.exact for event in events),
        runs=len(events),
        ids=tuple(event.event_id for event in events),
    )


def _steps_equal(
    drafting: Drafting, events: Sequence[Event], known: Mapping[str, Trace]
) -> bool | None:
    told = [event.data for event in events if event.data.steps is not None]
    if not told:
        return None
    return all(
        data.prompt_sha256 in known and data.steps == known[data.prompt_sha256].steps(drafting)
        for data in told
    )


def gain(
    one: Sequence[Event], other: Sequence[Event], seconds: Seconds, confidence: float = CONFIDENCE
) -> Interval:
    """Return how many times as fast one setting was as another, with its interval.

    It is the ratio of tokens a second over all visits that both made. Settings run in turn on a
    prompt, so a machine that slows down slows both: what is left differs from visit to visit of
    the same prompt, and that is the noise. Of a batch all prompts of a repeat are one visit.
    """
    mine, theirs = _visits(one, seconds), _visits(other, seconds)
    both = [visit for visit in mine if visit in theirs]
    value, parts = 1.0, dict.fromkeys(both, 0.0)
    for visits, sign in ((mine, 1), (theirs, -1)):
        tokens = sum(visits[visit].tokens for visit in both)
        spent = sum(visits[visit].seconds for visit in both)
        value *= (tokens / spent) ** sign
        for visit in both:
            share = visits[visit].tokens / tokens - visits[visit].seconds / spent
            parts[visit] += sign * share
    strata: dict[str, list[float]] = defaultdict(list)
    for (stratum, _), part in parts.items():
        strata[stratum].append(part)
    return stratified_interval(value, strata.values(), confidence)


class _Visit(NamedTuple):
    tokens: int
    seconds: float


def _visits(events: Iterable[Event], seconds: Seconds) -> dict[tuple[str, int], _Visit]:
    """Return tokens after the first and seconds, by prompt and repeat."""
    found: dict[tuple[str, int], _Visit] = {}
    for event in events:
        data: DecodeMeasured = event.data
        key = ("" if data.batch > 1 else data.prompt_sha256, data.repeat)
        tokens, spent = found.get(key, _Visit(0, 0.0))
        took = data.wall_s if seconds == "wall" else data.process_s
        found[key] = _Visit(tokens + data.output_tokens - 1, spent + took)
    return found


def verdict(gains: Sequence[Interval]) -> Verdict:
    """Return whether to speculate, by the gains over none of all settings that drafted.

    One whose interval lies above 1 says to speculate; where all intervals end below 1, or all
    values do, nothing beats none by more than the noise. Else some setting was faster, but not by
    more than its noise.

    Parameters
    ----------
    gains
        Each with an interval that was widened for their number (Bonferroni).
    """
    if any(each.low > 1 for each in gains):
        return "speculate"
    return "undecided" if any(each.value > 1 for each in gains) else "none"


def shared(count: int) -> float:
    """Return the confidence of each of several intervals that hold together."""
    return 1 - (1 - CONFIDENCE) / max(count, 1)
