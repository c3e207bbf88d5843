"""What was fetched of a release: its wanted files, and the record of where they came from."""

from msgspec import Struct

from nearfree.errors import LackingError, SourceError
from nearfree.log.events import SourceFetched, SourceMember
from nearfree.log.line import sha256
from nearfree.sources.fetching.cache import Cache


class Source(Struct, frozen=True):
    """The wanted files of a release, and the record of where they came from."""

    record: SourceFetched
    files: dict[str, bytes]

    def paths(self) -> list[str]:
        """Return the paths of all files inside their artefact, sorted."""
        return sorted(self.files)

    def raw(self, path: str) -> bytes:
        """Return a file's bytes; SourceError if the release has no such file."""
        if path not in self.files:
            raise SourceError(
                f"{self._name} has no {path} among its fetched files",
                remedy="Read another version, or ask for the path where this one has it",
            )
        return self.files[path]

    def text(self, path: str) -> str:
        """Return a file's text; SourceError if it is not UTF-8."""
        try:
            return self.raw(path).decode()
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{self._name}: {path} is not UTF-8 at byte {error.start}",
                remedy="Read another version: rules are read from text alone",
            ) from error

    @property
    def _name(self) -> str:
        return f"{self.record.package} {self.record.version}"


def kept(
    package: str, version: str, wanted: str, cache: Cache, *, offline: bool = False
) -> Source | None:
    """Return what the cache has of a release for a pattern of paths, None if it must be fetched.

    Raises
    ------
    SourceError
        With `offline`: the cache has nothing of it, or what is damaged.
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


def lacking(package: str, version: str, wanted: str) -> LackingError:
    """Return the error of a release that holds no file whose path matches a pattern."""
    return LackingError(
        f"{package} {version} holds no file that matches {wanted}",
        remedy="Take a version that has it",
    )


def members_of(files: dict[str, bytes]) -> tuple[SourceMember, ...]:
    """Return what is recorded of files, by path."""
    return tuple(
        SourceMember(path=path, sha256=sha256(raw), size=len(raw))
        for path, raw in sorted(files.items())
    )
