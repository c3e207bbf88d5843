"""Rows recomputed from the log alone, and tables compared cell by cell."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.config.files import Config
from nearfree.derive.stages import Job, job_of, make, needed
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.names import Layout
from nearfree.log.reader import no_collection
from nearfree.prove.audit.rebuild import scratch_root
from nearfree.prove.audit.render import plain
from nearfree.prove.audit.table_index import Book, Found

MOST = 20
"""Differences of one table that are told one by one."""


class Difference(Struct, frozen=True):
    """One cell, or with no column one row, that is not what the log gives."""

    row_id: str
    column: str
    said: Any
    made: Any

    def __str__(self) -> str:
        if not self.column:
            return f"{self.row_id} {self.said}"
        return (
            f"{self.row_id} says {self.column} = {plain(self.said)}, and the log gives "
            f"{plain(self.made)}"
        )


def differences(table: Table, said: pl.DataFrame, made: pl.DataFrame) -> Iterator[Difference]:
    """Yield what differs between two frames of one table; nothing where they are the same.

    Parameters
    ----------
    said, made
        What lies on disk, and what was made from the log.
    """
    if said.equals(made, null_equal=True):
        return
    for row_id in said.join(made, on="row_id", how="anti")["row_id"]:
        yield Difference(row_id, "", "is a row that the log does not give", None)
    for row_id in made.join(said, on="row_id", how="anti")["row_id"]:
        yield Difference(row_id, "", "is missing, and the log gives it", None)
    twice = said.filter(said["row_id"].is_duplicated())["row_id"].unique(maintain_order=True)
    for row_id in twice:
        yield Difference(row_id, "", "is there twice", None)
    pairs = said.unique("row_id", keep="first", maintain_order=True).join(
        made, on="row_id", how="inner", suffix=" made", maintain_order="left"
    )
    for column in table.dtypes:
        if column == "row_id":
            continue
        other = f"{column} made"
        for row in pairs.filter(pl.col(column).ne_missing(pl.col(other))).iter_rows(named=True):
            yield Difference(row["row_id"], column, row[column], row[other])
    if said["row_id"].to_list() != made["row_id"].to_list() and not pairs.is_empty():
        yield Difference(table.name, "", "has its rows in another order than the log gives", None)


class Remade(Struct, frozen=True):
    """A row's id, and where the row on disk differs from the one that the log gives."""

    row_id: str
    differences: tuple[Difference, ...]


@no_collection()
def remade(layout: Layout, config: Path, row_ids: Sequence[str]) -> list[Remade]:
    """Make the tables of some rows again from the log, and compare those rows.

    Parameters
    ----------
    config
        The config folder.

    Raises
    ------
    NearfreeError
        A row is not there, or the log does not hold what it was made from.
    """
    found = Book(layout).rows(row_ids)
    differing: dict[str, list[Difference]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        scratch = scratch_root(layout, Path(folder) / "results")
        settings, done = Config(config), set[Job]()
        for rows in _by_table([found[each] for each in row_ids]):
            scope, table = rows[0].scope, rows[0].table
            for job in needed(job_of(scope, table.name)):
                if job not in done:
                    _make(scratch, settings, job, layout)
                    done.add(job)
            said = pl.DataFrame([each.row for each in rows], schema=table.dtypes)
            made = read_table(scratch, scope, table)
            for each in differences(table, said, made.join(said, on="row_id", how="semi")):
                differing[each.row_id].append(each)
    return [Remade(each, tuple(differing[each])) for each in row_ids]


def _make(scratch: Layout, config: Config, job: Job, layout: Layout) -> None:
    try:
        make(scratch, config, job)
    except NearfreeError as error:
        what = error.what.replace(str(scratch.root), str(layout.root))
        raise EvidenceError(
            f"{job.stage} of {job.scope} cannot be made again: {what}", remedy=error.remedy
        ) from error


def _by_table(rows: Sequence[Found]) -> Iterator[list[Found]]:
    """Yield rows of one table at a time, in the order in which a table has them."""
    groups: dict[tuple[str, str], list[Found]] = defaultdict(list)
    for each in rows:
        groups[each.scope, each.table.name].append(each)
    yield from groups.values()
