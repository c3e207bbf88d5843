"""A package's releases in order, where its rules changed, and the lock of the known ones."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from nearfree.errors import ConfigError, LackingError, SourceError
from nearfree.log.document import alone, replace
from nearfree.sources.extraction import Extraction, extract
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.packages import reader

Meanings = dict[str, str]
"""Digest of what a rule answers, by the rule's name."""
Entry = TypeVar("Entry")


class Lock(Struct, frozen=True, forbid_unknown_fields=True):
    """Known releases: their rules' digests, or why a release is refused, by package and version.

    A release that is not in the lock is read all the same and compared with its neighbours: it has
    the same rules, or a new one.
    """

    rules: dict[str, dict[str, Meanings]] = {}
    refused: dict[str, dict[str, str]] = {}

    def versions(self, package: str) -> list[str]:
        """Return a package's known releases, oldest first."""
        from packaging.version import Version

        known = [*self.rules.get(package, {}), *self.refused.get(package, {})]
        return sorted(known, key=Version)


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
        found = msgspec.json.decode(path.read_bytes(), type=Lock)
        for package in {*found.rules, *found.refused}:
            found.versions(package)
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidVersion) as error:
        raise ConfigError(f"{path} is no lock: {error}", remedy="Restore it") from error
    return found


def write_lock(path: Path, lock: Lock) -> None:
    """Write the lock: sorted, one line a release, so that a change reads as what it is."""
    lines = []
    for part in ("rules", "refused"):
        packages = []
        for package, versions in sorted(getattr(lock, part).items()):
            entries = [
                f"      {json.dumps(version)}: {json.dumps(versions[version], sort_keys=True)}"
                for version in lock.versions(package)
                if version in versions
            ]
            packages.append(f"    {json.dumps(package)}: {{\n" + ",\n".join(entries) + "\n    }")
        lines.append(f"  {json.dumps(part)}: {{\n" + ",\n".join(packages) + "\n  }")
    replace(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def renew_lock(path: Path, package: str, releases: Sequence["Release"]) -> None:
    """Write a package's releases into the lock as it is now: others may have written meanwhile.

    Raises
    ------
    BusyError
        Another process writes it right now.
    """
    with alone(path):
        write_lock(path, locked_again(read_lock(path), package, releases))


FETCHERS = 8


class Release(Struct, frozen=True, kw_only=True):
    """One release: its rules' digests, or why it is refused, and which rules changed with it."""

    version: str
    meanings: Meanings = {}
    refused: str | None = None
    had: bool = True
    """Whether its text was to be had; of one that was not, nothing is known and nothing locked."""
    changed: tuple[str, ...] = ()
    locked: bool | None = None
    """Whether the lock says the same; None if it does not know the release."""


def known_versions(
    package: str, lock: Lock, *, offline: bool, oldest: str | None = None
) -> list[str]:
    """Return the releases that a history covers: those of the lock, and newer ones of the index.

    Pre-releases count only where there are no others. `oldest` is the first that is covered: where
    it is not given, the lock's first, or the very first without a lock.
    """
    from packaging.version import Version

    locked = lock.versions(package)
    first = Version(oldest or (locked[0] if locked else "0"))
    known = [each for each in locked if Version(each) >= first]
    if offline:
        return known
    from nearfree.sources.fetching.fetch import PARTS
    from nearfree.sources.fetching.fork import FORKS
    from nearfree.sources.fetching.index import releases

    named = FORKS[package].package if package in FORKS else PARTS.get(package, package)
    found = [each for each in releases(named) if Version(each) >= first]
    final = [each for each in found if not Version(each).is_prerelease]
    return sorted({*known, *(final or found)}, key=Version)


def history(
    package: str, versions: Sequence[str], lock: Lock, *, cache: Cache, offline: bool = False
) -> list[Release]:
    """Return releases in the given order, each compared with the one before it.

    Files are fetched by several threads; rules are read by one, which reads a text once.
    """
    wanted = reader(package).WANTED
    bring = partial(fetch, package, wanted=wanted, cache=cache, offline=offline)
    found: list[Release] = []
    before: Meanings = {}
    with ThreadPoolExecutor(FETCHERS) as pool:
        for version, fetched in [(each, pool.submit(bring, each)) for each in versions]:
            try:
                fetched.result()
                read = extract(package, version, cache=cache, offline=True, tuned=False)
            except SourceError as refusal:
                known = version in lock.versions(package)
                locked = version in lock.refused.get(package, {}) if known else None
                had = fetched.exception() is None or isinstance(refusal, LackingError)
                found.append(Release(version=version, refused=refusal.what, had=had, locked=locked))
                continue
            meanings = read.meanings()
            found.append(
                Release(
                    version=version,
                    meanings=meanings,
                    changed=changes(before, meanings) if before else (),
                    locked=_locked(lock, package, version, meanings),
                )
            )
            before = meanings
    return found


def changes(before: Meanings, after: Meanings) -> tuple[str, ...]:
    """Return the rules that are new, gone, or answer differently, ordered."""
    names = before.keys() | after.keys()
    return tuple(sorted(name for name in names if before.get(name) != after.get(name)))


def _locked(lock: Lock, package: str, version: str, meanings: Meanings) -> bool | None:
    known = lock.rules.get(package, {}).get(version)
    return None if known is None else known == meanings


def locked_again(lock: Lock, package: str, releases: Sequence[Release]) -> Lock:
    """Return the lock with a package's releases as they were read; all others stay in it."""
    told = [each for each in releases if each.had]
    versions = {each.version for each in told}
    rules = {each.version: each.meanings for each in told if each.refused is None}
    refused = {each.version: each.refused for each in told if each.refused is not None}
    return Lock(
        rules=_renewed(lock.rules, package, versions, rules),
        refused=_renewed(lock.refused, package, versions, refused),
    )


def _renewed(
    entries: Mapping[str, dict[str, Entry]], package: str, told: set[str], new: dict[str, Entry]
) -> dict[str, dict[str, Entry]]:
    """Return entries with new ones in place of those of some versions; a package has one at least.

    Parameters
    ----------
    told
        The versions whose old entries go.
    new
        The package's new entries, by version.
    """
    stay = {v: entry for v, entry in entries.get(package, {}).items() if v not in told}
    renewed = {**entries, package: stay | new}
    return {name: versions for name, versions in renewed.items() if versions}


def standing(lock: Lock, found: Extraction) -> str:
    """Return how a release stands to the lock: as locked, same rules as a known one, or new."""
    meanings = found.meanings()
    versions = lock.rules.get(found.package, {})
    if found.version in versions:
        changed = changes(versions[found.version], meanings)
        return "as locked" if not changed else f"differs from the lock: {', '.join(changed)}"
    same = [each for each in lock.versions(found.package) if versions.get(each) == meanings]
    if same:
        return f"not in the lock: same rules as {same[-1]}"
    newest = [each for each in lock.versions(found.package) if each in versions]
    if not newest:
        return "not in the lock, which knows no release of this package"
    changed = changes(versions[newest[-1]], meanings)
    return f"not in the lock: new rule, other than {newest[-1]} in {', '.join(changed)}"
