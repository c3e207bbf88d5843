"""Releases of the lock, read anew from the package index."""

import os

import pytest
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fork import FORKS
from nearfree.sources.history import Lock, history, read_lock
from nearfree.sources.packages import RULES
from once import drawn

from workflow import ROOT

pytestmark = pytest.mark.slow
LOCK = read_lock(ROOT / "config" / "rules.lock")
CHANGES, SHARE = 8, 24
"""Of the changes, and of all releases, CI reads one in so many."""


INDEXED = [package for package in RULES if package not in FORKS]
"""The packages whose text the package index has; a fork's stands in its own repository."""


def test_the_lock_knows_every_package() -> None:
    """Each package that is read has locked releases, a fork's those on record."""
    assert set(LOCK.rules) == set(RULES)


def chosen(package: str) -> list[str]:
    """Return the releases of a package to read again: those on both sides of each change.

    In CI the commit's hash chooses a share of the changes, and of the other releases, too; the
    last release is always read, and for `make history` all.
    """
    versions = LOCK.versions(package)
    if os.environ.get("NEARFREE_HISTORY") == "all":
        return versions
    rules, in_ci = LOCK.rules[package], "CI" in os.environ
    numbers = {len(versions) - 1} | (set() if in_ci else {0})
    for number, version in enumerate(versions):
        changed = number and rules.get(version) != rules.get(versions[number - 1])
        if changed and (not in_ci or drawn(CHANGES, "change", package, version)):
            numbers |= {number - 1, number}
        if in_ci and drawn(SHARE, package, version):
            numbers.add(number)
    return [versions[number] for number in sorted(numbers)]


@pytest.mark.parametrize("package", INDEXED)
def test_locked_releases_are_read_again(package: str, source_cache: Cache) -> None:
    """With an empty cache, and the lock set aside while reading, each release says what it said."""
    versions = chosen(package)
    read_again = history(package, versions, Lock(), cache=source_cache)
    read = {release.version: release.meanings for release in read_again if release.refused is None}
    refused = {
        release.version: release.refused for release in read_again if release.refused is not None
    }
    assert read == {v: m for v, m in LOCK.rules[package].items() if v in versions}
    assert refused == {v: r for v, r in LOCK.refused.get(package, {}).items() if v in versions}


@pytest.mark.parametrize("package", INDEXED)
def test_nearly_all_releases_that_hold_the_files_are_read(package: str) -> None:
    """At least 95 % of the releases whose artefacts hold the files; the rest says why not."""
    refused = LOCK.refused.get(package, {})
    held = [why for why in refused.values() if "holds no file that matches" not in why]
    read = len(LOCK.rules[package])
    assert read >= 0.95 * (read + len(held))
