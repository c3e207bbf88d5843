"""Sources of engines for the slow tests."""

from collections.abc import Callable
from functools import cache

import pytest
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch

Sources = Callable[[str, str, str], str]


@pytest.fixture(scope="session")
def source(source_cache: Cache) -> Sources:
    """Return a function that reads one file of a release."""

    @cache
    def read(package: str, version: str, path: str) -> str:
        source = fetch(package, version, path.replace(".", r"\."), cache=source_cache)
        return source.text(path)

    return read
