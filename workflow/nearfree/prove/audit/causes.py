"""Why a row differs between two ledgers: takes, retractions, rules, constants, config."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from nearfree.core.scopes import IMPORTED, PUBLIC, SOURCES
from nearfree.derive.work_model.own import OWN_STREAM
from nearfree.log.evidence import RETRACTED
from nearfree.log.names import TakeName
from nearfree.pipeline.pipeline import CALIBRATED
from nearfree.prove.audit.ledger_snapshot import LedgerSnapshot, RowKey
from nearfree.prove.audit.table_index import ROW_ID

_CONFIG = "config/"
_EVENTS = "events/"
_TOLERANCES = f"{_CONFIG}config.yaml:tolerances"


class Cause(Struct, frozen=True, order=True):
    """A reason for a difference: its kind, its subject, and what happened to it."""

    kind: str
    what: str
    says: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.what}" + (f": {self.says}" if self.says else "")


_UNKNOWN = Cause("unknown", "cause", "nothing that its table is made from differs")


class Causes:
    """Follows the inputs of a row down to takes and config.

    Parameters
    ----------
    differing
        The rows that differ, each with its key.
    """

    def __init__(
        self, old: LedgerSnapshot, new: LedgerSnapshot, differing: dict[RowKey, dict[str, Any]]
    ) -> None:
        self._old, self._new = old, new
        self._differing = differing
        self._known: dict[RowKey, frozenset[Cause]] = {}
        self._takes = dict(self._changed_takes())
        self._retracted = dict(self._changed_retractions())
        self._config = dict(self._changed_config())

    def of(self, row_key: RowKey) -> frozenset[Cause]:
        """Return the causes of a row that differs."""
        if row_key not in self._known:
            stream = f"{row_key[0]}/{self._differing[row_key].get('stream')}/"
            causes = {*self._from_inputs(row_key), *self._by_key(row_key)}
            # The takes of a stream decide what is newest.
            causes = causes or {*self._changed_below(stream)}
            causes = causes or {*self._of_table(row_key)} or {*self._config.values()}
            self._known[row_key] = frozenset(causes or {_UNKNOWN})
        return self._known[row_key]

    def _from_inputs(self, row_key: RowKey) -> Iterator[Cause]:
        """Yield the causes of inputs that differ, or that only one of the ledgers has."""
        ids = [{*snapshot.from_ids.get(row_key, ())} for snapshot in (self._old, self._new)]
        for identifier in ids[0] | ids[1]:
            if ROW_ID.fullmatch(identifier):
                parent = self._new.row_key(row_key[0], identifier)
                if parent not in self._differing:
                    parent = self._old.row_key(row_key[0], identifier)
                if parent in self._differing:
                    yield from self.of(parent)
            elif identifier not in ids[0] & ids[1]:
                yield from self._of_evidence(identifier)

    def _of_evidence(self, identifier: str) -> Iterator[Cause]:
        """Yield why only one ledger has an event or a config entry."""
        if identifier.startswith(_CONFIG):
            yield from self._in_config(identifier)
            return
        take = identifier.partition("#")[0].rpartition(".")[0] or identifier
        for target in (identifier, take):
            if target in self._retracted:
                yield self._retracted[target]
        if take in self._takes:
            yield self._takes[take]

    def _by_key(self, row_key: RowKey) -> Iterator[Cause]:
        """Yield the config changes that add a row or remove it."""
        if row_key in self._old.from_ids and row_key in self._new.from_ids:
            return
        about = self._differing[row_key]
        tolerances = [{*snapshot.config.site.tolerances} for snapshot in (self._old, self._new)]
        if sum(about.get("epsilon") in epsilons for epsilons in tolerances) == 1:
            yield from self._in_config(_TOLERANCES)
        if "deployment" in about:
            yield from self._in_config(f"{_CONFIG}deployments.yaml:{about['deployment']}")

    def _of_table(self, row_key: RowKey) -> Iterator[Cause]:
        """Yield the changed inputs that a table's rows share without naming them."""
        scope, table = row_key[0], row_key[1].partition(":")[0]
        old, new = (snapshot.inputs(scope, table) for snapshot in (self._old, self._new))
        own_events = f"{_EVENTS}{scope}"
        names = {name for name in {*old, *new} if old.get(name) != new.get(name)}
        last = [{_TOLERANCES} & names, {own_events} & names]
        for group in (names.difference(*last), *last):
            causes = [cause for name in group for cause in self._of_input(name)]
            if causes:
                yield from causes
                return

    def _of_input(self, name: str) -> Iterator[Cause]:
        if name.startswith(_EVENTS):
            yield from self._changed_below(f"{name.removeprefix(_EVENTS)}/")
        elif name.startswith("constants/"):
            for stream in CALIBRATED:
                yield from self._changed_below(f"{PUBLIC}/{stream}/")
        else:
            yield from self._in_config(name)

    def _changed_below(self, prefix: str) -> Iterator[Cause]:
        for names in (self._takes, self._retracted):
            yield from (cause for name, cause in names.items() if name.startswith(prefix))

    def _in_config(self, identifier: str) -> Iterator[Cause]:
        """Yield the changes of an entry such as config/platforms.yaml:h20@digest, or around it."""
        entry = f"{identifier.partition('@')[0].removeprefix(_CONFIG)}."
        if entry.startswith("models:"):
            entry = f"models/{entry.removeprefix('models:')}json."
        for key, cause in self._config.items():
            if f"{key}.".startswith(entry) or entry.startswith((f"{key}.", f"{key}:")):
                yield cause
        if identifier == _TOLERANCES:
            yield from self._in_config(f"{_CONFIG}config.yaml:epsilon")

    def _changed_takes(self) -> Iterator[tuple[str, Cause]]:
        for take in {*self._old.takes} ^ {*self._new.takes}:
            if take.stream != RETRACTED:
                new = take in self._new.takes
                kind = f"new {_kind_of_take(take)}" if new else f"{_kind_of_take(take)} left out"
                yield str(take), Cause(kind, str(take))

    def _changed_retractions(self) -> Iterator[tuple[str, Cause]]:
        was, now = self._old.retracted, self._new.retracted
        for target in now.keys() - was.keys():
            yield target, Cause("retraction of", target, now[target])
        for target in was.keys() - now.keys():
            yield target, Cause("no retraction of", target, was[target])

    def _changed_config(self) -> Iterator[tuple[str, Cause]]:
        for key, change in _differences("", self._old.config_inputs, self._new.config_inputs):
            kind = "datasheet" if key.startswith("platforms.yaml") else "config"
            yield key, Cause(kind, key, change)


def _differences(path: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    """Yield the paths at which two documents differ, as file:key.key, and how."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield path, f"{old} became {new}"
        return
    joint = "." if ":" in path else ":" if path else ""
    for key in sorted({*old, *new}, key=str):
        key_path = f"{path}{joint}{key}"
        if key not in old or key not in new:
            yield key_path, "was added" if key in new else "was taken out"
        else:
            yield from _differences(key_path, old[key], new[key])


def _kind_of_take(take: TakeName) -> str:
    if take.scope == PUBLIC and take.stream in (*CALIBRATED, OWN_STREAM):
        return "constants"
    return {SOURCES: "rules", IMPORTED: "import"}.get(take.scope, "take")
