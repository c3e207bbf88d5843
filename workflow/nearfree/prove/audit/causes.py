"""Causes of a row's difference between two ledgers: takes, retractions, rules, config."""

from collections.abc import Iterator
from functools import cache
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
    """A cause of a difference: its kind, its subject (`what`) and the change (`says`)."""

    kind: str
    what: str
    says: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.what}" + (f": {self.says}" if self.says else "")


_UNKNOWN_CAUSE = Cause("unknown", "cause", "nothing that its table is made from differs")


class Causes:
    """Finds causes by following the inputs of a row down to takes and config.

    Parameters
    ----------
    differing
        The rows that differ, by key, each with its identifying values.
    """

    def __init__(
        self, old: LedgerSnapshot, new: LedgerSnapshot, differing: dict[RowKey, dict[str, Any]]
    ) -> None:
        self._old, self._new = old, new
        self._differing = differing
        self._takes = dict(self._changed_takes())
        self._retracted = dict(self._changed_retractions())
        self._config = dict(self._changed_config())

    @cache  # noqa: B019 (they live as long as a command)
    def of(self, row_key: RowKey) -> frozenset[Cause]:
        """Return the causes of a row that differs."""
        stream = f"{row_key[0]}/{self._differing[row_key].get('stream')}/"
        causes = {*self._from_inputs(row_key), *self._from_key(row_key)}
        # A row's `newest` depends on the other takes of its stream.
        causes = causes or {*self._changes_below(stream)}
        causes = causes or {*self._from_table(row_key)} or {*self._config.values()}
        return frozenset(causes or {_UNKNOWN_CAUSE})

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
                yield from self._from_evidence(identifier)

    def _from_evidence(self, identifier: str) -> Iterator[Cause]:
        """Yield the causes why only one ledger has an event or a config entry."""
        if identifier.startswith(_CONFIG):
            yield from self._config_changes(identifier)
            return
        take = identifier.partition("#")[0].rpartition(".")[0]
        for target in (identifier, take):
            if target in self._retracted:
                yield self._retracted[target]
        if take in self._takes:
            yield self._takes[take]

    def _from_key(self, row_key: RowKey) -> Iterator[Cause]:
        """Yield the config changes that add a row or remove it."""
        if row_key in self._old.from_ids and row_key in self._new.from_ids:
            return
        row = self._differing[row_key]
        tolerances = [{*snapshot.config.site.tolerances} for snapshot in (self._old, self._new)]
        if sum(row.get("epsilon") in epsilons for epsilons in tolerances) == 1:
            yield from self._config_changes(_TOLERANCES)
        if "deployment" in row:
            yield from self._config_changes(f"{_CONFIG}deployments.yaml:{row['deployment']}")

    def _from_table(self, row_key: RowKey) -> Iterator[Cause]:
        """Yield the changed inputs that a table's rows share without naming them."""
        scope, table = row_key[0], row_key[1].partition(":")[0]
        old, new = (snapshot.inputs(scope, table) for snapshot in (self._old, self._new))
        scope_events = f"{_EVENTS}{scope}"
        changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
        later_groups = [{_TOLERANCES} & changed, {scope_events} & changed]
        for group in (changed.difference(*later_groups), *later_groups):
            causes = [cause for name in group for cause in self._from_input(name)]
            if causes:
                yield from causes
                return

    def _from_input(self, name: str) -> Iterator[Cause]:
        if name.startswith(_EVENTS):
            yield from self._changes_below(f"{name.removeprefix(_EVENTS)}/")
        elif name.startswith("constants/"):
            for stream in CALIBRATED:
                yield from self._changes_below(f"{PUBLIC}/{stream}/")
        else:
            yield from self._config_changes(name)

    def _changes_below(self, prefix: str) -> Iterator[Cause]:
        for causes in (self._takes, self._retracted):
            yield from (cause for name, cause in causes.items() if name.startswith(prefix))

    def _config_changes(self, identifier: str) -> Iterator[Cause]:
        """Yield changes of, above or below a config entry, such as config/platforms.yaml:h20."""
        entry = f"{identifier.partition('@')[0].removeprefix(_CONFIG)}."
        if entry.startswith("models:"):
            entry = f"models/{entry.removeprefix('models:')}json."
        for key, cause in self._config.items():
            if f"{key}.".startswith(entry) or entry.startswith((f"{key}.", f"{key}:")):
                yield cause
        if identifier == _TOLERANCES:
            yield from self._config_changes(f"{_CONFIG}config.yaml:epsilon")

    def _changed_takes(self) -> Iterator[tuple[str, Cause]]:
        for take in {*self._old.takes} ^ {*self._new.takes}:
            if take.stream != RETRACTED:
                new = take in self._new.takes
                kind = f"new {_kind_of_take(take)}" if new else f"{_kind_of_take(take)} left out"
                yield str(take), Cause(kind, str(take))

    def _changed_retractions(self) -> Iterator[tuple[str, Cause]]:
        old, new = self._old.retracted, self._new.retracted
        for target in new.keys() - old.keys():
            yield target, Cause("retraction of", target, new[target])
        for target in old.keys() - new.keys():
            yield target, Cause("no retraction of", target, old[target])

    def _changed_config(self) -> Iterator[tuple[str, Cause]]:
        for key, change in _differences("", self._old.config_inputs, self._new.config_inputs):
            kind = "datasheet" if key.startswith("platforms.yaml") else "config"
            yield key, Cause(kind, key, change)


def _differences(path: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    """Yield each path at which two documents differ, as file:key.key, and the change."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield path, f"{old} became {new}"
        return
    separator = "." if ":" in path else ":" if path else ""
    for key in sorted({*old, *new}, key=str):
        key_path = f"{path}{separator}{key}"
        if key not in old or key not in new:
            yield key_path, "was added" if key in new else "was taken out"
        else:
            yield from _differences(key_path, old[key], new[key])


def _kind_of_take(take: TakeName) -> str:
    if take.scope == PUBLIC and take.stream in (*CALIBRATED, OWN_STREAM):
        return "constants"
    return {SOURCES: "rules", IMPORTED: "import"}.get(take.scope, "take")
