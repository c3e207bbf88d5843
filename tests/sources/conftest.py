"""Real releases for the slow tests."""

from collections.abc import Callable
from functools import cache

import pytest
from nearfree.sources.extraction import Extraction, extract
from nearfree.sources.fetching.cache import Cache

Releases = Callable[[str, str], Extraction]


@pytest.fixture(scope="session")
def release(source_cache: Cache) -> Releases:
    """Return a function that reads one release, tuned files and all."""

    @cache
    def read(package: str, version: str) -> Extraction:
        return extract(package, version, cache=source_cache)

    return read
