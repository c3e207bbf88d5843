"""Interrupted takes: what they hold, and how to close one whose machine will not come back."""

from collections import Counter
from collections.abc import Iterator

from nearfree.core.plan import MeasurePlan
from nearfree.errors import EvidenceError
from nearfree.log.attempts import Attempts, whole_rounds
from nearfree.log.events import LatencyMeasured, RunStarted
from nearfree.log.names import Layout, TakeName, parse_take
from nearfree.log.reader import read_segment
from nearfree.log.run import describe_run
from nearfree.log.take import OpenTake

_FEWEST_ROUNDS = 3


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
    plan, found = _held(layout, take)
    open_take = OpenTake(layout, take, plan)
    try:
        open_take.start(describe_run(f"nearfree log recover {take}", plan, open_take.attempt))
        open_take.finish(outcome="partial")
    finally:
        open_take.writer.close()
    yield f"{take}: sealed as partial with {found} of {plan.protocol.rounds} rounds"


def _held(layout: Layout, take: TakeName) -> tuple[MeasurePlan, int]:
    attempts = Attempts(layout, take)
    attempts.release()
    plan = attempts.plan()
    if not isinstance(plan, MeasurePlan):
        raise EvidenceError(f"{take} measures nothing", remedy="Run its command again instead")
    seen = Counter(
        (event.data.setting, event.data.n)
        for _, _, events in attempts.kept(plan)
        for event in events
        if isinstance(event.data, LatencyMeasured) and not event.data.paired
    )
    found = min(seen.values()) if len(seen) == plan.points_a_round else 0
    if found < _FEWEST_ROUNDS:
        raise EvidenceError(
            f"{take} holds {found} whole rounds of every point, fewer than {_FEWEST_ROUNDS}",
            remedy=f"Run `nearfree measure {take.scope} {take.stream}` again: it goes on",
        )
    return plan, found
