"""Hide optional dependencies from an import.

pandera imports pandas and hypothesis if they are installed, for kinds of frames and data that no
table here uses. That takes a second per process, twice the time of making most tables.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident


class _Absent:
    """A finder that hides some packages from the thread that made it."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages
        self._thread = get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in self._packages and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Hide packages from this thread's imports, except those already loaded."""
    finder = _Absent(tuple(package for package in packages if package not in sys.modules))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
