"""The cache: files by the hash of their bytes, and hashed documents that say whose they are."""

import os
import re
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct

from nearfree.errors import LogError, SourceError
from nearfree.log.document import read_document, render, replace
from nearfree.log.events import SourceFetched
from nearfree.log.line import sha256

Document = TypeVar("Document", bound=Struct)
_SIGNS = str.maketrans({":": "+", "/": "+", "@": None})
"""How the name of a package of another index, `npm:@scope/name`, is part of a path."""
REMEDY = "Delete it, or run once without --offline, which fetches it anew"


class Fetched(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was fetched of a release for a pattern of paths."""

    form: Literal[1] = 1
    wanted: str
    source: SourceFetched
    hash: str = ""


def default_cache() -> Path:
    """Return where the cache is: $NEARFREE_CACHE, else `nearfree` in the user's cache folder."""
    named = os.environ.get("NEARFREE_CACHE")
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "nearfree"


class Cache:
    """A folder of fetched files and of results made from them; made when first written to.

    Several threads and processes may use one folder: each file appears as a whole or not at all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, wanted: str, source: SourceFetched, files: dict[str, bytes]) -> None:
        """Keep a release's files, which passed every check, and the record of them, that last."""
        for raw in files.values():
            path = self._blob(sha256(raw))
            if not path.is_file() or path.read_bytes() != raw:
                replace(path, raw)
        path = self._fetched(source.package, source.version, wanted)
        replace(path, render(Fetched(wanted=wanted, source=source)))

    def find(self, package: str, version: str, wanted: str) -> SourceFetched | None:
        """Return the record of what was fetched for a pattern, None if nothing was.

        Raises
        ------
        SourceError
            The record is damaged.
        """
        path = self._fetched(package, version, wanted)
        if not path.exists():
            return None
        try:
            found = read_document(path, Fetched)
        except LogError as error:
            raise SourceError(
                f"{package} {version}: {path} in the cache is damaged", remedy=REMEDY
            ) from error
        if (found.source.package, found.source.version, found.wanted) != (package, version, wanted):
            raise SourceError(
                f"{package} {version}: {path} in the cache speaks of another release",
                remedy=REMEDY,
            )
        return found.source

    def read(self, digest: str) -> bytes:
        """Return the kept bytes with a SHA-256; SourceError if they are gone or damaged."""
        path = self._blob(digest)
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
        """Return a kept result, None if there is none that this version can believe."""
        path = self._result(name)
        try:
            return read_document(path, kind) if path.exists() else None
        except LogError:
            return None  # whoever asks can make it again

    def store(self, name: str, document: Document) -> Path:
        """Keep a result under a name; its struct has a last field `hash`, empty here."""
        return replace(self._result(name), render(document))

    def path(self, digest: str) -> Path:
        """Return where the bytes with a SHA-256 are kept, if they are."""
        return self._blob(digest)

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest[:2] / _plain(digest)

    def _fetched(self, package: str, version: str, wanted: str) -> Path:
        name = f"{_plain(version)}-{sha256(wanted.encode())[:16]}.json"
        return self.folder / "releases" / _plain(package.translate(_SIGNS)) / name

    def _result(self, name: str) -> Path:
        return self.folder / "results" / f"{_plain(name)}.json"


def _plain(name: str) -> str:
    """Return a name that may be part of a path as it is; SourceError if it may not."""
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", name) or set(name) == {"."}:
        raise SourceError(
            f"{name!r} is no name that the cache can hold",
            remedy="Use letters, digits and the signs _ . + - alone",
        )
    return name
