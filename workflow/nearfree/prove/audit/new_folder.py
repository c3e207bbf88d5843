"""A folder that appears as a whole, or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(into: Path) -> Iterator[Path]:
    """Give a folder beside another one, whose place it takes when all is in it.

    What stops on the way leaves the other as it was; what was in it goes at the end.
    """
    partial, before = (into.with_name(f".{into.name}{each}.{os.getpid()}") for each in ("", ".old"))
    try:
        partial.mkdir(parents=True)
        yield partial
        if into.exists():
            into.replace(before)
        partial.replace(into)
    finally:
        for each in (partial, before):
            shutil.rmtree(each, ignore_errors=True)
