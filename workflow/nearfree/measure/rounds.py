"""Whole rounds of interrupted takes: what the next attempt keeps, and how to close a take early."""

from collections import Counter
from collections.abc import Iterator

from nearfree.core.plan import DecodePlan, MeasurePlan, Plan
from nearfree.core.protocols import Adaptive, Thinned
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

_FEWEST_ROUNDS = 3
_HEADER = RunStarted | EngineLoaded | SegmentRecovered | WorkCounted | LaunchFloor


def whole_rounds(segment: Segment, plan: Plan) -> int:
    """Return how many leading events to keep: the header, whole rounds, and shares after them.

    Of decodes they are those of whole prompts.

    Rounds are written one after the other and made durable as a whole, so what follows the last
    whole round was never acknowledged.
    """
    if isinstance(plan, DecodePlan):
        return _whole_prompts(segment, plan)
    otherwise = plan.points_a_round if isinstance(plan, MeasurePlan) else 0
    kept = written = rounds = 0
    for number, event in enumerate(segment.events, start=1):
        if isinstance(event.data, LatencyMeasured):
            written += 1
            if written == (event.data.round_points or otherwise):
                kept, written, rounds = number, 0, rounds + 1
            continue
        header = isinstance(event.data, _HEADER) and not rounds
        if not written and (header or isinstance(event.data, SharesMeasured)):
            kept = number
    return kept


def _whole_prompts(segment: Segment, plan: DecodePlan) -> int:
    """Return how many leading events to keep: what came before, and prompts that were done.

    Those that are decoded at once are done together.
    """
    kept, counts = 0, Counter[tuple[str, int]]()
    for number, event in enumerate(segment.events, start=1):
        if isinstance(event.data, DecodeMeasured):
            key = (event.data.prompt_sha256, event.data.repeat)
        elif isinstance(event.data, DraftsTraced):
            key = (event.data.prompt_sha256, 0)
        else:
            kept = number if not any(counts.values()) else kept
            continue
        counts[key] += 1
        together = len(plan.prompts) if plan.batch > 1 else 1
        whole = len(counts) % together == 0 and all(
            count == len(plan.runs) + (0 if repeat else len(plan.traced))
            for (_, repeat), count in counts.items()
        )
        kept = number if whole else kept
    return kept


def interrupted(layout: Layout) -> Iterator[str]:
    """Yield a line for each attempt of a take without a seal: what the next one would keep."""
    takes = layout.takes(sealed=False)
    for take in takes:
        for attempt in layout.attempts(take):
            segment = read_segment(layout.segment(take, attempt), take.segment(attempt))
            plan = next(
                (e.data.plan for e in segment.events if isinstance(e.data, RunStarted)), None
            )
            kept = whole_rounds(segment, plan) if plan else 0
            yield (
                f"{segment.name}: {len(segment.events)} whole events, {kept} kept by the next "
                f"attempt, {segment.torn_bytes} torn bytes"
            )
    if not takes:
        yield "no interrupted takes"


def recover(layout: Layout, name: str) -> Iterator[str]:
    """Seal an interrupted take with the whole rounds that it holds, as `partial`.

    Use it when the take cannot go on; else run the same command again.

    Raises
    ------
    EvidenceError
        There is no such interrupted take, or it holds too few whole rounds to say anything.
    """
    take = parse_take(name)
    if take not in layout.takes(take.scope, sealed=False):
        raise EvidenceError(
            f"{take} is not an interrupted take", remedy="`nearfree log recover` lists them"
        )
    plan, rounds = _held(layout, take)
    open_take = OpenTake(layout, take, plan, keep=whole_rounds)
    try:
        open_take.start(describe_run(f"nearfree log recover {take}", plan, open_take.attempt))
        open_take.finish(outcome="partial")
    finally:
        open_take.writer.close()
    yield f"{take}: sealed as partial with {rounds} of {plan.protocol.rounds} rounds"


def _of_all_points(visit: LatencyMeasured) -> bool:
    """Return whether every point gets such a visit, not those alone that are still open."""
    return not (visit.paired and isinstance(visit.protocol, Adaptive))


def _held(layout: Layout, take: TakeName) -> tuple[MeasurePlan, int]:
    attempts = Attempts(layout, take)
    attempts.release()
    plan = attempts.plan()
    if not isinstance(plan, MeasurePlan):
        raise EvidenceError(f"{take} has no rounds", remedy="Run its command again instead")
    visits, numbers = Counter[tuple[Setting, int]](), set[int]()
    for _, _, events in attempts.kept(plan, whole_rounds):
        for event in events:
            if isinstance(event.data, LatencyMeasured) and _of_all_points(event.data):
                visits[event.data.setting, event.data.n] += 1
                numbers.add(event.data.round)
    fewest = len(numbers) if isinstance(plan.protocol, Thinned) else min(visits.values(), default=0)
    rounds = fewest if len(visits) == plan.points_a_round else 0
    if rounds < _FEWEST_ROUNDS:
        command = f"`nearfree measure {take.scope} {take.stream}`"
        if plan.weights:  # of a study, or of a file of the user's
            command += ", or the `nearfree measure --engine` or `nearfree tune` that began it,"
        raise EvidenceError(
            f"{take} holds {rounds} whole rounds of every point, fewer than {_FEWEST_ROUNDS}",
            remedy=f"Run {command} again: it goes on",
        )
    return plan, rounds
