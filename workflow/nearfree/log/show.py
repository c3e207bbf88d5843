"""Print the log: takes, the events of a take, or one event as it is stored on disk."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from nearfree.errors import EvidenceError, printable, printable_json
from nearfree.log.events import Event
from nearfree.log.evidence import read_take, retracted_targets, stored_line
from nearfree.log.names import Layout, TakeName, check_part, parse_take
from nearfree.log.reader import read_segment
from nearfree.log.seal import read_seal


def show(layout: Layout, target: str | None = None) -> Iterator[str]:
    """Yield printable lines about the whole log, a scope, a take or an event.

    Parameters
    ----------
    target
        A scope, a take's name or an event's id; None for the whole log.

    Raises
    ------
    EvidenceError
        The log holds no such take or event.
    """
    if target is None or "/" not in target:
        return _takes(layout, check_part(target) if target else None)
    segment, _, number = target.partition("#")
    if number:
        return _event(layout, segment, number)
    return _take(layout, parse_take(target))


def _takes(layout: Layout, scope: str | None) -> Iterator[str]:
    takes = layout.takes(scope)
    retracted = {name: retracted_targets(layout, name) for name in {take.scope for take in takes}}
    for take in takes:
        seal = read_seal(layout, take)
        events = sum(part.events for part in seal.segments)
        mark = "  RETRACTED" if str(take) in retracted[take.scope] else ""
        yield f"{take}  {seal.outcome}  {events} events  {len(seal.segments)} attempt(s){mark}"
    for take in layout.takes(scope, sealed=False):
        yield f"{take}  interrupted  attempt(s) {layout.attempts(take)}"
    if not takes:
        yield f"no sealed takes{f' in {scope}' if scope else ''}"


def _take(layout: Layout, take: TakeName) -> Iterator[str]:
    if not layout.seal(take).exists():
        raise EvidenceError(
            f"no sealed take {take}", remedy="`nearfree log show` lists what there is"
        )
    events = read_take(layout, take).events
    retracted = retracted_targets(layout, take.scope)
    for name, count in sorted(Counter(event.type_name for event in events).items()):
        yield f"{count:>8}  {name}"
    for event in events:
        mark = "  RETRACTED" if retracted.intersection((event.event_id, str(take))) else ""
        yield f"{event.event_id}  {printable(event.time)}  {event.type_name}{mark}"


def _event(layout: Layout, segment: str, number: str) -> Iterator[str]:
    take = parse_take(segment.rsplit(".", 1)[0])
    path = layout.events / f"{segment}.jsonl"
    events: tuple[Event, ...] = read_segment(path, segment).events if path.exists() else ()
    matching = [event for event in events if event.id == number]
    if not matching:
        raise EvidenceError(
            f"no event {segment}#{number}", remedy=f"`nearfree log show {take}` lists its events"
        )
    yield printable_json(msgspec.json.format(stored_line(layout, matching[0]), indent=2).decode())
