"""Hashed JSON documents: the format of seals, ledgers and manifests, and how they are written.

Files and folders are replaced atomically, so that no reader sees half of one. Parquet detects no
flipped bit, so each table has a manifest beside it with its hash. Folders of figures and the report
have one manifest over all their files.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os.path import normpath
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from nearfree.errors import BusyError, DamageError, TableError, WriteError
from nearfree.log.line import close_line, damaged_line, line_head, sha256
from nearfree.log.reader import UNREADABLE, read_bytes
from nearfree.log.segment import lock, make_folder, sync_folder

Document = TypeVar("Document", bound=Struct)


def render(document: Struct) -> bytes:
    """Return a document's bytes: its fields, the member `hash` over them, and a newline."""
    fields = msgspec.to_builtins(document)
    del fields["hash"]
    return close_line(msgspec.json.encode(fields)) + b"\n"


def read_document(path: Path, kind: type[Document]) -> Document:
    """Return a hashed document; DamageError if a bit of it differs from what was written."""
    raw = read_bytes(path)
    if not raw.endswith(b"\n"):
        raise DamageError(f"{path} has no end", remedy="Restore it from a copy")
    if line_head(raw[:-1]) is None:
        raise damaged_line(str(path))
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        raise DamageError(
            f"{path} is not a {kind.__name__.lower()} of this version: {error}",
            remedy="Read it with the nearfree version that wrote it",
        ) from error


def write_once(path: Path, document: Struct) -> Path:
    """Write a document durably under a name that must be free; BusyError if it is taken."""
    with _partial(path, render(document)) as partial:
        try:
            os.link(partial, path)
        except FileExistsError:
            raise BusyError(
                f"{path} exists already", remedy="Another job wrote it first: nothing is left to do"
            ) from None
        sync_folder(path.parent)
    return path


def replace(path: Path, raw: bytes) -> Path:
    """Write a file atomically: a reader sees the old file or the new one, never a part."""
    with _partial(path, raw) as partial:
        partial.replace(path)
    return path


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Lock a file that is read and replaced, by a lock file beside it.

    Raises
    ------
    BusyError
        Another process holds the lock.
    WriteError
        The lock file cannot be made.
    """
    try:
        make_folder(path.parent)
        fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise WriteError(
            f"{path} was not written: {error.strerror}",
            remedy="Check that you may write into its folder, then run it again",
        ) from error
    try:
        lock(fd, str(path))
        yield
    finally:
        os.close(fd)


@contextmanager
def _partial(path: Path, raw: bytes) -> Iterator[Path]:
    partial = path.with_name(f".{path.name}.{os.getpid()}{time.time_ns()}")
    try:
        make_folder(path.parent)
        with partial.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    except OSError as error:
        raise WriteError(
            f"{path} was not written: {error.strerror}",
            remedy="Free space, see that you may write there, or move away what stands in its "
            "place, then run it again",
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


@contextmanager
def new_folder(into: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `into` on a normal exit.

    On an error `into` stays as it was. On success its old content is removed.
    """
    partial, old = (
        into.with_name(f".{into.name}{suffix}.{os.getpid()}") for suffix in ("", ".old")
    )
    try:
        partial.mkdir(parents=True)
        yield partial
        if into.exists():
            into.replace(old)
        partial.replace(into)
    finally:
        if old.exists() and not into.exists():
            old.replace(into)
        for leftover in (partial, old):
            shutil.rmtree(leftover, ignore_errors=True)


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
    """Return the path of a table's manifest."""
    return table.with_name(table.name + MANIFEST_SUFFIX)


def replace_with_manifest(path: Path, raw: bytes, manifest: Manifest) -> None:
    """Write a table and its manifest; if either cannot be written, both stay as they were.

    While they are replaced the table has no manifest, so that no reader takes it for another.
    """
    manifest_file = manifest_path(path)
    with _partial(path, raw) as table, _partial(manifest_file, render(manifest)) as description:
        manifest_file.unlink(missing_ok=True)
        table.replace(path)
        description.replace(manifest_file)


def walk(folder: Path) -> Iterator[Path]:
    """Yield all files, links and empty folders below a folder, sorted, at any depth."""
    pending = [folder]
    while pending:
        path = pending.pop()
        is_folder = path == folder or (path.is_dir() and not path.is_symlink())
        entries = sorted(path.iterdir(), reverse=True) if is_folder else []
        pending += entries
        if not entries and path != folder:
            yield path


def check_table(path: Path) -> bytes:
    """Return a table file's bytes; TableError if they are not what its manifest says."""
    manifest_file = manifest_path(path)
    if not path.is_file() or not manifest_file.is_file():
        missing = manifest_file if path.is_file() else path
        raise TableError(f"{missing} is missing", remedy="Run the workflow again to make it")
    raw = read_bytes(path)
    manifest = read_document(manifest_file, Manifest)
    if manifest.sha256 != sha256(raw) or manifest.table != path.stem:
        raise TableError(
            f"{path} is not what its manifest says", remedy="Remove both and run the workflow again"
        )
    return raw


class _Files(Struct, frozen=True):
    """The part that all kinds of folder manifests share."""

    files: dict[str, str]


class FolderManifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The SHA-256 of every file of a folder, by its path relative to the folder."""

    version: Literal[1] = 1
    files: dict[str, str]
    hash: str = ""


def write_folder_manifest(folder: Path) -> Path:
    """Write the manifest of all files now in a folder, and return the manifest's path."""
    manifest = folder / FOLDER_MANIFEST
    files = {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes())
        for path in walk(folder)
        if path.is_file() and path != manifest
    }
    return replace(manifest, render(FolderManifest(files=files)))


def named_files(manifest: Path, folder: Path) -> dict[Path, str]:
    """Return the SHA-256 of each file that a manifest lists; DamageError if one is outside.

    Parameters
    ----------
    folder
        The folder that must hold all files; it may be above the manifest.
    """
    digests = read_document(manifest, _Files).files
    digest_by_path = {Path(normpath(manifest.parent / name)): sha for name, sha in digests.items()}
    for path in digest_by_path:
        if not path.is_relative_to(folder):
            raise DamageError(f"{manifest} names {path}, outside {folder}", remedy="Make it again")
    return digest_by_path
