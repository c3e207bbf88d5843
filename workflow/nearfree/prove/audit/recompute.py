"""Rows made again from the log alone, with everything that they rest on."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
from msgspec import Struct

from nearfree.config.files import Config
from nearfree.derive.stages import Job, job_of, make, needed
from nearfree.derive.tables.store import read_table
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.names import Layout
from nearfree.log.reader import no_collection
from nearfree.prove.audit.compare import Difference, differences
from nearfree.prove.audit.rebuild import scratch_root
from nearfree.prove.audit.table_index import Book, Found


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
