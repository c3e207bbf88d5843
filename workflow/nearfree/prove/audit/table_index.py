"""The tables of a results root: rows by id or key, and ids that resolve to nothing."""

import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.derive.stages import TABLES
from nearfree.derive.tables.event_ids import EventIds
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.errors import EvidenceError
from nearfree.log.document import read_document
from nearfree.log.manifest import Manifest, manifest_path
from nearfree.log.names import Layout
from nearfree.log.seal import read_seal

ROW_ID = re.compile(r"([a-z_]+):[0-9a-f]{12}")
_CLOSE = 20
Row = dict[str, Any]


class Found(Struct, frozen=True):
    """A row, and the scope and table that hold it."""

    scope: str
    table: Table
    row: Row


class Book:
    """The tables of a results root, each read when it is first asked for, and believed."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @cached_property
    def scopes(self) -> list[str]:
        """The scopes that have tables."""
        folder = self.layout.root / "tables"
        return sorted(path.name for path in folder.glob("*") if path.is_dir())

    @cache  # noqa: B019 (a book lives as long as a command)
    def table(self, scope: str, name: str) -> pl.DataFrame | None:
        """Return a scope's table, None where it has none of that name."""
        path = self.layout.table(scope, name)
        return read_table(self.layout, scope, TABLES[name]) if path.exists() else None

    @cache  # noqa: B019 (a book lives as long as a command)
    def inputs(self, scope: str, name: str) -> dict[str, str]:
        """Return what a table was made from, by name and digest, as its manifest says it."""
        path = manifest_path(self.layout.table(scope, name))
        return read_document(path, Manifest).made_from

    def parts(self, name: str) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield a table of every scope that has it."""
        for scope in self.scopes:
            frame = self.table(scope, name)
            if frame is not None:
                yield scope, frame

    def rows(self, identifiers: Sequence[str]) -> dict[str, Found]:
        """Return rows by their ids; EvidenceError if no table has one of them."""
        found: dict[str, Found] = {}
        wanted: dict[str, list[str]] = {}
        for identifier in identifiers:
            match = ROW_ID.fullmatch(identifier)
            if match and match[1] in TABLES:
                wanted.setdefault(match[1], []).append(identifier)
        for name, ids in wanted.items():
            for scope, frame in self.parts(name):
                for row in frame.filter(pl.col("row_id").is_in(ids)).iter_rows(named=True):
                    found.setdefault(row["row_id"], Found(scope, TABLES[name], row))
        for identifier in identifiers:
            if identifier not in found:
                raise EvidenceError(
                    f"no table has the row {identifier}",
                    remedy="Run the workflow, or name a row as TABLE:column=value,column=value",
                )
        return found

    def by_key(self, text: str) -> Found:
        """Return the one row that `TABLE:column=value,...` names.

        Raises
        ------
        EvidenceError
            There is no such table or column, or none or several rows; those are named.
        """
        name, _, rest = text.partition(":")
        if name not in TABLES:
            raise EvidenceError(
                f"there is no table {name!r}", remedy=f"There are {', '.join(TABLES)}"
            )
        wanted = self._wanted(TABLES[name], rest)
        found = [
            Found(scope, TABLES[name], row)
            for scope, frame in self.parts(name)
            for row in frame.filter(wanted).iter_rows(named=True)
        ]
        if len({each.row["row_id"] for each in found}) == 1:
            return found[0]
        ids = [each.row["row_id"] for each in found][:_CLOSE]
        raise EvidenceError(
            f"{len(found)} rows of {name} fit {rest!r}{': ' if ids else ''}{', '.join(ids)}"
            f"{', ...' if len(found) > _CLOSE else ''}",
            remedy=f"Name one of them, or more columns of {', '.join(TABLES[name].key)}",
        )

    @staticmethod
    def _wanted(table: Table, text: str) -> pl.Expr:
        wanted = pl.lit(value=True)
        for part in filter(None, text.split(",")):
            column, _, value = (each.strip() for each in part.partition("="))
            if column not in table.dtypes or table.dtypes[column] == pl.List:
                raise EvidenceError(
                    f"{table.name} has no column {column!r} to look for",
                    remedy=f"Its key is {', '.join(table.key)}",
                )
            wanted &= _same(column, table.dtypes[column], value)
        return wanted


def _same(column: str, dtype: Any, value: str) -> pl.Expr:
    if value == "":
        return pl.col(column).is_null()
    if dtype in (pl.Int64(), pl.Float64()):
        try:
            return pl.col(column) == float(value)
        except ValueError:
            raise EvidenceError(
                f"{column} is a number, not {value!r}", remedy="Write it as column=number"
            ) from None
    if dtype == pl.Boolean():
        return pl.col(column) == (value.lower() in {"true", "yes", "1"})
    return pl.col(column) == value


def table_files(layout: Layout) -> list[Path]:
    """Return every table's file of a root, sorted."""
    return sorted((layout.root / "tables").glob("*/*.parquet"))


def known_events(layout: Layout) -> EventIds:
    """Return the ids of all events that sealed takes hold."""
    return EventIds(
        (take.segment(part.attempt), range(1, part.events + 1))
        for take in layout.takes()
        for part in read_seal(layout, take).segments
    )


def row_ids(book: Book) -> pl.Series:
    """Return the ids of all rows of all tables."""
    parts = [frame["row_id"] for name in TABLES for _, frame in book.parts(name)]
    return pl.concat(parts).unique() if parts else pl.Series([], dtype=pl.String)


def dangling(layout: Layout) -> list[str]:
    """Return what tables name that is not there, each with the table that names it."""
    book = Book(layout)
    rows, events = row_ids(book), known_events(layout)
    found = []
    for name in TABLES:
        for scope, frame in book.parts(name):
            ids = frame["from_ids"].explode().drop_nulls().unique()
            ids = ids.filter(~ids.is_in(rows.implode()) & ~ids.str.starts_with("config/"))
            is_event = ids.str.contains("#", literal=True)
            odd = [*ids.filter(~is_event), *events.absent(ids.filter(is_event))]
            if odd:
                others = f" and {len(odd) - 1} more" if odd[1:] else ""
                found.append(f"{layout.table(scope, name)}: names {min(odd)!r}{others}, not there")
    return found
