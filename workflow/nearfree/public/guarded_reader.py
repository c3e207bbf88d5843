"""Tables are read in a process of their own, which hostile bytes may end without harm."""

import os
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Self

from nearfree.errors import SourceError
from nearfree.public.collective_tables import is_collective, read_collectives
from nearfree.public.latent_tables import is_latent, read_latents
from nearfree.public.perf_tables import Rows, odd, read_rows

MEMORY_LIMIT = 8 * 2**30
"""Bytes of address space that the process which reads a table may have."""


class GuardedReader:
    """A process that reads tables, one after the other; use it as a context.

    Parquet that is damaged in the right place makes its reader ask for more memory than there is,
    which ends the process at once. A crash of the reader must not kill this process.
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
            What those say, or the reader broke down.
        """
        try:
            rows = self._pool.submit(_read_guarded, member, raw).result()
        except BrokenProcessPool as error:
            raise odd(member, "is no Parquet table (its reader broke down)") from error
        if isinstance(rows, Rows):
            return rows
        what, remedy = rows
        raise SourceError(what, remedy=remedy)


def _limit() -> None:
    """Bound the process's memory, and keep its last words off the terminal."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)


def _read_guarded(member: str, raw: bytes) -> Rows | tuple[str, str]:
    """Return rows, or what is wrong and its remedy: errors do not travel between processes."""
    try:
        if is_collective(member):
            return read_collectives(member, raw)
        return (read_latents if is_latent(member) else read_rows)(member, raw)
    except (MemoryError, SourceError) as error:
        if isinstance(error, MemoryError):
            error = odd(member, f"needs more than {MEMORY_LIMIT >> 30} GiB of memory")
        return error.what, error.remedy
