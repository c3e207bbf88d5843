"""The fetched files of a release, and the record of their origin."""

from msgspec import Struct

from nearfree.errors import LackingError, SourceError
from nearfree.log.events import SourceFetched, SourceMember
from nearfree.log.line import sha256
from nearfree.sources.fetching.cache import Cache


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
