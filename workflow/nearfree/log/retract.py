"""Retractions: a correction is a new event, never an edit."""

from nearfree.core.plan import RetractPlan
from nearfree.errors import EvidenceError
from nearfree.log.events import (
    ObservationRetracted,
    RunFinished,
    RunStarted,
    SegmentRecovered,
)
from nearfree.log.evidence import RETRACTED, read_take, retracted_targets
from nearfree.log.names import Layout, parse_take
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name

_BOOKKEEPING = (RunStarted, RunFinished, SegmentRecovered, ObservationRetracted)


def retract(layout: Layout, target: str, reason: str) -> Seal:
    """Declare an event (`scope/stream/take-plan8.attempt#sequence`) or a whole take invalid.

    Raises
    ------
    EvidenceError
        No sealed take holds the target, it is bookkeeping that nothing is derived from, or it, or
        the take that holds it, is retracted already.
    """
    segment, of_event, _ = target.partition("#")
    take = parse_take(segment.rsplit(".", 1)[0] if of_event else segment)
    if not layout.seal(take).exists():
        raise EvidenceError(f"no sealed take {take}", remedy="`nearfree log show` lists the takes")
    done = {target, str(take)} & retracted_targets(layout, take.scope)
    if done:
        raise EvidenceError(
            f"{min(done)} is retracted already, which stays",
            remedy=f"`nearfree log show {take.scope}` lists retractions, which hold their reasons",
        )
    if of_event:
        events = {event.event_id: event for event in read_take(layout, take).events}
        if target not in events:
            raise EvidenceError(
                f"{take} holds no event {target}", remedy=f"`nearfree log show {take}` lists them"
            )
        if isinstance(events[target].data, _BOOKKEEPING):
            raise EvidenceError(
                f"{target} is bookkeeping, not an observation", remedy="Retract the whole take"
            )
    elif take.stream == RETRACTED:
        raise EvidenceError(
            f"{take} is a retraction, which stays", remedy="Take the measurement again instead"
        )
    plan = RetractPlan(target=target, reason=reason)
    number = 1 + max((t.take for t in layout.takes(take.scope, RETRACTED)), default=0)

    retraction = ObservationRetracted(target=target, reason=reason)
    name = take_name(take.scope, RETRACTED, number, plan)
    return ensure_events(layout, name, plan, f"nearfree log retract {target}", lambda: [retraction])
