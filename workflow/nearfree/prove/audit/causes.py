"""Why a row differs between two ledgers: takes, retractions, rules, constants, config."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from nearfree.log.evidence import RETRACTED
from nearfree.log.names import TakeName
from nearfree.pipeline.pipeline import CONSTANTS, IMPORTED
from nearfree.prove.audit.ledger_snapshot import Place, Side
from nearfree.prove.audit.table_index import ROW_ID
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.sources.record import SCOPE as SOURCES

_CONFIG = "config/"
_EVENTS = "events/"
_TOLERANCES = f"{_CONFIG}config.yaml:tolerances"


class Cause(Struct, frozen=True, order=True):
    """One reason: its kind, what it is about, and what happened to it."""

    kind: str
    what: str
    says: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.what}" + (f": {self.says}" if self.says else "")


_UNKNOWN = Cause("unknown", "cause", "nothing that its table is made from differs")


class Causes:
    """Finds causes along the rows that a row is made from, down to takes and config.

    Parameters
    ----------
    differing
        The rows that differ, each with its key.
    """

    def __init__(self, old: Side, new: Side, differing: dict[Place, dict[str, Any]]) -> None:
        self._old, self._new = old, new
        self._differing = differing
        self._known: dict[Place, frozenset[Cause]] = {}
        self._takes = dict(self._changed_takes())
        self._retracted = dict(self._changed_retractions())
        self._config = dict(self._changed_config())

    def of(self, place: Place) -> frozenset[Cause]:
        """Return the causes of a row that differs."""
        if place not in self._known:
            found = {*self._along(place), *self._by_key(place)}
            for further in (self._in_stream, self._of_table, self._of_config):
                found = found or {*further(place)}
            self._known[place] = frozenset(found or {_UNKNOWN})
        return self._known[place]

    def _along(self, place: Place) -> Iterator[Cause]:
        """Yield the causes of what the row names now or named before, and not both times alike."""
        ids = [{*side.made_from.get(place, ())} for side in (self._old, self._new)]
        for each in ids[0] | ids[1]:
            if ROW_ID.fullmatch(each):
                there = self._new.place(place[0], each)
                if there not in self._differing:
                    there = self._old.place(place[0], each)
                if there in self._differing:
                    yield from self.of(there)
            elif each not in ids[0] & ids[1]:
                yield from self._leaf(each)

    def _leaf(self, identifier: str) -> Iterator[Cause]:
        """Yield why an event or an entry of the config is in one of the two alone."""
        if identifier.startswith(_CONFIG):
            yield from self._in_config(identifier)
            return
        take = identifier.partition("#")[0].rpartition(".")[0] or identifier
        for target in (identifier, take):
            if target in self._retracted:
                yield self._retracted[target]
        if take in self._takes:
            yield self._takes[take]

    def _by_key(self, place: Place) -> Iterator[Cause]:
        """Yield what the config changed so that a row is asked for, or no longer."""
        if place in self._old.made_from and place in self._new.made_from:
            return
        about = self._differing[place]
        asked = [{*side.config.site.tolerances} for side in (self._old, self._new)]
        if sum(about.get("epsilon") in each for each in asked) == 1:
            yield from self._in_config(_TOLERANCES)
        if "deployment" in about:
            yield from self._in_config(f"{_CONFIG}deployments.yaml:{about['deployment']}")

    def _in_stream(self, place: Place) -> Iterator[Cause]:
        """Yield what happened to the takes of a row's own stream, which decides what is newest."""
        yield from self._under(f"{place[0]}/{self._differing[place].get('stream')}/")

    def _of_table(self, place: Place) -> Iterator[Cause]:
        """Yield what differs of the inputs that a table's rows share without naming them."""
        scope, table = place[0], place[1].partition(":")[0]
        old, new = (side.inputs(scope, table) for side in (self._old, self._new))
        own = f"{_EVENTS}{scope}"
        names = {name for name in {*old, *new} if old.get(name) != new.get(name)}
        for some in (names - {own, _TOLERANCES}, names & {_TOLERANCES}, names & {own}):
            found = [cause for name in some for cause in self._input(name)]
            if found:
                yield from found
                return

    def _of_config(self, place: Place) -> Iterator[Cause]:
        """Yield every change of the config that may change what is derived."""
        del place
        yield from self._config.values()

    def _input(self, name: str) -> Iterator[Cause]:
        if name.startswith(_EVENTS):
            yield from self._under(f"{name.removeprefix(_EVENTS)}/")
        elif name.startswith(f"{CONSTANTS}/"):
            yield from self._under(f"{PUBLIC}/{CONSTANTS}")
        else:
            yield from self._in_config(name)

    def _under(self, prefix: str) -> Iterator[Cause]:
        for names in (self._takes, self._retracted):
            yield from (cause for name, cause in names.items() if name.startswith(prefix))

    def _in_config(self, identifier: str) -> Iterator[Cause]:
        """Yield the changes at, below or above a place such as config/platforms.yaml:h20@digest."""
        place = f"{identifier.partition('@')[0].removeprefix(_CONFIG)}."
        if place.startswith("models:"):
            place = f"models/{place.removeprefix('models:')}json."
        for key, cause in self._config.items():
            if f"{key}.".startswith(place) or place.startswith((f"{key}.", f"{key}:")):
                yield cause
        if identifier == _TOLERANCES:
            yield from self._in_config(f"{_CONFIG}config.yaml:epsilon")

    def _changed_takes(self) -> Iterator[tuple[str, Cause]]:
        for take in {*self._old.takes} ^ {*self._new.takes}:
            if take.stream != RETRACTED:
                new = take in self._new.takes
                kind = f"new {_what(take)}" if new else f"{_what(take)} left out"
                yield str(take), Cause(kind, str(take))

    def _changed_retractions(self) -> Iterator[tuple[str, Cause]]:
        was, now = self._old.retracted, self._new.retracted
        for target in now.keys() - was.keys():
            yield target, Cause("retraction of", target, now[target])
        for target in was.keys() - now.keys():
            yield target, Cause("no retraction of", target, was[target])

    def _changed_config(self) -> Iterator[tuple[str, Cause]]:
        for key, says in _differences("", self._old.asked, self._new.asked):
            kind = "datasheet" if key.startswith("platforms.yaml") else "config"
            yield key, Cause(kind, key, says)


def _differences(place: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    """Yield where two documents differ, as file:key.key, and how."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield place, f"{old} became {new}"
        return
    joint = "." if ":" in place else ":" if place else ""
    for key in sorted({*old, *new}, key=str):
        there = f"{place}{joint}{key}"
        if key not in old or key not in new:
            yield there, "was added" if key in new else "was taken out"
        else:
            yield from _differences(there, old[key], new[key])


def _what(take: TakeName) -> str:
    if take.scope == PUBLIC and take.stream.startswith(CONSTANTS):
        return "constants"
    return {SOURCES: "rules", IMPORTED: "import"}.get(take.scope, "take")
