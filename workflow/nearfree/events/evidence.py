"""What a scope holds: its sealed takes without what was retracted, always in the same order."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from nearfree.events.names import Layout, TakeName
from nearfree.events.seal import Seal, read_seal, read_sealed
from nearfree.events.types import Event, ObservationRetracted, Payload, RunStarted

RETRACTED = "retracted"
"""The stream of a scope that holds its retractions."""


class Take:
    """A sealed take and its believed events."""

    def __init__(self, name: TakeName, seal: Seal, events: Iterable[Event]) -> None:
        self.name = name
        self.seal = seal
        self.events = tuple(events)

    @cached_property
    def _by_kind(self) -> dict[type[Payload], list[Event]]:
        found: dict[type[Payload], list[Event]] = defaultdict(list)
        for event in self.events:
            found[type(event.data)].append(event)
        return found

    def of(self, kind: type[Payload]) -> list[Event]:
        """Return the events of one type, in order."""
        return self._by_kind.get(kind, [])

    @property
    def started(self) -> Event:
        """The event of the run that sealed the take."""
        return self.of(RunStarted)[-1]

    @property
    def order(self) -> tuple[int, str, str]:
        """What decides which of two takes of one setting is newer."""
        return self.name.take, self.started.time, self.name.plan8


def read_take(layout: Layout, name: TakeName) -> Take:
    """Return a sealed take; DamageError if a byte of it changed."""
    seal = read_seal(layout, name)
    return Take(name, seal, read_sealed(layout, seal))


def read_scope(layout: Layout, scope: str, *, stream: str | None = None) -> list[Take]:
    """Return the sealed takes of a scope or of one stream, sorted, without what was retracted."""
    gone = retracted_targets(layout, scope)
    names = [n for n in layout.takes(scope) if stream in (None, n.stream) and str(n) not in gone]
    takes = [read_take(layout, name) for name in names]
    if not gone:
        return takes
    return [Take(t.name, t.seal, (e for e in t.events if e.event_id not in gone)) for t in takes]


def retracted_targets(layout: Layout, scope: str) -> set[str]:
    """Return what was retracted of a scope: ids of events and names of takes.

    A retracted take is not read at all, so a damaged one can be retracted, too.
    """
    names = [name for name in layout.takes(scope) if name.stream == RETRACTED]
    takes = [read_take(layout, name) for name in names]
    return {event.data.target for take in takes for event in take.of(ObservationRetracted)}
