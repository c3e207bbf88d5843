"""Interrupted takes: which events the next attempt keeps, and how to seal a take early."""

from collections import Counter
from collections.abc import Iterator

from nearfree.core.plan import DecodePlan, MeasurePlan, Plan
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.log.events import (
    DecodeMeasured,
    DraftsTraced,
    EngineLoaded,
    LatencyMeasured,
    LaunchFloor,
    RunStarted,
    SegmentRecovered,
    SharesMeasured,
    WorkCounted,
)
from nearfree.log.names import Layout, TakeName, parse_take
from nearfree.log.reader import Segment, read_segment
from nearfree.log.run import describe_run
from nearfree.log.take import Attempts, OpenTake

_MIN_ROUNDS = 3
_HEADER = RunStarted | EngineLoaded | SegmentRecovered | WorkCounted | LaunchFloor


def whole_rounds(segment: Segment, plan: Plan) -> int:
    """Return how many leading events to keep: the header, whole rounds, and shares after them.

    For a plan of decodes, return how many events hold whole prompts.

    Rounds are written one after the other, and each is made durable as a whole. So events after the
    last whole round were never acknowledged.
    """
    if isinstance(plan, DecodePlan):
        return _whole_prompts(segment, plan)
    default_points = plan.points_a_round if isinstance(plan, MeasurePlan) else 0
    kept_events = round_events = rounds = 0
    for number, event in enumerate(segment.events, start=1):
        if isinstance(event.data, LatencyMeasured):
            round_events += 1
            if round_events == (event.data.round_points or default_points):
                kept_events, round_events, rounds = number, 0, rounds + 1
            continue
        in_header = isinstance(event.data, _HEADER) and not rounds
        if not round_events and (in_header or isinstance(event.data, SharesMeasured)):
            kept_events = number
    return kept_events


def _whole_prompts(segment: Segment, plan: DecodePlan) -> int:
    """Return how many leading events to keep: the header, and those of completed prompts.

    Prompts that are decoded in one batch are complete together.
    """
    kept_events, event_counts = 0, Counter[tuple[str, int]]()
    for number, event in enumerate(segment.events, start=1):
        if isinstance(event.data, DecodeMeasured):
            key = (event.data.prompt_sha256, event.data.repeat)
        elif isinstance(event.data, DraftsTraced):
            key = (event.data.prompt_sha256, 0)
        else:
            kept_events = number if not any(event_counts.values()) else kept_events
            continue
        event_counts[key] += 1
        prompts_at_once = len(plan.prompts) if plan.batch > 1 else 1
        complete = len(event_counts) % prompts_at_once == 0 and all(
            count == len(plan.runs) + (0 if repeat else len(plan.traced))
            for (_, repeat), count in event_counts.items()
        )
        kept_events = number if complete else kept_events
    return kept_events


def interrupted(layout: Layout) -> Iterator[str]:
    """Yield one line per attempt of unsealed takes: how many events the next attempt would keep."""
    takes = layout.takes(sealed=False)
    for take in takes:
        for attempt in layout.attempts(take):
            segment = read_segment(layout.segment(take, attempt), take.segment(attempt))
            plan = next(
                (e.data.plan for e in segment.events if isinstance(e.data, RunStarted)), None
            )
            kept_events = whole_rounds(segment, plan) if plan else 0
            yield (
                f"{segment.name}: {len(segment.events)} whole events, {kept_events} kept by the "
                f"next attempt, {segment.torn_bytes} torn bytes"
            )
    if not takes:
        yield "no interrupted takes"


def recover(layout: Layout, name: str) -> Iterator[str]:
    """Seal an interrupted take as `partial`, with the whole rounds that it holds.

    Use this when the take cannot be continued. Otherwise run its command again, which continues it.

    Raises
    ------
    EvidenceError
        There is no such interrupted take, or it holds too few whole rounds.
    """
    take = parse_take(name)
    if take not in layout.takes(take.scope, sealed=False):
        raise EvidenceError(
            f"{take} is not an interrupted take", remedy="`nearfree log recover` lists them"
        )
    plan, rounds = _plan_and_rounds(layout, take)
    open_take = OpenTake(layout, take, plan, keep=whole_rounds)
    try:
        open_take.start(describe_run(f"nearfree log recover {take}", plan, open_take.attempt))
        open_take.finish(outcome="partial")
    finally:
        open_take.writer.close()
    yield f"{take}: sealed as partial with {rounds} of {plan.protocol.rounds} rounds"


def _visits_every_point(visit: LatencyMeasured) -> bool:
    """Return whether a visit belongs to a round over all points.

    The paired rounds of a protocol that chooses points do not.
    """
    return not (visit.paired and visit.protocol.chooses_points)


def _plan_and_rounds(layout: Layout, take: TakeName) -> tuple[MeasurePlan, int]:
    attempts = Attempts(layout, take)
    attempts.release()
    plan = attempts.plan()
    if not isinstance(plan, MeasurePlan):
        raise EvidenceError(f"{take} has no rounds", remedy="Run its command again instead")
    visit_counts, round_numbers = Counter[tuple[Setting, int]](), set[int]()
    for _, _, events in attempts.kept(plan, whole_rounds):
        for event in events:
            if isinstance(event.data, LatencyMeasured) and _visits_every_point(event.data):
                visit_counts[event.data.setting, event.data.n] += 1
                round_numbers.add(event.data.round)
    whole = len(round_numbers) if plan.protocol.thins else min(visit_counts.values(), default=0)
    rounds = whole if len(visit_counts) == plan.points_a_round else 0
    if rounds < _MIN_ROUNDS:
        command = f"`nearfree measure {take.scope} {take.stream}`"
        if plan.weights:  # an engine's take: of a study, or of the user's own file
            command += ", or the `nearfree measure --engine` or `nearfree tune` that began it,"
        raise EvidenceError(
            f"{take} holds {rounds} whole rounds of every point, fewer than {_MIN_ROUNDS}",
            remedy=f"Run {command} again: it goes on",
        )
    return plan, rounds
