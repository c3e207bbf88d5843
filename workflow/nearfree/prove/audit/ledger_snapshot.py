"""A restored ledger for comparison: its takes, its config, and the inputs of each row."""

import shutil
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from nearfree.config.yaml_file import load
from nearfree.core.scopes import PUBLIC, SOURCES
from nearfree.derive.jobs import TABLES, make
from nearfree.log.evidence import retractions
from nearfree.log.ledger import Ledger
from nearfree.log.line import sha256
from nearfree.log.names import Layout, TakeName, parse_take
from nearfree.log.reader import gc_paused
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.ledgers import NamedLedger
from nearfree.prove.audit.recompute import jobs
from nearfree.prove.audit.restore import restore
from nearfree.prove.audit.table_index import TableIndex

_TABLE_CONFIGS = ("config.yaml", "deployments.yaml", "platforms.yaml", "sources.yaml")
"""Config files that tables depend on; the others define what is measured, and how."""
RowKey = tuple[str, str]
"""A row's scope and id."""


class LedgerSnapshot:
    """A restored ledger whose tables were recomputed."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger) -> None:
        self.layout = pipeline.layout
        self.config = pipeline.config
        self.ledger = ledger
        self.tables = TableIndex(pipeline.layout)

    def unchanged_scopes(self, other: "LedgerSnapshot") -> set[str]:
        """Return the scopes whose tables must equal those of another ledger."""
        scopes = {take.scope for take in self.takes}
        equal_scopes = {s for s in scopes if self.seals(s) == other.seals(s)}
        if self.config_inputs == other.config_inputs and equal_scopes >= {PUBLIC, SOURCES} & scopes:
            return equal_scopes
        return equal_scopes & {SOURCES}

    def seals(self, scope: str) -> dict[TakeName, str]:
        """Return a scope's takes, each with its seal's digest."""
        return {take: digest for take, digest in self.takes.items() if take.scope == scope}

    @cached_property
    def takes(self) -> dict[TakeName, str]:
        """The ledger's takes, each with its seal's digest."""
        return {parse_take(name): digest for name, digest in self.ledger.seals.items()}

    @cached_property
    def retracted(self) -> dict[str, str]:
        """Retracted events and takes, each with its reason."""
        return retractions(self.layout, self.takes)

    @cached_property
    def config_inputs(self) -> dict[str, Any]:
        """The parts of the config that tables depend on: documents by file name, model digests."""
        return {
            name: load(self.config.folder / name)
            if name in _TABLE_CONFIGS
            else sha256(text.encode())
            for name, text in self.ledger.config.items()
            if name in _TABLE_CONFIGS or name.startswith("models/")
        }

    @cached_property
    def from_ids(self) -> dict[RowKey, list[str]]:
        """The ids of each row's inputs."""
        return {
            (scope, row_id): ids
            for name in TABLES
            for scope, frame in self.tables.parts(name)
            for row_id, ids in frame.select("row_id", "from_ids").iter_rows()
        }

    @cached_property
    def _scopes(self) -> dict[str, str]:
        return {row_id: scope for scope, row_id in self.from_ids}

    def row_key(self, scope: str, row_id: str) -> RowKey:
        """Return the key of a row that a row of `scope` refers to: in `scope`, else in another."""
        holder = scope if (scope, row_id) in self.from_ids else self._scopes.get(row_id, scope)
        return holder, row_id

    @cache  # noqa: B019 (a snapshot lives as long as a command)
    def inputs(self, scope: str, table: str) -> dict[str, str]:
        """Return the digests of a table's inputs, with input tables replaced by their inputs."""
        if not self.layout.table(scope, table).exists():
            return {}
        digests: dict[str, str] = {}
        for name, digest in self.tables.inputs(scope, table).items():
            digests |= self.inputs(scope, name) if name in TABLES else {name: digest}
        return digests


@gc_paused()
def make_snapshot(
    log: Layout, named: NamedLedger, folder: Path, like: LedgerSnapshot | None = None
) -> LedgerSnapshot:
    """Restore a ledger and recompute its tables.

    Parameters
    ----------
    folder
        An empty folder.
    like
        Another snapshot; tables with equal inputs are copied from it.

    Raises
    ------
    NearfreeError
        The ledger cannot be restored; see `restore`.
    """
    pipeline = restore(log, named, folder)
    snapshot = LedgerSnapshot(pipeline, named.ledger)
    unchanged = snapshot.unchanged_scopes(like) if like else set()
    for scope in unchanged:
        tables = Path("tables", scope)
        if like and (like.layout.root / tables).exists():
            shutil.copytree(like.layout.root / tables, snapshot.layout.root / tables)
    for job in jobs(pipeline):
        if job.scope not in unchanged:
            make(pipeline.layout, pipeline.config, job)
    return snapshot
