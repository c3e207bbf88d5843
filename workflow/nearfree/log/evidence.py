"""The evidence of a scope: its sealed takes without retracted events, always in the same order.

Simulated and measured takes never share a results root.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from nearfree.core.plan import ProfilePlan, RequestedPlan
from nearfree.errors import DamageError, EvidenceError, NearfreeError
from nearfree.log.events import PAYLOADS, Event, ObservationRetracted, Payload, RunStarted
from nearfree.log.line import REMEDY
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import UNREADABLE, decode, gc_paused, read_bytes
from nearfree.log.seal import Seal, iter_sealed, read_seal

_HARDWARE = "hardware"
RETRACTED = "retracted"
"""The stream of a scope that holds its retractions."""
Kinds = tuple[type[Payload], ...]


class Take:
    """A sealed take and its events that are not retracted."""

    def __init__(self, name: TakeName, seal: Seal, events: Iterable[Event]) -> None:
        self.name = name
        self.seal = seal
        self.events = tuple(events)

    @cached_property
    def _by_kind(self) -> dict[type[Payload], list[Event]]:
        by_kind: dict[type[Payload], list[Event]] = defaultdict(list)
        for event in self.events:
            by_kind[type(event.data)].append(event)
        return by_kind

    def events_of(self, kind: type[Payload]) -> list[Event]:
        """Return the events of one type, in order."""
        return self._by_kind.get(kind, [])

    @property
    def started(self) -> Event:
        """The start of the run that sealed the take; DamageError if the take has none."""
        runs = self.events_of(RunStarted)
        if not runs:
            raise DamageError(f"{self.name} holds no start of a run", remedy=REMEDY)
        return runs[-1]

    @property
    def order(self) -> tuple[int, str, str]:
        """The sort key of takes of one setting, oldest first."""
        return self.name.take, self.started.time, self.name.plan8


@gc_paused()
def read_take(layout: Layout, name: TakeName, *, only: Kinds = PAYLOADS) -> Take:
    """Return a sealed take; DamageError if a byte of it changed.

    Parameters
    ----------
    only
        The event types to read; `RunStarted` events are always read, too.
    """
    seal = read_seal(layout, name)
    return Take(name, seal, iter_sealed(layout, seal, (RunStarted, *only)))


@gc_paused()
def read_scope(
    layout: Layout, scope: str, *, stream: str | None = None, only: Kinds = PAYLOADS
) -> list[Take]:
    """Return the sealed takes of a scope or of one stream, sorted, without retracted events.

    Parameters
    ----------
    only
        The event types to read; `RunStarted` events are always read, too.
    """
    return [Take(*parts) for parts in open_takes(layout, scope, stream=stream, only=only)]


def newest_takes(takes: Iterable[Take], kind: type[Payload]) -> list[Take]:
    """Return the newest take of each stream that has events of a type, sorted by stream."""
    newest: dict[str, Take] = {}
    for take in sorted(takes, key=lambda candidate: candidate.order):
        if take.events_of(kind):
            newest[take.name.stream] = take
    return [newest[stream] for stream in sorted(newest)]


def open_takes(
    layout: Layout, scope: str, *, stream: str | None = None, only: Kinds = PAYLOADS
) -> Iterator[tuple[TakeName, Seal, Iterator[Event]]]:
    """Yield the takes of `read_scope` one by one, each with an iterator over its events.

    A take's bytes are verified only once its last event has been read.

    Raises
    ------
    EvidenceError
        Two takes ran on different machines, as after merging two logs. It is raised while the
        events of the second take are read.
    """
    retracted = retracted_targets(layout, scope)
    machines: dict[str, TakeName] = {}
    for name in layout.takes(scope, stream):
        if str(name) not in retracted:
            seal = read_seal(layout, name)
            events = _check_one_machine(
                machines, name, iter_sealed(layout, seal, (RunStarted, *only))
            )
            yield name, seal, (e for e in events if not retracted or e.event_id not in retracted)


def _check_one_machine(
    first_take_by_device: dict[str, TakeName], name: TakeName, events: Iterable[Event]
) -> Iterator[Event]:
    """Yield a take's events; EvidenceError once the scope's takes ran on a second machine.

    `first_take_by_device` collects the first take of each device.
    """
    for event in events:
        if isinstance(event.data, RunStarted) and event.data.device is not None:
            first_take_by_device.setdefault(event.data.device, name)
            if len(first_take_by_device) > 1:
                (first_device, first_take), (second_device, second_take) = (
                    first_take_by_device.items()
                )
                raise EvidenceError(
                    f"{first_take} was taken on {first_device!r} and {second_take} on "
                    f"{second_device!r}: a platform is one machine",
                    remedy="Keep each machine's log in a results root or under a platform of its "
                    "own, or retract the takes of one with `nearfree log retract`",
                )
        yield event


def stored_line(layout: Layout, event: Event) -> bytes:
    """Return an event's line as stored on disk, in the event version that wrote it."""
    path = layout.events / f"{event.source}.jsonl"
    return read_bytes(path).split(b"\n")[int(event.id) - 1]


def retracted_targets(layout: Layout, scope: str) -> set[str]:
    """Return the retracted ids of events and names of takes of a scope.

    A retracted take is never read, so a damaged take can be retracted as well.
    """
    return {*retractions(layout, layout.takes(scope, RETRACTED))}


def retractions(layout: Layout, takes: Iterable[TakeName]) -> dict[str, str]:
    """Return the events and takes that some takes retract, each with the reason."""
    read = (read_take(layout, take) for take in takes if take.stream == RETRACTED)
    events = (event.data for take in read for event in take.events_of(ObservationRetracted))
    return {event.target: event.reason for event in events}


def is_simulated(layout: Layout, take: TakeName) -> bool | None:
    """Return whether a sealed take is simulated; None for a take that used no device."""
    started = first_start(layout, take)
    on_device = started is not None and isinstance(started.plan, RequestedPlan | ProfilePlan)
    return bool(getattr(started.plan, "curves", False)) if started and on_device else None


def first_start(layout: Layout, take: TakeName) -> RunStarted | None:
    """Return the start of a take, from its first line; None if no attempt's line can be read.

    The other lines are neither read nor compared with the seal.
    """
    for attempt in layout.attempts(take):
        try:
            with layout.segment(take, attempt).open("rb") as segment:
                started = decode(segment.readline()).data
        except (OSError, *UNREADABLE, NearfreeError):
            continue  # a killed attempt may hold nothing; reading the take reports damage
        if isinstance(started, RunStarted):
            return started
    return None


def simulated(layout: Layout, scope: str) -> bool | None:
    """Return whether a scope's machine is simulated; None if no sealed take tells.

    One take is enough, since `refuse_mixed` keeps the other kind out.
    """
    takes = sorted(layout.takes(scope), key=lambda take: take.stream != _HARDWARE)
    kinds = (is_simulated(layout, take) for take in takes)
    return next((kind for kind in kinds if kind is not None), None)


def refuse_mixed(layout: Layout, *, as_simulated: bool) -> None:
    """Raise EvidenceError if a root holds simulated takes and measured ones are due, or reverse."""
    for scope in sorted({take.scope for take in layout.takes()}):
        if simulated(layout, scope) not in (None, as_simulated):
            present, new = ("measured", "simulated") if as_simulated else ("simulated", "measured")
            raise EvidenceError(
                f"{layout.root} holds {present} takes of {scope}: what is {new} stays apart",
                remedy="Choose another results root with --results "
                "(for the workflow: --config results=FOLDER)",
            )
