"""Read tables in a separate process, which malicious bytes may crash without harm."""

import os
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import NamedTuple, Self

import polars as pl

from nearfree.errors import SourceError
from nearfree.public.collective_tables import COLUMNS, read_collectives
from nearfree.public.latent_tables import TABLES, read_latents
from nearfree.public.perf_tables import Rows, constant_columns, read_rows, table_error, table_name

MEMORY_LIMIT = 8 * 2**30
"""Most bytes of address space of the process that reads tables."""


class GuardedReader:
    """A process that reads tables, one after the other; use it as a context manager.

    Some damage to a Parquet file makes its reader allocate more memory than exists, which kills the
    process at once. A crash of the reader must not kill this process.
    """

    def __init__(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read(self, member: str, raw: bytes) -> Rows:
        """Return a table's rows, as `read_rows`, `read_collectives` or `read_latents` does.

        Raises
        ------
        SourceError
            As of those functions, or the reader crashed.
        """
        try:
            rows = self._pool.submit(_read_guarded, member, raw).result()
        except BrokenProcessPool as error:
            raise table_error(member, "is no Parquet table (its reader broke down)") from error
        if isinstance(rows, _Packed):
            return rows.unpacked()
        problem, remedy = rows
        raise SourceError(problem, remedy=remedy)


class _Packed(NamedTuple):
    """A table's rows on their way between processes: constant columns as their one value."""

    varied: pl.DataFrame
    constants: list[pl.Expr]
    columns: list[str]
    skipped: dict[str, int]

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return rows in their packed form; the latency stays, so that no row is lost."""
        points = rows.points
        constants = constant_columns(points, (n for n in points.columns if n != "latency_ms"))
        varied = points.drop(constants)
        return cls(varied, [*constants.values()], points.columns, rows.skipped)

    def unpacked(self) -> Rows:
        """Return the rows again."""
        points = self.varied.with_columns(self.constants).select(self.columns)
        return Rows(points=points, skipped=self.skipped)


def _limit() -> None:
    """Limit the process's memory, and discard its standard error."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)


def _read_guarded(member: str, raw: bytes) -> _Packed | tuple[str, str]:
    """Return rows, or an error's text and remedy: the exceptions cannot be pickled."""
    table = table_name(member)
    read = read_collectives if table in COLUMNS else read_latents if table in TABLES else read_rows
    try:
        return _Packed.of(read(member, raw))
    except (MemoryError, SourceError) as error:
        if isinstance(error, MemoryError):
            error = table_error(member, f"needs more than {MEMORY_LIMIT >> 30} GiB of memory")
        return error.what, error.remedy
