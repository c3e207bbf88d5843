"""Hashed JSON documents."""

import errno
import os
import stat
from pathlib import Path

import pytest
from nearfree.errors import BusyError, DamageError, LogError, TableError, WriteError
from nearfree.log.document import (
    Manifest,
    check_table,
    locked_file,
    manifest_path,
    new_folder,
    read_document,
    render,
    replace,
    write_once,
)
from nearfree.log.ledger import Ledger
from nearfree.log.line import close_line
from once import one_in

from log.faults import flip
from log.roots import make_table

DOCUMENT = Manifest(table="latency", rows=2, sha256="0" * 64, made_from={"cpu/dense": "1" * 64})


def test_a_document_comes_back(tmp_path: Path) -> None:
    """What is written is what is read, with the hash filled in."""
    path = write_once(tmp_path / "new" / "a.json", DOCUMENT)
    read = read_document(path, Manifest)
    assert render(read) == render(DOCUMENT) == path.read_bytes()
    assert len(read.hash) == 64


def test_a_lock_ends_with_its_block(tmp_path: Path) -> None:
    """Nobody else gets the lock inside the block; after it anybody does, even after an error."""
    path = tmp_path / "new" / "takes.yaml"
    with locked_file(path), pytest.raises(BusyError, match=r"takes\.yaml"), locked_file(path):
        pass
    with pytest.raises(ZeroDivisionError), locked_file(path):
        raise ZeroDivisionError
    with locked_file(path):
        pass


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    """A document with any one bit flipped is not read, its last newline included.

    A commit draws a quarter of the bits.
    """
    path, raw = tmp_path / "a.json", render(DOCUMENT)
    for bit in range(8 * len(raw))[one_in(4, "document")]:
        path.write_bytes(flip(raw, bit))
        with pytest.raises(DamageError):
            read_document(path, Manifest)


@pytest.mark.parametrize(
    "cut",
    [b"", b"\n", b"{", render(DOCUMENT)[:-1], render(DOCUMENT)[:-1] + b" ", render(DOCUMENT)[1:]],
)
def test_a_part_is_damage(tmp_path: Path, cut: bytes) -> None:
    """A part of a document is damage, the empty file and another last byte included."""
    path = tmp_path / "a.json"
    path.write_bytes(cut)
    with pytest.raises(DamageError, match=r"a\.json"):
        read_document(path, Manifest)


def test_a_missing_document_is_a_clean_error(tmp_path: Path) -> None:
    """A file that is not there gives a LogError with its name."""
    with pytest.raises(LogError, match=r"gone\.json cannot be read"):
        read_document(tmp_path / "gone.json", Manifest)


@pytest.mark.parametrize(
    "body",
    [
        b'{"version":2,"table":"a","rows":1,"sha256":"","made_from":{}}',
        b'{"version":1,"table":"a","rows":1,"sha256":"","made_from":{},"new":1}',
        b'{"version":1,"table":"a"}',
        b'{"version":1,"table":"\xff","rows":1,"sha256":"","made_from":{}}',
    ],
    ids=["version", "field", "lack", "no UTF-8"],
)
def test_another_version_is_refused(tmp_path: Path, body: bytes) -> None:
    """A whole document of another version is refused with the advice to use that version."""
    path = tmp_path / "a.json"
    path.write_bytes(close_line(body) + b"\n")
    with pytest.raises(DamageError, match="is not a manifest of this version") as caught:
        read_document(path, Manifest)
    assert "version that wrote it" in caught.value.remedy


def test_another_kind_is_refused(tmp_path: Path) -> None:
    """A manifest in a ledger's place is no ledger."""
    path = write_once(tmp_path / "000001.json", DOCUMENT)
    with pytest.raises(DamageError, match="is not a ledger"):
        read_document(path, Ledger)


def test_write_once_keeps_the_first(tmp_path: Path) -> None:
    """A name that is taken is refused; the first file stays and no partial file is left."""
    path = write_once(tmp_path / "a.json", DOCUMENT)
    first = path.read_bytes()
    with pytest.raises(BusyError, match="exists already"):
        write_once(path, Manifest(table="other", rows=0, sha256="", made_from={}))
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_a_document_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole content is synced before the name exists, and the folder after that."""
    path = tmp_path / "a.json"
    synced: list[tuple[int, int, bool]] = []

    def sync(fd: int) -> None:
        status = os.fstat(fd)
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        synced.append((status.st_ino, size, path.exists()))

    monkeypatch.setattr(os, "fsync", sync)
    write_once(path, DOCUMENT)
    file = (path.stat().st_ino, len(render(DOCUMENT)), False)
    assert synced == [file, (tmp_path.stat().st_ino, 0, True)]


def test_a_disk_without_hard_links_is_a_write_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system knows no hard links, the write fails cleanly and leaves nothing."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(WriteError, match="Operation not permitted"):
        write_once(tmp_path / "a.json", DOCUMENT)
    assert list(tmp_path.iterdir()) == []


def test_replace_puts_the_new_bytes(tmp_path: Path) -> None:
    """Replacing a file leaves the new bytes under its name and nothing beside it."""
    path = tmp_path / "sub" / "a.json"
    replace(path, b"old")
    old = path.open("rb")
    assert replace(path, b"new") == path
    with old:
        assert old.read() == b"old", "an open reader keeps the whole old file"
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_a_write_error(tmp_path: Path) -> None:
    """A file in the place of the folder is reported as a write that failed."""
    (tmp_path / "state").touch()
    with pytest.raises(WriteError, match="was not written"):
        replace(tmp_path / "state" / "a.json", b"new")


def test_a_name_that_cannot_be_replaced_is_a_write_error(tmp_path: Path) -> None:
    """A folder in the place of the file is reported as a write that failed, without a leftover."""
    (tmp_path / "a.json").mkdir()
    with pytest.raises(WriteError, match="was not written"):
        replace(tmp_path / "a.json", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old folder is removed only after the new one is in its place."""
    place = tmp_path / "report"
    place.mkdir()
    (place / "old").touch()
    own = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if (path / "new").exists():
            raise OSError(errno.EIO, "no")
        return own(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no"), new_folder(place) as partial:
        (partial / "new").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert [path.name for path in place.iterdir()] == ["old"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a table file, any bytes, with its manifest."""
    return make_table(tmp_path / "tables" / "cpu" / "latency.parquet")


def test_a_sound_table_is_read(table: Path) -> None:
    """A table that matches its manifest gives its bytes."""
    assert check_table(table) == b"PAR1 some columns PAR1"
    assert manifest_path(table).name == "latency.parquet.manifest.json"


def test_every_flipped_bit_of_a_table_is_seen(table: Path) -> None:
    """A table with any one bit flipped is refused."""
    raw = table.read_bytes()
    for bit in range(8 * len(raw)):
        table.write_bytes(flip(raw, bit))
        with pytest.raises(TableError, match="not what its manifest says"):
            check_table(table)


def test_a_damaged_manifest_is_refused(table: Path) -> None:
    """A manifest that does not match its own hash vouches for nothing."""
    manifest_path(table).write_bytes(flip(manifest_path(table).read_bytes(), 300))
    with pytest.raises(DamageError, match="does not match its own hash"):
        check_table(table)


def test_a_table_needs_both_files(table: Path) -> None:
    """A table without its manifest, or a manifest without its table, is refused by name."""
    manifest = manifest_path(table).read_bytes()
    manifest_path(table).unlink()
    with pytest.raises(TableError, match=r"manifest\.json is missing"):
        check_table(table)
    manifest_path(table).write_bytes(manifest)
    table.unlink()
    with pytest.raises(TableError, match=r"latency\.parquet is missing"):
        check_table(table)


def test_a_table_under_another_name_is_refused(table: Path) -> None:
    """A table moved to another table's name, together with its manifest, is not believed."""
    moved = table.with_name("boundaries.parquet")
    manifest_path(table).rename(manifest_path(moved))
    table.rename(moved)
    with pytest.raises(TableError, match="boundaries"):
        check_table(moved)
