"""The cache: files by the hash of their bytes, and hashed documents that record their origin."""

import os
import re
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct

from nearfree.errors import LackingError, LogError, SourceError
from nearfree.log.document import read_document, render, replace
from nearfree.log.events import SourceFetched, SourceMember
from nearfree.log.line import sha256

Document = TypeVar("Document", bound=Struct)
_SIGNS = str.maketrans({":": "+", "/": "+", "@": None})
"""Characters of a package's name that a path cannot have, as in `npm:@scope/name`."""
REMEDY = "Delete it, or run once without --offline, which fetches it again"


class Fetched(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of the files of a release that match a pattern of paths."""

    form: Literal[1] = 1
    wanted: str
    source: SourceFetched
    hash: str = ""


def default_cache() -> Path:
    """Return the cache's folder: $NEARFREE_CACHE, else `nearfree` in the user's cache folder."""
    configured = os.environ.get("NEARFREE_CACHE")
    if configured:
        return Path(configured)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "nearfree"


class Cache:
    """A folder of fetched files and of results computed from them, created at the first write.

    Several threads and processes may use one folder: each file appears complete or not at all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, wanted: str, source: SourceFetched, files: dict[str, bytes]) -> "Source":
        """Store a release's verified files, and then the record of them; return both."""
        for raw in files.values():
            path = self.path(sha256(raw))
            if not path.is_file() or path.read_bytes() != raw:
                replace(path, raw)
        path = self._record_path(source.package, source.version, wanted)
        replace(path, render(Fetched(wanted=wanted, source=source)))
        return Source(source, files)

    def find(self, package: str, version: str, wanted: str) -> SourceFetched | None:
        """Return the record of the files fetched for a pattern; None if there is none.

        Raises
        ------
        SourceError
            The record is damaged.
        """
        path = self._record_path(package, version, wanted)
        if not path.exists():
            return None
        try:
            document = read_document(path, Fetched)
        except LogError as error:
            raise SourceError(
                f"{package} {version}: {path} in the cache is damaged", remedy=REMEDY
            ) from error
        if (document.source.package, document.source.version, document.wanted) != (
            package,
            version,
            wanted,
        ):
            raise SourceError(
                f"{package} {version}: {path} in the cache is the record of another release",
                remedy=REMEDY,
            )
        return document.source

    def read(self, digest: str) -> bytes:
        """Return the stored bytes with a SHA-256; raise SourceError if missing or damaged."""
        path = self.path(digest)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise SourceError(
                f"{path} in the cache cannot be read: {error.strerror}", remedy=REMEDY
            ) from error
        if sha256(raw) != digest:
            raise SourceError(f"{path} in the cache is damaged", remedy=REMEDY)
        return raw

    def load(self, name: str, kind: type[Document]) -> Document | None:
        """Return a stored result; None if there is none that this version can read."""
        path = self._result_path(name)
        try:
            return read_document(path, kind) if path.exists() else None
        except LogError:
            return None  # the caller can compute it again

    def store(self, name: str, document: Document) -> Path:
        """Store a result under a name; its struct has a last field `hash`, empty here."""
        return replace(self._result_path(name), render(document))

    def path(self, digest: str) -> Path:
        """Return the path of the bytes with a SHA-256, whether they are stored or not."""
        return self.folder / "blobs" / digest[:2] / _checked_name(digest)

    def _record_path(self, package: str, version: str, wanted: str) -> Path:
        name = f"{_checked_name(version)}-{sha256(wanted.encode())[:16]}.json"
        return self.folder / "releases" / _checked_name(package.translate(_SIGNS)) / name

    def _result_path(self, name: str) -> Path:
        return self.folder / "results" / f"{_checked_name(name)}.json"


def _checked_name(name: str) -> str:
    """Return a name that may be part of a path; raise SourceError if it may not."""
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", name) or set(name) == {"."}:
        raise SourceError(
            f"{name!r} cannot be a name in the cache",
            remedy="Use only letters, digits and the characters _ . + -",
        )
    return name


class Source(Struct, frozen=True):
    """The wanted files of a release, and the record of their origin."""

    record: SourceFetched
    files: dict[str, bytes]

    def paths(self) -> list[str]:
        """Return the paths of all files inside their artefact, sorted."""
        return sorted(self.files)

    def raw(self, path: str) -> bytes:
        """Return a file's bytes; raise SourceError if it was not fetched."""
        if path not in self.files:
            raise SourceError(
                f"{self._name} has no {path} among its fetched files",
                remedy="Read another version, or the path that this one has",
            )
        return self.files[path]

    def text(self, path: str) -> str:
        """Return a file's text; raise SourceError if it is not UTF-8."""
        try:
            return self.raw(path).decode()
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{self._name}: {path} is not UTF-8 at byte {error.start}",
                remedy="Read another version: rules are read from text only",
            ) from error

    @property
    def _name(self) -> str:
        return f"{self.record.package} {self.record.version}"


def cached_source(
    package: str, version: str, wanted: str, cache: Cache, *, offline: bool = False
) -> Source | None:
    """Return a release's cached files for a pattern of paths; None if they must be fetched.

    Raises
    ------
    SourceError
        With `offline`: the cache lacks the files, or they are damaged.
    """
    try:
        record = cache.find(package, version, wanted)
        if record is not None:
            files = {member.path: cache.read(member.sha256) for member in record.members}
            return Source(record, files)
    except SourceError:
        if offline:
            raise
    if offline:
        raise SourceError(
            f"{package} {version} is not in the cache",
            remedy="Run once without --offline, which fetches it",
        )
    return None


def missing_file_error(package: str, version: str, wanted: str) -> LackingError:
    """Return the error of a release that has no file whose path matches a pattern."""
    return LackingError(
        f"{package} {version} holds no file that matches {wanted}",
        remedy="Take a version that has it",
    )


def member_records(files: dict[str, bytes]) -> tuple[SourceMember, ...]:
    """Return the record of each file, sorted by path."""
    return tuple(
        SourceMember(path=path, sha256=sha256(raw), size=len(raw))
        for path, raw in sorted(files.items())
    )
