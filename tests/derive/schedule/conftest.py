"""Sources of engines for the slow tests: fetched once a session, into a cache of its own."""

from collections.abc import Callable
from functools import cache

import pytest
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch

Sources = Callable[[str, str, str], str]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Return a function that reads one file of a release."""
    kept = Cache(tmp_path_factory.mktemp("engines"))

    @cache
    def read(package: str, version: str, path: str) -> str:
        found = fetch(package, version, path.replace(".", r"\."), cache=kept)
        return found.text(path)

    return read
