"""The files of a crate's folder, without following links."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from nearfree.log.names import Layout
from nearfree.log.reader import open_bytes
from nearfree.prove.crate.graph import METADATA, file_id

RESULTS = "results"
_BLOCK_BYTES = 1024**2


class Contents(Struct, frozen=True):
    """A file's size in bytes and its SHA-256."""

    size: int
    sha256: str


def crate_layout(folder: Path) -> Layout:
    """Return the results root inside a crate."""
    return Layout(folder / RESULTS)


def ledger_folder(layout: Layout) -> Path:
    """Return the folder of a root's ledgers: this machine's own if it has any, else the tracked."""
    local = layout.ledgers / "local"
    return local if any(local.glob("*.json")) else layout.ledgers


def walk(folder: Path) -> Iterator[Path]:
    """Yield all files, links and empty folders below a folder, sorted."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        inside = walk(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else ()
        yield from [*inside] or [Path(entry.path)]


def read_contents(folder: Path) -> dict[str, Contents]:
    """Return the contents of every plain file but the metadata, by its id in the crate."""
    return {
        file_id(path.relative_to(folder)): _contents(path)
        for path in walk(folder)
        if path.is_file() and not path.is_symlink() and path != folder / METADATA
    }


def _contents(path: Path) -> Contents:
    total, size = hashlib.sha256(), 0
    with open_bytes(path) as file:
        while block := file.read(_BLOCK_BYTES):
            total.update(block)
            size += len(block)
    return Contents(size, total.hexdigest())
