"""Manifests: what a table file must be, and what it was made from.

Parquet does not notice a flipped bit, so each table lies beside a hashed manifest and is believed
only together with it.
"""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from nearfree.errors import TableError
from nearfree.events.document import read_document
from nearfree.events.line import sha256

MANIFEST_SUFFIX = ".manifest.json"


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table's SHA-256, its rows, and the inputs that it was made from, by name and digest."""

    version: Literal[1] = 1
    table: str
    rows: int
    sha256: str
    made_from: dict[str, str]
    hash: str = ""


def manifest_path(table: Path) -> Path:
    """Return where a table's manifest lies."""
    return table.with_name(table.name + MANIFEST_SUFFIX)


def check_table(path: Path) -> bytes:
    """Return a table file's bytes; TableError if they are not what its manifest says."""
    beside = manifest_path(path)
    if not path.exists() or not beside.exists():
        gone = path if not path.exists() else beside
        raise TableError(f"{gone} is missing", remedy="Run the workflow again to make it")
    raw = path.read_bytes()
    manifest = read_document(beside, Manifest)
    if manifest.sha256 != sha256(raw) or manifest.table != path.stem:
        raise TableError(
            f"{path} is not what its manifest says", remedy="Remove both and run the workflow again"
        )
    return raw
