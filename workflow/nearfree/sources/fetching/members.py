"""Checks of an archive's members: name, kind and size; anything unusual is refused.

Nothing of an archive is returned unless every check passed, and nothing malformed is repaired.
"""

import csv
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from nearfree.errors import SourceError
from nearfree.sources.fetching.index import Artefact

MEMBER_LIMIT = 16 * 2**20
"""Limit of one wanted member, in bytes."""
TOTAL_LIMIT = 128 * 2**20
"""Limit of all wanted members together, in bytes."""
COUNT_LIMIT = 200_000
"""Limit of an archive's members."""
BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError,
    IndexError, OverflowError, NotImplementedError, RuntimeError, csv.Error,
)  # fmt: skip
"""Exceptions of the archive readers on malformed bytes; RuntimeError includes recursion."""


def refusal(artefact: Artefact, reason: str) -> SourceError:
    """Return the error of an artefact that fails a check."""
    return SourceError(
        f"{artefact} is refused: {reason}",
        remedy="Nothing of it was kept; take another version, or an index that you trust",
    )


def check_name(artefact: Artefact, name: str) -> None:
    """Refuse a member's name that leads out of the archive, even of an unwanted member."""
    if (
        not name
        or name.startswith("/")
        or ".." in name.split("/")
        or re.search(r"[\\\0]|^[A-Za-z]:", name)
    ):
        raise refusal(artefact, f"a member's name, {name[:200]!r}, leads out of it")


def check_file(artefact: Artefact, path: str, paths: set[str], *, plain: bool) -> None:
    """Refuse a wanted member that is no plain file, or whose path is a duplicate or unprintable."""
    if not plain:
        raise refusal(artefact, f"{path!r} is a link or a device, not a plain file")
    if not path.isprintable():
        raise refusal(artefact, f"a member's name, {path!r}, is no plain text")
    if path in paths:
        raise refusal(artefact, f"it holds {path} twice")
    paths.add(path)


def check_size(
    artefact: Artefact, path: str, size: int, total: int, *, limit: int | None = None
) -> int:
    """Return the total bytes of the wanted members so far; refuse too large a member or total.

    `limit` is that of one member, by default MEMBER_LIMIT; if it is given, the total limit grows by
    it.
    """
    total_limit = TOTAL_LIMIT + (limit or 0)
    limit = MEMBER_LIMIT if limit is None else limit
    if size > limit:
        raise refusal(artefact, f"{path} is over {limit} bytes")
    if total + size > total_limit:
        raise refusal(artefact, f"its wanted files are over {total_limit} bytes together")
    return total + size


@contextmanager
def readable(artefact: Artefact) -> Iterator[None]:
    """Turn the archive readers' exceptions into a refusal."""
    try:
        yield
    except BROKEN as error:
        raise refusal(artefact, f"it is no whole archive ({type(error).__name__})") from error


def check_count(artefact: Artefact, count: int) -> None:
    """Refuse an archive with more members than any release has."""
    if count > COUNT_LIMIT:
        raise refusal(artefact, f"it has over {COUNT_LIMIT} members")
