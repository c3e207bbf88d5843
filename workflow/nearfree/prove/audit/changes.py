"""What differs between the tables of two ledgers, row by row, each with its causes."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import polars as pl
from msgspec import Struct, structs

from nearfree.derive.stages import OBSERVED, TABLES, make
from nearfree.log.names import Layout
from nearfree.log.reader import no_collection
from nearfree.prove.audit.causes import Cause, Causes
from nearfree.prove.audit.ledger_snapshot import Side
from nearfree.prove.audit.ledgers import Named
from nearfree.prove.audit.rebuild import jobs
from nearfree.prove.audit.restore import put_back
from nearfree.prove.audit.table_index import Book

_SETTING = ("module", "model", "backend", "dtype", "batch", "context", "top_k", "routing")
_IDENTITY = ("row_id", "from_ids")
_AFTER = ":after"
Kind = Literal["added", "gone", "changed", "superseded", "newest again"]
_KINDS: tuple[Kind, ...] = ("changed", "gone", "added", "superseded", "newest again")
Row = dict[str, Any]


class Cell(Struct, frozen=True):
    """A column of a row, before and after."""

    column: str
    old: Any
    new: Any


class Change(Struct, frozen=True, kw_only=True):
    """A row that is not in both ledgers' tables, or not with the same numbers.

    A row is superseded if a newer take took its place and it is otherwise as it was. `about` holds
    its key, and what its setting is.
    """

    kind: Kind
    scope: str
    table: str
    row_id: str
    about: Row
    cells: tuple[Cell, ...]
    causes: tuple[Cause, ...] = ()


@no_collection()
def restored(log: Layout, named: Named, folder: Path, like: Side | None = None) -> Side:
    """Return a ledger that is put back and whose tables are made.

    Parameters
    ----------
    folder
        Where; it holds nothing yet.
    like
        Another one, of which tables are taken over that rest on the same.

    Raises
    ------
    NearfreeError
        It cannot be put back; see `put_back`.
    """
    pipeline = put_back(log, named, folder)
    side = Side(pipeline, named.ledger)
    alike = side.alike(like) if like else set()
    for scope in alike:
        if like and like.tables(scope).exists():
            shutil.copytree(like.tables(scope), side.tables(scope))
    for job in jobs(pipeline):
        if job.scope not in alike:
            make(pipeline.layout, pipeline.config, job)
    return side


def changes(old: Side, new: Side) -> list[Change]:
    """Return every row that differs between two ledgers, with its causes."""
    found = [
        change
        for scope in sorted({*old.book.scopes, *new.book.scopes})
        for table in TABLES
        for change in _of_table(old.book, new.book, scope, table)
    ]
    causes = Causes(old, new, {(each.scope, each.row_id): each.about for each in found})
    return [
        structs.replace(each, causes=tuple(sorted(causes.of((each.scope, each.row_id)))))
        for each in found
    ]


def by_cause(found: list[Change]) -> list[tuple[tuple[Cause, ...], list[Change]]]:
    """Return changes by their causes; of each, the changed numbers and what is derived first."""
    groups: dict[tuple[Cause, ...], list[Change]] = defaultdict(list)
    for change in sorted(found, key=_rank):
        groups[change.causes].append(change)
    return sorted(groups.items())


def summary(rows: list[Change]) -> str:
    """Return how many rows of which tables differ, and how."""
    tables = dict.fromkeys(change.table for change in rows)
    return "; ".join(
        f"{table}: " + ", ".join(f"{n} {kind}" for kind in _KINDS if (n := counts[table, kind]))
        for counts in [Counter((change.table, change.kind) for change in rows)]
        for table in tables
    )


def _rank(change: Change) -> tuple[bool, int]:
    observed = change.table in {table.name for table in OBSERVED}
    return observed, _KINDS.index(change.kind)


def _of_table(old: Book, new: Book, scope: str, table: str) -> Iterator[Change]:
    none = pl.DataFrame(schema=TABLES[table].dtypes)
    before, after = (
        none if (frame := book.table(scope, table)) is None else frame for book in (old, new)
    )
    for kind, frame, other in (("gone", before, after), ("added", after, before)):
        for row in frame.join(other, on="row_id", how="anti", maintain_order="left").iter_rows(
            named=True
        ):
            yield _change(kind, scope, table, row, ())
    columns = [name for name in before.columns if name not in _IDENTITY]
    differs = pl.any_horizontal(pl.col(n).ne_missing(pl.col(f"{n}{_AFTER}")) for n in columns)
    both = before.join(after, on="row_id", suffix=_AFTER, maintain_order="left")
    for row in both.filter(differs).iter_rows(named=True):
        cells = tuple(
            Cell(name, row[name], row[f"{name}{_AFTER}"])
            for name in columns
            if row[name] != row[f"{name}{_AFTER}"]
        )
        kind = "changed"
        if [cell.column for cell in cells] == ["newest"]:
            kind = "superseded" if cells[0].old else "newest again"
        yield _change(kind, scope, table, row, cells)


def _change(kind: Any, scope: str, table: str, row: Row, cells: tuple[Cell, ...]) -> Change:
    names = (*(name for name in _SETTING if name in row), *TABLES[table].key)
    about = {name: row[name] for name in names if row[name] is not None}
    return Change(
        kind=kind,
        scope=scope,
        table=table,
        row_id=row["row_id"],
        about=about,
        cells=cells,
    )
