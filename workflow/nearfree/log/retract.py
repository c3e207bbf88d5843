"""Retractions: a correction is a new event, never an edit of an old one."""

from nearfree.core.plan import RetractPlan
from nearfree.errors import EvidenceError
from nearfree.log.events import ObservationRetracted, RunFinished, RunStarted, SegmentRecovered
from nearfree.log.evidence import RETRACTED, read_take, retracted_targets
from nearfree.log.line import private_patterns, refuse_private
from nearfree.log.names import Layout, parse_take
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name

_BOOKKEEPING = (RunStarted, RunFinished, SegmentRecovered, ObservationRetracted)


def retract(layout: Layout, target: str, reason: str) -> Seal:
    """Declare an event (`scope/stream/take-plan8.attempt#sequence`) or a whole take invalid.

    Return the seal of the retraction's own take.

    Raises
    ------
    EvidenceError
        No sealed take holds the target; the target is a bookkeeping event or itself a retraction;
        or the target or its take is retracted already.
    LogError
        The reason holds a URL or the home folder. It is refused before anything is written.
    """
    refuse_private(reason, "the reason", private_patterns())
    segment, is_event, _ = target.partition("#")
    take = parse_take(segment.rsplit(".", 1)[0] if is_event else segment)
    if not layout.seal(take).exists():
        raise EvidenceError(f"no sealed take {take}", remedy="`nearfree log show` lists the takes")
    already_retracted = {target, str(take)} & retracted_targets(layout, take.scope)
    if already_retracted:
        raise EvidenceError(
            f"{min(already_retracted)} is retracted already",
            remedy=f"`nearfree log show {take.scope}` lists retractions, which hold their reasons",
        )
    if is_event:
        events = {event.event_id: event for event in read_take(layout, take).events}
        if target not in events:
            raise EvidenceError(
                f"{take} holds no event {target}",
                remedy=f"`nearfree log show {take}` lists its events",
            )
        if isinstance(events[target].data, _BOOKKEEPING):
            raise EvidenceError(
                f"{target} is bookkeeping, not an observation", remedy="Retract the whole take"
            )
    elif take.stream == RETRACTED:
        raise EvidenceError(
            f"{take} is a retraction, which cannot be retracted",
            remedy="Take the measurement again instead",
        )
    plan = RetractPlan(target=target, reason=reason)
    number = 1 + max((t.take for t in layout.takes(take.scope, RETRACTED)), default=0)

    retraction = ObservationRetracted(target=target, reason=reason)
    name = take_name(take.scope, RETRACTED, number, plan)
    return ensure_events(layout, name, plan, f"nearfree log retract {target}", lambda: [retraction])
