"""A restored ledger for comparison: its takes, its config, and the ids behind each row."""

from functools import cached_property
from pathlib import Path
from typing import Any

from nearfree.config.yaml_file import load
from nearfree.core.scopes import PUBLIC, SOURCES
from nearfree.derive.jobs import TABLES
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.log.document import read_document
from nearfree.log.events import ObservationRetracted
from nearfree.log.evidence import RETRACTED, read_take
from nearfree.log.ledger import Ledger
from nearfree.log.line import sha256
from nearfree.log.manifest import Manifest, manifest_path
from nearfree.log.names import TakeName, parse_take
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.table_index import TableIndex

_DERIVING = ("config.yaml", "deployments.yaml", "platforms.yaml", "sources.yaml")
"""Config files that tables depend on; the others say what is measured, and how."""
RowKey = tuple[str, str]
"""A row's scope and id."""


class LedgerSnapshot:
    """A restored ledger whose tables were recomputed."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger) -> None:
        self.layout = pipeline.layout
        self.config = pipeline.config
        self.ledger = ledger
        self.tables = TableIndex(pipeline.layout)
        self._manifests: dict[RowKey, dict[str, str]] = {}

    def unchanged_scopes(self, other: "LedgerSnapshot") -> set[str]:
        """Return the scopes whose tables must equal those of another ledger."""
        scopes = {take.scope for take in self.takes}
        same = {s for s in scopes if self.seals(s) == other.seals(s)}
        if self.config_inputs == other.config_inputs and same >= {PUBLIC, SOURCES} & scopes:
            return same
        return same & {SOURCES}

    def seals(self, scope: str) -> dict[TakeName, str]:
        """Return a scope's takes, each with its seal's digest."""
        return {take: digest for take, digest in self.takes.items() if take.scope == scope}

    @cached_property
    def takes(self) -> dict[TakeName, str]:
        """The takes, each with its seal's digest."""
        return {parse_take(name): digest for name, digest in self.ledger.seals.items()}

    @cached_property
    def retracted(self) -> dict[str, str]:
        """Retracted events and takes, each with its reason."""
        takes = [read_take(self.layout, take) for take in self.takes if take.stream == RETRACTED]
        events = [event.data for take in takes for event in take.of(ObservationRetracted)]
        return {event.target: event.reason for event in events}

    @cached_property
    def config_inputs(self) -> dict[str, Any]:
        """The parts of the config that tables depend on: documents by file name, model digests."""
        return {
            name: load(self.config.folder / name) if name in _DERIVING else sha256(text.encode())
            for name, text in self.ledger.config.items()
            if name in _DERIVING or name.startswith("models/")
        }

    @cached_property
    def from_ids(self) -> dict[RowKey, list[str]]:
        """The ids that each row is made from."""
        return {
            (scope, row_id): ids
            for name in TABLES
            for scope, frame in self.tables.parts(name)
            for row_id, ids in frame.select("row_id", "from_ids").iter_rows()
        }

    @cached_property
    def _scopes(self) -> dict[str, str]:
        return {row_id: scope for scope, row_id in self.from_ids}

    def table_folder(self, scope: str) -> Path:
        """Return the folder of a scope's tables."""
        return self.layout.table(scope, PLATFORMS.name).parent

    def row_key(self, scope: str, row_id: str) -> RowKey:
        """Return the key of a row named by a row of `scope`: in that scope, or else in another."""
        holder = scope if (scope, row_id) in self.from_ids else self._scopes.get(row_id, scope)
        return holder, row_id

    def inputs(self, scope: str, table: str) -> dict[str, str]:
        """Return the digests of a table's inputs, through the tables that it is made from."""
        if (scope, table) not in self._manifests:
            path = manifest_path(self.layout.table(scope, table))
            digests = dict(read_document(path, Manifest).made_from) if path.exists() else {}
            for name in [name for name in digests if name in TABLES]:
                del digests[name]
                digests |= self.inputs(scope, name)
            self._manifests[scope, table] = digests
        return self._manifests[scope, table]
