"""What is slow: made once for all workers, or done for the share of cases that a commit draws."""

import fcntl
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

Made = TypeVar("Made")


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a session that all of its workers share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return this process's copy of a folder that one process of the session makes for all."""
    made = shared(factory, name, make)
    return Path(shutil.copytree(made, factory.mktemp(name) / "copy", symlinks=True))


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that one process of the session makes for all, to be read only.

    The first that asks makes it, while the others wait; what failed is made again.
    """
    made = session_folder(factory) / f"made-{name}"
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = made.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            make(partial)
            partial.rename(made)
    return made


class Lazily(Mapping[str, Made]):
    """A mapping whose values are made at their first use, so that collecting tests makes none."""

    def __init__(self, makers: Mapping[str, Callable[[], Made]]) -> None:
        self._makers = makers
        self._made: dict[str, Made] = {}

    def __getitem__(self, name: str) -> Made:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


ALL = os.environ.get("NEARFREE_CASES") == "all"
"""Whether every case is tried, and not the share that a commit draws."""


def drawn(share: int, *case: object) -> bool:
    """Return whether this commit tries a case: one in `share`, other ones with each commit."""
    return ALL or turn(share, *case) == 0


def one_in(share: int, *what: object) -> slice:
    """Return which of a list's cases this commit tries: one in `share` from a drawn one on."""
    return slice(None) if ALL else slice(turn(share, *what), None, share)


def turn(share: int, *what: object) -> int:
    """Return the number below `share` that this commit draws."""
    text = " ".join(map(str, (commit(), *what)))
    return zlib.crc32(text.encode()) % share


@cache
def commit() -> str:
    """Return the hash of the tested commit; fail without one."""
    command = ["git", "rev-parse", "HEAD"]
    root = Path(__file__).parent.parent
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
