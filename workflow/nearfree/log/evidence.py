"""What a scope holds: its sealed takes without what was retracted, always in the same order.

Simulated takes share no results root with real ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from nearfree.core.plan import ProfilePlan, RequestedPlan
from nearfree.errors import DamageError, EvidenceError, NearfreeError
from nearfree.log.events import PAYLOADS, Event, ObservationRetracted, Payload, RunStarted
from nearfree.log.line import REMEDY
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import UNREADABLE, decode, no_collection, read_bytes
from nearfree.log.seal import Seal, iter_sealed, read_seal

_HARDWARE = "hardware"
RETRACTED = "retracted"
"""The stream of a scope that holds its retractions."""
Kinds = tuple[type[Payload], ...]


class Take:
    """A sealed take and its believed events."""

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

    def of(self, kind: type[Payload]) -> list[Event]:
        """Return the events of one type, in order."""
        return self._by_kind.get(kind, [])

    @property
    def started(self) -> Event:
        """The event of the run that sealed the take; DamageError where no event says one."""
        runs = self.of(RunStarted)
        if not runs:
            raise DamageError(f"{self.name} does not say who ran it", remedy=REMEDY)
        return runs[-1]

    @property
    def order(self) -> tuple[int, str, str]:
        """What decides which of two takes of one setting is newer."""
        return self.name.take, self.started.time, self.name.plan8


@no_collection()
def read_take(layout: Layout, name: TakeName, *, only: Kinds = PAYLOADS) -> Take:
    """Return a sealed take; DamageError if a byte of it changed.

    Parameters
    ----------
    only
        The types of events that are wanted; the start of its runs always comes with them.
    """
    seal = read_seal(layout, name)
    return Take(name, seal, iter_sealed(layout, seal, (RunStarted, *only)))


@no_collection()
def read_scope(
    layout: Layout, scope: str, *, stream: str | None = None, only: Kinds = PAYLOADS
) -> list[Take]:
    """Return the sealed takes of a scope or of one stream, sorted, without what was retracted.

    Parameters
    ----------
    only
        The types of events that are wanted; the start of its runs always comes with them.
    """
    return [Take(*parts) for parts in open_takes(layout, scope, stream=stream, only=only)]


def newest_takes(takes: Iterable[Take], kind: type[Payload]) -> list[Take]:
    """Return the newest take of each stream, in their order, among those with events of a type."""
    newest: dict[str, Take] = {}
    for take in sorted(takes, key=lambda candidate: candidate.order):
        if take.of(kind):
            newest[take.name.stream] = take
    return [newest[stream] for stream in sorted(newest)]


def open_takes(
    layout: Layout, scope: str, *, stream: str | None = None, only: Kinds = PAYLOADS
) -> Iterator[tuple[TakeName, Seal, Iterator[Event]]]:
    """Yield the same takes one by one, the events of each to be read as they come.

    A take is believed when its last event was read.

    Raises
    ------
    EvidenceError
        Two of them were taken on different machines, as where the logs of two were put together;
        it is known when the events of the second are read.
    """
    gone = retracted_targets(layout, scope)
    machines: dict[str, TakeName] = {}
    for name in layout.takes(scope, stream):
        if str(name) not in gone:
            seal = read_seal(layout, name)
            events = _on_one(machines, name, iter_sealed(layout, seal, (RunStarted, *only)))
            yield name, seal, (e for e in events if not gone or e.event_id not in gone)


def _on_one(
    machines: dict[str, TakeName], name: TakeName, events: Iterable[Event]
) -> Iterator[Event]:
    """Yield a take's events; `machines` holds the first take of each device that was met."""
    for event in events:
        if isinstance(event.data, RunStarted) and event.data.device is not None:
            machines.setdefault(event.data.device, name)
            if len(machines) > 1:
                (first, there), (second, here) = machines.items()
                raise EvidenceError(
                    f"{there} was taken on {first!r} and {here} on {second!r}: a platform is one "
                    "machine",
                    remedy="Keep each machine's log in a results root or under a platform of its "
                    "own, or retract the takes of one with `nearfree log retract`",
                )
        yield event


def stored_line(layout: Layout, event: Event) -> bytes:
    """Return an event's line as it lies on disk, in the version that it was written in."""
    path = layout.events / f"{event.source}.jsonl"
    return read_bytes(path).split(b"\n")[int(event.id) - 1]


def retracted_targets(layout: Layout, scope: str) -> set[str]:
    """Return what was retracted of a scope: ids of events and names of takes.

    A retracted take is not read at all, so a damaged one can be retracted, too.
    """
    takes = [read_take(layout, name) for name in layout.takes(scope, RETRACTED)]
    return {event.data.target for take in takes for event in take.of(ObservationRetracted)}


def is_simulated(layout: Layout, take: TakeName) -> bool | None:
    """Return whether a sealed take is simulated; None for one that no device was asked for."""
    started = first_start(layout, take)
    on_device = started is not None and isinstance(started.plan, RequestedPlan | ProfilePlan)
    return bool(getattr(started.plan, "curves", False)) if started and on_device else None


def first_start(layout: Layout, take: TakeName) -> RunStarted | None:
    """Return how a take began, by its first line alone; None where none can be read.

    The rest is neither read nor compared with its seal.
    """
    for attempt in layout.attempts(take):
        try:
            with layout.segment(take, attempt).open("rb") as segment:
                started = decode(segment.readline()).data
        except (OSError, *UNREADABLE, NearfreeError):
            continue  # a killed attempt may hold nothing; whoever reads the take tells of damage
        if isinstance(started, RunStarted):
            return started
    return None


def simulated(layout: Layout, scope: str) -> bool | None:
    """Return whether a scope's machine is simulated, None if nothing of it is sealed.

    One take tells: others of another kind are refused.
    """
    takes = sorted(layout.takes(scope), key=lambda take: take.stream != _HARDWARE)
    kinds = (is_simulated(layout, take) for take in takes)
    return next((kind for kind in kinds if kind is not None), None)


def refuse_mixed(layout: Layout, *, as_simulated: bool) -> None:
    """Raise EvidenceError if a root holds takes of machines of the other kind."""
    for scope in sorted({take.scope for take in layout.takes()}):
        if simulated(layout, scope) not in (None, as_simulated):
            there, new = ("measured", "simulated") if as_simulated else ("simulated", "measured")
            raise EvidenceError(
                f"{layout.root} holds {there} takes of {scope}: what is {new} stays apart",
                remedy="Choose another results root with --results "
                "(for the workflow: --config results=FOLDER)",
            )
