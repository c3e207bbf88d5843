"""Every release of the lock, read anew from the package index."""

from pathlib import Path

import pytest
from nearfree.sources.cache import Cache
from nearfree.sources.history import history
from nearfree.sources.lock import Lock, read_lock
from nearfree.sources.packages import MODULES

pytestmark = pytest.mark.slow
LOCK = read_lock(Path(__file__).parents[2] / "config" / "rules.lock")


def test_the_lock_knows_every_package() -> None:
    """Each package that is read has locked releases."""
    assert set(LOCK.rules) == set(MODULES)


@pytest.mark.parametrize("package", MODULES)
def test_every_locked_release_is_read_again(package: str, source_cache: Cache) -> None:
    """With an empty cache, and the lock set aside while reading, each release says what it said."""
    versions = LOCK.versions(package)
    found = history(package, versions, Lock(), cache=source_cache)
    assert {r.version: r.meanings for r in found if r.refused is None} == LOCK.rules[package]
    refused = {r.version: r.refused for r in found if r.refused is not None}
    assert refused == LOCK.refused.get(package, {})
    assert len(found) - len(refused) >= 0.95 * len(found)
