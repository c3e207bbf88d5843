"""Interrupted takes: what they hold, and how to close one whose machine will not come back."""

from collections.abc import Iterator

from nearfree.errors import EvidenceError
from nearfree.events.names import Layout, parse_take
from nearfree.events.reader import read_segment
from nearfree.events.run import describe_run
from nearfree.events.take import OpenTake, whole_rounds
from nearfree.events.types import LatencyMeasured, RunStarted
from nearfree.settings import MeasurePlan, Plan

_FEWEST_ROUNDS = 3


def interrupted(layout: Layout) -> Iterator[str]:
    """Yield a line for each take without a seal: what the next attempt would keep."""
    takes = layout.takes(sealed=False)
    for take in takes:
        for attempt in layout.attempts(take):
            segment = read_segment(layout.segment(take, attempt), take.segment(attempt))
            plan = _plan(segment.events)
            kept = whole_rounds(segment, plan) if plan else 0
            yield (
                f"{segment.name}: {len(segment.events)} whole events, {kept} kept by the next "
                f"attempt, {segment.torn_bytes} torn bytes"
            )
    if not takes:
        yield "no interrupted takes"


def recover(layout: Layout, name: str) -> Iterator[str]:
    """Seal an interrupted take with the whole rounds that it holds, as `partial`.

    Use it when the take cannot go on; else run the same `nearfree measure` again.

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
    first = read_segment(layout.segment(take, min(layout.attempts(take))), take.segment(1))
    plan = _plan(first.events)
    if not isinstance(plan, MeasurePlan):
        raise EvidenceError(f"{take} measures nothing", remedy="Run its command again instead")
    open_take = OpenTake(layout, take, plan)
    try:
        points = sum(isinstance(event.data, LatencyMeasured) for event in open_take.events)
        found = points // plan.points_a_round
        open_take.start(describe_run(f"nearfree log recover {take}", plan, open_take.attempt))
        if found < _FEWEST_ROUNDS:
            raise EvidenceError(
                f"{take} holds {found} whole rounds, fewer than {_FEWEST_ROUNDS}",
                remedy=f"Run `nearfree measure {take.scope} {take.stream}` again: it goes on",
            )
        open_take.finish(outcome="partial")
    finally:
        open_take.writer.close()
    yield f"{take}: sealed as partial with {found} of {plan.protocol.rounds} rounds"


def _plan(events: tuple[object, ...]) -> Plan | None:
    for event in events:
        data = getattr(event, "data", None)
        if isinstance(data, RunStarted):
            return data.plan
    return None
