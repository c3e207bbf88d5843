"""A package's releases in order, the changes of its rules, and the lock of known releases."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from nearfree.errors import ConfigError, LackingError, SourceError
from nearfree.log.document import locked_file, replace
from nearfree.sources.classes import lock_text
from nearfree.sources.extraction import Extraction, extract
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.packages import reader

Meanings = dict[str, str]
"""Digest of each rule's meaning, by the rule's name."""
Entry = TypeVar("Entry")


class Lock(Struct, frozen=True, forbid_unknown_fields=True):
    """Known releases: their rules' digests, or why a release is refused, by package and version.

    A release that is not in the lock is read and compared with its neighbours all the same: it has
    their rules, or new ones.
    """

    rules: dict[str, dict[str, Meanings]] = {}
    refused: dict[str, dict[str, str]] = {}

    def versions(self, package: str) -> list[str]:
        """Return a package's known releases, oldest first."""
        from packaging.version import Version

        locked_versions = [*self.rules.get(package, {}), *self.refused.get(package, {})]
        return sorted(locked_versions, key=Version)


def read_lock(path: Path) -> Lock:
    """Return the lock; an empty one if there is no file.

    Raises
    ------
    ConfigError
        The file is no lock.
    """
    if not path.exists():
        return Lock()
    from packaging.version import InvalidVersion

    try:
        lock = msgspec.json.decode(path.read_bytes(), type=Lock)
        for package in {*lock.rules, *lock.refused}:
            lock.versions(package)
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidVersion) as error:
        raise ConfigError(f"{path} is no lock: {error}", remedy="Restore it") from error
    return lock


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock: sorted, one line per release, so that diffs are small."""
    sections = {
        section: {
            package: {
                version: versions[version]
                for version in lock.versions(package)
                if version in versions
            }
            for package, versions in sorted(getattr(lock, section).items())
        }
        for section in ("rules", "refused")
    }
    replace(path, f"{lock_text(sections)}\n".encode())


def renew_lock(path: Path, package: str, releases: Sequence["Release"]) -> None:
    """Write a package's releases into the current lock, which others may have changed meanwhile.

    Raises
    ------
    BusyError
        Another process is writing it.
    """
    with locked_file(path):
        write_lock(path, with_releases(read_lock(path), package, releases))


FETCHERS = 8


class Release(Struct, frozen=True, kw_only=True):
    """One release: its rules' digests or why it is refused, and the rules that changed with it."""

    version: str
    meanings: Meanings = {}
    refused: str | None = None
    had: bool = True
    """Whether its text was available; a release whose text was not is not put into the lock."""
    changed: tuple[str, ...] = ()
    locked: bool | None = None
    """Whether the lock agrees; None if it does not have the release."""


def known_versions(
    package: str, lock: Lock, *, offline: bool, oldest: str | None = None
) -> list[str]:
    """Return the releases of a history: those of the lock, and newer ones of the index.

    Pre-releases count only if there are no others. `oldest` is the first release; by default the
    lock's first one, or the very first without a lock.
    """
    from packaging.version import Version

    locked_versions = lock.versions(package)
    first = Version(oldest or (locked_versions[0] if locked_versions else "0"))
    known = [version for version in locked_versions if Version(version) >= first]
    if offline:
        return known
    from nearfree.sources.fetching.fetch import PARTS
    from nearfree.sources.fetching.fork import FORKS
    from nearfree.sources.fetching.index import releases

    index_name = FORKS[package].package if package in FORKS else PARTS.get(package, package)
    indexed = [version for version in releases(index_name) if Version(version) >= first]
    final = [version for version in indexed if not Version(version).is_prerelease]
    return sorted({*known, *(final or indexed)}, key=Version)


def history(
    package: str, versions: Sequence[str], lock: Lock, *, cache: Cache, offline: bool = False
) -> list[Release]:
    """Return releases in the given order, each compared with the one before.

    Several threads fetch files; one thread reads rules, so that a text is read once.
    """
    pattern = reader(package).WANTED
    fetch_files = partial(fetch, package, wanted=pattern, cache=cache, offline=offline)
    releases: list[Release] = []
    previous: Meanings = {}
    with ThreadPoolExecutor(FETCHERS) as pool:
        for version, download in [
            (number, pool.submit(fetch_files, number)) for number in versions
        ]:
            try:
                download.result()
                extraction = extract(package, version, cache=cache, offline=True, tuned=False)
            except SourceError as error:
                is_known = version in lock.versions(package)
                locked = version in lock.refused.get(package, {}) if is_known else None
                has_text = download.exception() is None or isinstance(error, LackingError)
                releases.append(
                    Release(version=version, refused=error.what, had=has_text, locked=locked)
                )
                continue
            meanings = extraction.meanings()
            locked_meanings = lock.rules.get(package, {}).get(version)
            releases.append(
                Release(
                    version=version,
                    meanings=meanings,
                    changed=changed_rules(previous, meanings) if previous else (),
                    locked=None if locked_meanings is None else locked_meanings == meanings,
                )
            )
            previous = meanings
    return releases


def changed_rules(before: Meanings, after: Meanings) -> tuple[str, ...]:
    """Return the rules that are new, gone, or answer differently, sorted."""
    names = before.keys() | after.keys()
    return tuple(sorted(name for name in names if before.get(name) != after.get(name)))


def with_releases(lock: Lock, package: str, releases: Sequence[Release]) -> Lock:
    """Return the lock with a package's releases as read now; all other entries stay."""
    available = [release for release in releases if release.had]
    versions = {release.version for release in available}
    rules = {release.version: release.meanings for release in available if release.refused is None}
    refused = {
        release.version: release.refused for release in available if release.refused is not None
    }
    return Lock(
        rules=_with_new_entries(lock.rules, package, versions, rules),
        refused=_with_new_entries(lock.refused, package, versions, refused),
    )


def _with_new_entries(
    entries: Mapping[str, dict[str, Entry]], package: str, replaced: set[str], new: dict[str, Entry]
) -> dict[str, dict[str, Entry]]:
    """Return entries with those of some versions of a package replaced; drop empty packages."""
    unchanged = {
        version: entry
        for version, entry in entries.get(package, {}).items()
        if version not in replaced
    }
    renewed = {**entries, package: unchanged | new}
    return {name: versions for name, versions in renewed.items() if versions}


def lock_status(lock: Lock, extraction: Extraction) -> str:
    """Return how a release compares with the lock: as locked, same rules as another, or new."""
    meanings = extraction.meanings()
    versions = lock.rules.get(extraction.package, {})
    if extraction.version in versions:
        changed = changed_rules(versions[extraction.version], meanings)
        return "as locked" if not changed else f"differs from the lock: {', '.join(changed)}"
    locked_versions = [
        version for version in lock.versions(extraction.package) if version in versions
    ]
    same_rules = [version for version in locked_versions if versions[version] == meanings]
    if same_rules:
        return f"not in the lock: same rules as {same_rules[-1]}"
    if not locked_versions:
        return "not in the lock, which knows no release of this package"
    changed = changed_rules(versions[locked_versions[-1]], meanings)
    return f"not in the lock: new rule, other than {locked_versions[-1]} in {', '.join(changed)}"
