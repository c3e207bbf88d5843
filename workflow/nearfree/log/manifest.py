"""Manifests: what a file must be, and what it was made from.

Parquet does not notice a flipped bit, so each table lies beside a hashed manifest and is believed
only together with it. Folders of figures and the report hold one manifest over all their files.
"""

from os.path import normpath
from pathlib import Path
from typing import Literal

from msgspec import Struct

from nearfree.errors import DamageError, TableError
from nearfree.log.document import read_document, render, replace
from nearfree.log.line import sha256

MANIFEST_SUFFIX = ".manifest.json"
FOLDER_MANIFEST = "manifest.json"


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
    if not path.is_file() or not beside.is_file():
        gone = beside if path.is_file() else path
        raise TableError(f"{gone} is missing", remedy="Run the workflow again to make it")
    raw = path.read_bytes()
    manifest = read_document(beside, Manifest)
    if manifest.sha256 != sha256(raw) or manifest.table != path.stem:
        raise TableError(
            f"{path} is not what its manifest says", remedy="Remove both and run the workflow again"
        )
    return raw


class _Files(Struct, frozen=True):
    """What every manifest of a folder says, whatever else it holds."""

    files: dict[str, str]


class FolderManifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The SHA-256 of every file of a folder, by its path from there."""

    version: Literal[1] = 1
    files: dict[str, str]
    hash: str = ""


def write_folder_manifest(folder: Path) -> Path:
    """Write the manifest of all files that lie in a folder now, and return its path."""
    manifest = folder / FOLDER_MANIFEST
    files = {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != manifest
    }
    return replace(manifest, render(FolderManifest(files=files)))


def named_files(manifest: Path, folder: Path) -> dict[Path, str]:
    """Return the digest of each file that a manifest names; DamageError if one is elsewhere.

    Parameters
    ----------
    folder
        Where all of them lie, which may be above the manifest.
    """
    listed = read_document(manifest, _Files).files
    named = {Path(normpath(manifest.parent / name)): sha for name, sha in listed.items()}
    for path in named:
        if not path.is_relative_to(folder):
            raise DamageError(f"{manifest} names {path}, elsewhere", remedy="Make it again")
    return named
