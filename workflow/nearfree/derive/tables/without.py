"""Imports without packages that another one loads where it finds them, and uses for nothing here.

pandera loads pandas and hypothesis, if installed, for frames and data that no table is made of:
a second a process, twice what making most tables takes.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident


class _Absent:
    """A finder to whose thread some packages are not installed."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages
        self._thread = get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in self._packages and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Let this thread's imports find none of some packages, but for those already loaded."""
    finder = _Absent(tuple(each for each in packages if each not in sys.modules))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
