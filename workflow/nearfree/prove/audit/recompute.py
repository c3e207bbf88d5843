"""Recompute derived tables from a log alone, as a whole or for some rows, and compare."""

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.config.files import Config
from nearfree.derive.jobs import Job, job_of, make, with_dependencies
from nearfree.derive.stages import STAGES
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import gc_paused
from nearfree.log.seal import read_seal
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.render import plain
from nearfree.prove.audit.table_index import TableIndex, TableRow
from nearfree.show.figures.stage import draw

MAX_LISTED = 20
"""Largest number of differences of one table that are listed."""


def jobs(pipeline: Pipeline) -> list[Job]:
    """Return the workflow's jobs that make tables, each after its prerequisites."""
    return [
        Job(stage.name, scope)
        for stage in STAGES.values()
        if stage.tables
        for scope in pipeline.scopes_of(stage)
    ]


@gc_paused()
def make_all(pipeline: Pipeline, *, figures: bool) -> None:
    """Make every table of a root, and optionally its figures, from its log and config."""
    for job in jobs(pipeline):
        make(pipeline.layout, pipeline.config, job)
    if figures:
        imported = bool(pipeline.imported)
        for scope in pipeline.scopes:
            draw(pipeline.layout, scope, pipeline.site.epsilon, imported=imported)


def scratch_root(log: Layout, into: Path, takes: Iterable[TakeName] | None = None) -> Layout:
    """Return a new results root that holds only links to a log's sealed takes.

    Parameters
    ----------
    into
        The new root: an empty folder, or one that does not exist.
    takes
        The takes to link (default: all).

    Raises
    ------
    DamageError
        A seal cannot be read.
    """
    scratch = Layout(into)
    for take in log.takes() if takes is None else takes:
        seal = read_seal(log, take)
        paths = [log.segment(take, part.attempt) for part in seal.segments]
        for path in (*paths, log.seal(take)):
            link = scratch.events / path.relative_to(log.events)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(path.resolve(), link)  # noqa: PTH211 (the short form reads backwards)
    return scratch


class Difference(Struct, frozen=True):
    """A cell that differs from the recomputed one; without a column, a whole row."""

    row_id: str
    column: str
    on_disk: Any
    recomputed: Any

    def __str__(self) -> str:
        if not self.column:
            return f"{self.row_id} {self.on_disk}"
        return (
            f"{self.row_id} says {self.column} = {plain(self.on_disk)}, and the log gives "
            f"{plain(self.recomputed)}"
        )


def differences(
    table: Table, on_disk: pl.DataFrame, recomputed: pl.DataFrame
) -> Iterator[Difference]:
    """Yield the differences between two frames of one table.

    The order is compared of the rows that both have; it is a difference of the whole table.
    """
    if on_disk.equals(recomputed, null_equal=True):
        return
    for row_id in on_disk.join(recomputed, on="row_id", how="anti")["row_id"]:
        yield Difference(row_id, "", "is a row that the log does not give", None)
    for row_id in recomputed.join(on_disk, on="row_id", how="anti")["row_id"]:
        yield Difference(row_id, "", "is missing, and the log gives it", None)
    duplicates = on_disk.filter(on_disk["row_id"].is_duplicated())["row_id"].unique(
        maintain_order=True
    )
    for row_id in duplicates:
        yield Difference(row_id, "", "is there twice", None)
    pairs = on_disk.unique("row_id", keep="first", maintain_order=True).join(
        recomputed, on="row_id", how="inner", suffix=" made", maintain_order="left"
    )
    for column in table.dtypes:
        if column == "row_id":
            continue
        recomputed_column = f"{column} made"
        for row in pairs.filter(pl.col(column).ne_missing(pl.col(recomputed_column))).iter_rows(
            named=True
        ):
            yield Difference(row["row_id"], column, row[column], row[recomputed_column])
    common = recomputed.join(pairs, on="row_id", how="semi", maintain_order="left")
    if pairs["row_id"].to_list() != common["row_id"].to_list():
        yield Difference(table.name, "", "has its rows in another order than the log gives", None)


@gc_paused()
def recompute(layout: Layout, config: Path, row_ids: Sequence[str]) -> dict[str, list[Difference]]:
    """Recompute the tables of rows from the log; return the differences by row id.

    Raises
    ------
    NearfreeError
        A row does not exist, or the log lacks one of its inputs.
    """
    located = TableIndex(layout).rows(row_ids)
    differing: dict[str, list[Difference]] = {row_id: [] for row_id in row_ids}
    by_table: dict[tuple[str, str], list[TableRow]] = defaultdict(list)
    for row_id in differing:
        by_table[located[row_id].scope, located[row_id].table.name].append(located[row_id])
    with tempfile.TemporaryDirectory() as folder:
        scratch = scratch_root(layout, Path(folder) / "results")
        loaded_config, made_jobs = Config(config), set[Job]()
        for (scope, name), rows in by_table.items():
            table = rows[0].table
            for job in with_dependencies(job_of(scope, name)):
                if job not in made_jobs:
                    _make(scratch, loaded_config, job, layout)
                    made_jobs.add(job)
            on_disk = pl.DataFrame([located_row.row for located_row in rows], schema=table.dtypes)
            # The rows that are asked for, in the order of asking.
            recomputed = (
                on_disk.select("row_id")
                .join(read_table(scratch, scope, table), on="row_id", maintain_order="left")
                .select(on_disk.columns)
            )
            for difference in differences(table, on_disk, recomputed):
                differing[difference.row_id].append(difference)
    return differing


def _make(scratch: Layout, config: Config, job: Job, layout: Layout) -> None:
    try:
        make(scratch, config, job)
    except NearfreeError as error:
        message = error.what.replace(str(scratch.root), str(layout.root))
        raise EvidenceError(
            f"{job.stage} of {job.scope} cannot be recomputed: {message}", remedy=error.remedy
        ) from error
