"""One of two ledgers that are compared: its takes, its config, and what its rows are made from."""

from functools import cached_property
from pathlib import Path
from typing import Any

from nearfree.config.yaml_file import load
from nearfree.derive.stages import TABLES
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.log.document import read_document
from nearfree.log.events import ObservationRetracted
from nearfree.log.evidence import RETRACTED, read_take
from nearfree.log.ledger import Ledger
from nearfree.log.line import sha256
from nearfree.log.manifest import Manifest, manifest_path
from nearfree.log.names import TakeName, parse_take
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.table_index import Book
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.sources.record import SCOPE as SOURCES

_DERIVING = ("config.yaml", "deployments.yaml", "platforms.yaml", "sources.yaml")
"""Config files that tables rest on; the others say what is measured, and how."""
Place = tuple[str, str]
"""A row: its scope and its id."""


class Side:
    """A ledger that was put back and whose tables were made."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger) -> None:
        self.layout = pipeline.layout
        self.config = pipeline.config
        self.ledger = ledger
        self.book = Book(pipeline.layout)
        self._manifests: dict[Place, dict[str, str]] = {}

    def alike(self, other: "Side") -> set[str]:
        """Return the scopes whose tables are sure to be those of another ledger."""
        scopes = {take.scope for take in self.takes}
        same = {s for s in scopes if self.seals(s) == other.seals(s)}
        if self.asked == other.asked and same >= {PUBLIC, SOURCES} & scopes:
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
        """What was retracted, and why."""
        takes = [read_take(self.layout, take) for take in self.takes if take.stream == RETRACTED]
        events = [event.data for take in takes for event in take.of(ObservationRetracted)]
        return {event.target: event.reason for event in events}

    @cached_property
    def asked(self) -> dict[str, Any]:
        """What tables rest on of the config: documents by their files' names, models' digests."""
        return {
            name: load(self.config.folder / name) if name in _DERIVING else sha256(text.encode())
            for name, text in self.ledger.config.items()
            if name in _DERIVING or name.startswith("models/")
        }

    @cached_property
    def made_from(self) -> dict[Place, list[str]]:
        """What each row is made from."""
        return {
            (scope, row_id): ids
            for name in TABLES
            for scope, frame in self.book.parts(name)
            for row_id, ids in frame.select("row_id", "from_ids").iter_rows()
        }

    @cached_property
    def _scopes(self) -> dict[str, str]:
        return {row_id: scope for scope, row_id in self.made_from}

    def tables(self, scope: str) -> Path:
        """Return the folder of a scope's tables."""
        return self.layout.table(scope, PLATFORMS.name).parent

    def place(self, scope: str, row_id: str) -> Place:
        """Return where a row is that one of a scope names: there, or in another scope."""
        there = scope if (scope, row_id) in self.made_from else self._scopes.get(row_id, scope)
        return there, row_id

    def inputs(self, scope: str, table: str) -> dict[str, str]:
        """Return what a table and those that it is made from rest on, by name and digest."""
        if (scope, table) not in self._manifests:
            path = manifest_path(self.layout.table(scope, table))
            found = dict(read_document(path, Manifest).made_from) if path.exists() else {}
            for name in [each for each in found if each in TABLES]:
                del found[name]
                found |= self.inputs(scope, name)
            self._manifests[scope, table] = found
        return self._manifests[scope, table]
