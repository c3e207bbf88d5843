"""Rows that differ between the tables of two ledgers, each with its causes."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Literal, get_args

import polars as pl
from msgspec import Struct, structs

from nearfree.core.label import AXES
from nearfree.core.setting import STORED
from nearfree.derive.jobs import OBSERVED, TABLES
from nearfree.prove.audit.causes import Cause, Causes
from nearfree.prove.audit.ledger_snapshot import LedgerSnapshot
from nearfree.prove.audit.table_index import TableIndex

_ENGINE = ("release", "file_type", "repack")
_SETTING = ("module", "model", "backend", *_ENGINE, "dtype", *STORED, *AXES)
_IDENTITY = ("row_id", "from_ids")
_AFTER_SUFFIX = ":after"
Kind = Literal["changed", "gone", "added", "superseded", "newest again"]
_KINDS: tuple[Kind, ...] = get_args(Kind)
Row = dict[str, Any]


class Cell(Struct, frozen=True):
    """A column of a row, before and after."""

    column: str
    old: Any
    new: Any


class Change(Struct, frozen=True, kw_only=True):
    """A row that only one of two ledgers has, or that differs between them.

    A row is superseded if a newer take replaced it and nothing else changed. `about` holds the
    row's key and setting.
    """

    kind: Kind
    scope: str
    table: str
    row_id: str
    about: Row
    cells: tuple[Cell, ...]
    causes: tuple[Cause, ...] = ()


def changes(old: LedgerSnapshot, new: LedgerSnapshot) -> list[Change]:
    """Return every row that differs between two ledgers, with its causes."""
    changed = [
        change
        for scope in sorted({*old.tables.scopes, *new.tables.scopes})
        for table in TABLES
        for change in _table_changes(old.tables, new.tables, scope, table)
    ]
    causes = Causes(old, new, {(change.scope, change.row_id): change.about for change in changed})
    return [
        structs.replace(change, causes=tuple(sorted(causes.of((change.scope, change.row_id)))))
        for change in changed
    ]


def by_cause(changed: list[Change]) -> list[tuple[tuple[Cause, ...], list[Change]]]:
    """Return changes grouped by causes; in a group, derived tables and changed numbers first."""
    groups: dict[tuple[Cause, ...], list[Change]] = defaultdict(list)
    for change in sorted(changed, key=_rank):
        groups[change.causes].append(change)
    return sorted(groups.items())


def summary(rows: list[Change]) -> str:
    """Return the number of differing rows by table and kind of change, as text."""
    counts: dict[str, Counter[Kind]] = defaultdict(Counter)
    for change in rows:
        counts[change.table][change.kind] += 1
    return "; ".join(
        f"{table}: " + ", ".join(f"{kinds[kind]} {kind}" for kind in _KINDS if kind in kinds)
        for table, kinds in counts.items()
    )


def _rank(change: Change) -> tuple[bool, int]:
    return change.table in OBSERVED, _KINDS.index(change.kind)


def _table_changes(old: TableIndex, new: TableIndex, scope: str, table: str) -> Iterator[Change]:
    empty = pl.DataFrame(schema=TABLES[table].dtypes)
    before, after = (
        empty if (frame := index.table(scope, table)) is None else frame for index in (old, new)
    )
    for kind, frame, other in (("gone", before, after), ("added", after, before)):
        unmatched = frame.join(other, on="row_id", how="anti", maintain_order="left")
        for row in unmatched.iter_rows(named=True):
            yield _change(kind, scope, table, row)
    columns = [name for name in before.columns if name not in _IDENTITY]
    differs = pl.any_horizontal(
        pl.col(name).ne_missing(pl.col(f"{name}{_AFTER_SUFFIX}")) for name in columns
    )
    matched = before.join(after, on="row_id", suffix=_AFTER_SUFFIX, maintain_order="left")
    for row in matched.filter(differs).iter_rows(named=True):
        cells = tuple(
            Cell(name, row[name], row[f"{name}{_AFTER_SUFFIX}"])
            for name in columns
            if row[name] != row[f"{name}{_AFTER_SUFFIX}"]
        )
        kind = "changed"
        if [cell.column for cell in cells] == ["newest"]:
            kind = "superseded" if cells[0].old else "newest again"
        yield _change(kind, scope, table, row, cells)


def _change(kind: Any, scope: str, table: str, row: Row, cells: tuple[Cell, ...] = ()) -> Change:
    columns = (*(name for name in _SETTING if name in row), *TABLES[table].key)
    about = {name: row[name] for name in columns if row[name] is not None}
    return Change(
        kind=kind, scope=scope, table=table, row_id=row["row_id"], about=about, cells=cells
    )
