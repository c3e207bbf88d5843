"""The tables of a results root: find rows by id, key or evidence text, and unresolved ids."""

import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.derive.jobs import TABLES
from nearfree.derive.tables.schema import EventIds, Table
from nearfree.derive.tables.store import read_table
from nearfree.errors import EvidenceError
from nearfree.log.document import Manifest, manifest_path, read_document
from nearfree.log.names import Layout
from nearfree.log.seal import read_seal

ROW_ID = re.compile(r"([a-z_]+):[0-9a-f]{12}")
_MAX_LISTED = 20
_TABLES_ARE = f"Tables are {', '.join(TABLES)}"
_SOURCE_LINES = re.compile(r"(\S+):(\d+)-(\d+) \(([0-9a-f]{12})\)")
_PRINTED = re.compile(r"tab:[a-z0-9-]+")
_RULE_COLUMNS = ("evidence", "rule")
_MAX_RULES = 40
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
Row = dict[str, Any]


class TableRow(Struct, frozen=True):
    """A row with its scope and table."""

    scope: str
    table: Table
    row: Row


class TableIndex:
    """The tables of a results root, each read once, at its first use."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @cached_property
    def scopes(self) -> list[str]:
        """The scopes that have tables."""
        folder = self.layout.root / "tables"
        return sorted(path.name for path in folder.glob("*") if path.is_dir())

    @cache  # noqa: B019 (an index lives as long as a command)
    def table(self, scope: str, name: str) -> pl.DataFrame | None:
        """Return a scope's table; None if the scope lacks it."""
        path = self.layout.table(scope, name)
        return read_table(self.layout, scope, TABLES[name]) if path.exists() else None

    @cache  # noqa: B019 (an index lives as long as a command)
    def inputs(self, scope: str, name: str) -> dict[str, str]:
        """Return the digests of a table's inputs from its manifest, by name."""
        path = manifest_path(self.layout.table(scope, name))
        return read_document(path, Manifest).made_from

    def parts(self, name: str) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield each scope that has a table, with the table."""
        for scope in self.scopes:
            frame = self.table(scope, name)
            if frame is not None:
                yield scope, frame

    def matching(self, name: str, *conditions: pl.Expr, **values: str) -> list[Row]:
        """Return the rows of a table, in all scopes, that meet conditions and column values."""
        frames = [frame for _, frame in self.parts(name)]
        return [row for frame in frames for row in frame.filter(*conditions, **values).to_dicts()]

    def rows(self, identifiers: Sequence[str]) -> dict[str, TableRow]:
        """Return rows by their ids; EvidenceError if no table has one of them."""
        located: dict[str, TableRow] = {}
        ids_by_table: dict[str, list[str]] = {}
        for identifier in identifiers:
            match = ROW_ID.fullmatch(identifier)
            if match:
                ids_by_table.setdefault(match[1], []).append(identifier)
        for name, ids in ids_by_table.items():
            for scope, frame in self.parts(name):
                for row in frame.filter(pl.col("row_id").is_in(ids)).iter_rows(named=True):
                    located.setdefault(row["row_id"], TableRow(scope, TABLES[name], row))
        for identifier in identifiers:
            if identifier not in located:
                remedy = "Run the workflow, or name a row as TABLE:column=value,column=value"
                if identifier.partition(":")[0] not in TABLES:
                    remedy = _TABLES_ARE
                raise EvidenceError(f"no table has the row {identifier}", remedy=remedy)
        return located

    def by_key(self, text: str) -> TableRow:
        """Return the one row that `TABLE:column=value,...` names.

        Raises
        ------
        EvidenceError
            The table or column does not exist, a column has two values, or not exactly one row
            fits; the message lists the rows.
        """
        name, _, rest = text.partition(":")
        if name not in TABLES:
            raise EvidenceError(f"there is no table {name!r}", remedy=_TABLES_ARE)
        condition = self._condition(TABLES[name], rest)
        matching = [
            TableRow(scope, TABLES[name], row)
            for scope, frame in self.parts(name)
            for row in frame.filter(condition).iter_rows(named=True)
        ]
        if len({match.row["row_id"] for match in matching}) == 1:
            return matching[0]
        ids = [match.row["row_id"] for match in matching][:_MAX_LISTED]
        raise EvidenceError(
            f"{len(matching)} rows of {name} fit {rest!r}{': ' if ids else ''}{', '.join(ids)}"
            f"{', ...' if len(matching) > _MAX_LISTED else ''}",
            remedy=f"Name one of them, or more columns of {', '.join(TABLES[name].key)}",
        )

    @staticmethod
    def _condition(table: Table, text: str) -> pl.Expr:
        condition = pl.lit(value=True)
        value_by_column: dict[str, str] = {}
        for part in _PART.findall(text):
            column, _, value = (token.strip() for token in part.partition("="))
            value = _QUOTED.sub(r"\1", value)
            if value_by_column.setdefault(column, value) != value:
                raise EvidenceError(
                    f"{column} is asked for twice, as {value_by_column[column]!r:.80} and as "
                    f"{value!r:.80}",
                    remedy="Give each column once",
                )
            if column not in table.dtypes or table.dtypes[column] == pl.List:
                raise EvidenceError(
                    f"{table.name} has no column {column!r} to search",
                    remedy=f"Its key is {', '.join(table.key)}; a value that has commas stands "
                    'between double quotes: column="a,b"',
                )
            condition &= _equals(column, table.dtypes[column], value)
        return condition


_PART = re.compile(r'(?:[^,"]|"[^"]*"|")+')
"""A condition, up to a comma that is not between double quotes."""
_QUOTED = re.compile(r'^"(.*)"$', re.DOTALL)


def _equals(column: str, dtype: Any, value: str) -> pl.Expr:
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
        if value.lower() not in _FLAGS:
            raise EvidenceError(
                f"{column} is true or false, not {value!r:.80}",
                remedy="Write it as column=true or column=false",
            )
        return pl.col(column) == _FLAGS[value.lower()]
    return pl.col(column) == value


def table_files(layout: Layout) -> list[Path]:
    """Return the files of all tables of a root, sorted."""
    return sorted((layout.root / "tables").glob("*/*.parquet"))


def unresolved_ids(layout: Layout) -> list[str]:
    """Return a message for each table that refers to ids which do not exist."""
    index = TableIndex(layout)
    parts = [(name, *part) for name in TABLES for part in index.parts(name)]
    rows = pl.concat([pl.Series([], dtype=pl.String), *(frame["row_id"] for *_, frame in parts)])
    row_ids = rows.unique().implode()
    events = EventIds(
        (take.segment(part.attempt), range(1, part.events + 1))
        for take in layout.takes()
        for part in read_seal(layout, take).segments
    )
    messages = []
    for name, scope, frame in parts:
        ids = frame["from_ids"].explode().drop_nulls().unique()
        ids = ids.filter(~ids.is_in(row_ids) & ~ids.str.starts_with("config/"))
        is_event = ids.str.contains("#", literal=True)
        unresolved = [*ids.filter(~is_event), *events.absent(ids.filter(is_event))]
        if unresolved:
            more = f" and {len(unresolved) - 1} more" if unresolved[1:] else ""
            path = layout.table(scope, name)
            messages.append(f"{path}: names {min(unresolved)!r}{more}, not there")
    return messages


def rules_behind(row: dict[str, object], index: TableIndex) -> list[str]:
    """Return the ids of the rules that a row's text cites: branches, tuned intervals, printed rows.

    If no row holds the cited lines, as for a function that rules call, every rule of the file is
    returned.

    Parameters
    ----------
    row
        A row, with a column `evidence` or `rule` such as
        `path/to/file.py:796-798 (286c6a53c937), fallback`; other rows cite no rules.
    """
    text = " ".join(str(row.get(name) or "") for name in _RULE_COLUMNS)
    rules: list[Row] = []
    for place, first, last, digest in _SOURCE_LINES.findall(text):
        same_file = pl.col("sha256").str.starts_with(digest)
        lines = pl.col("lines").str.split("-").list.eval(pl.element().cast(pl.Int64, strict=False))
        in_lines = (lines.list.first() >= int(first)) & (lines.list.last() <= int(last))
        branches = index.matching("granularity", same_file, in_lines, place=place)
        # The rows of a tuned file have no line numbers, so all its intervals are returned.
        matches = branches or index.matching("tuned", same_file, file=place)
        whole_file = () if matches else index.matching("granularity", same_file, place=place)
        # All rows of a rule come from one event, which quotes all its lines: one of them is enough.
        one_per_rule = {(r["package"], r["versions"], r["path"]): r for r in whole_file}
        rules += matches or one_per_rule.values()
    for place in _PRINTED.findall(text):
        printed = index.matching("granularity", place=place)
        rules += [
            rule for rule in printed if rule["condition"] in text or f", {rule['path']}" in text
        ] or printed
    return list(dict.fromkeys(rule["row_id"] for rule in rules))[:_MAX_RULES]
