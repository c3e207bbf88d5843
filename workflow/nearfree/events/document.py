"""Hashed JSON documents: seals, ledgers and manifests share one format and one way to disk."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from nearfree.errors import BusyError, DamageError, WriteError
from nearfree.events.line import close_line, damaged_line, line_head
from nearfree.events.reader import read_bytes
from nearfree.events.segment import sync_folder

Document = TypeVar("Document", bound=Struct)


def render(document: Struct) -> bytes:
    """Return a document's bytes: its fields, then `hash` over them, then a newline."""
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
    except msgspec.MsgspecError as error:
        raise DamageError(
            f"{path} is not a {kind.__name__.lower()} of this version: {error}",
            remedy="Read it with the nearfree version that wrote it",
        ) from error


def write_once(path: Path, document: Struct) -> Path:
    """Write a document durably under a name that must be free; BusyError if it is taken."""
    partial = _write_partial(path, render(document))
    try:
        os.link(partial, path)
        sync_folder(path.parent)
    except FileExistsError:
        raise BusyError(
            f"{path} exists already", remedy="Another job wrote it first: nothing is left to do"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return path


def replace(path: Path, raw: bytes) -> Path:
    """Put bytes at a path as a whole: a reader sees the old file or the new one, never a part."""
    _write_partial(path, raw).replace(path)
    return path


def _write_partial(path: Path, raw: bytes) -> Path:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise WriteError(
            f"{path} was not written: {error.strerror}", remedy="Free space, then run it again"
        ) from error
    return partial
