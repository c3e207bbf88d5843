"""Tables on disk are read only with a matching manifest."""

import re
from pathlib import Path

import polars as pl
import pytest
from log.faults import largest_file
from nearfree.derive.tables.boundaries import BOUNDARIES, write_boundaries
from nearfree.derive.tables.columns import count, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table, seals_digest, table_digest, write_table
from nearfree.errors import DamageError, NearfreeError, TableError, WriteError
from nearfree.log.document import Manifest, manifest_path, read_document, render
from nearfree.log.line import sha256
from nearfree.log.names import Layout

from derive.tables.logs import write_study

MADE = {"formula": "as it was given", "code": "nearfree.derive.tables.schema"}
KIND = Table(
    name="kind",
    row="a row",
    key=("n",),
    **MADE,
    body={"n": count("n"), "name": text("name")},
)


@pytest.fixture
def path(empty: Layout) -> Path:
    """Write a small table and return its path."""
    return write(empty, 50)


def write(layout: Layout, rows: int) -> Path:
    """Write a table with some rows and return its path."""
    data = [{"n": n, "name": f"name {n}", "from_ids": ["e#1"]} for n in range(1, rows + 1)]
    write_table(layout, "cpu", KIND, KIND.build(KIND.frame(data), {"e#1"}), {"events/cpu": "ab"})
    return layout.table("cpu", "kind")


def flip(path: Path, place: int) -> None:
    """Flip the lowest bit of one byte."""
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def test_a_table_comes_back(empty: Layout, path: Path) -> None:
    """What was written is read, row for row, and its digest is the manifest's."""
    frame = read_table(empty, "cpu", KIND)
    assert frame["n"].to_list() == list(range(1, 51))
    assert table_digest(empty, "cpu", KIND) == sha256(path.read_bytes())
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "kind.parquet",
        "kind.parquet.manifest.json",
    ]


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_flipped_bit_in_a_table_is_refused(empty: Layout, path: Path, place: int) -> None:
    """A table with a flipped bit is refused in one message that names it."""
    flip(path, place)
    with pytest.raises(TableError, match=r"kind\.parquet is not what its manifest says") as caught:
        read_table(empty, "cpu", KIND)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [0, 60, -20, -1])
def test_a_flipped_bit_in_a_manifest_is_refused(empty: Layout, path: Path, place: int) -> None:
    """A manifest with a flipped bit is refused in one message that names it."""
    flip(manifest_path(path), place)
    with pytest.raises(DamageError, match=r"kind\.parquet\.manifest\.json") as caught:
        read_table(empty, "cpu", KIND)
    assert "\n" not in str(caught.value)


def test_half_a_table_is_missing(empty: Layout, path: Path) -> None:
    """A table without its manifest, or a manifest without its table, is missing."""
    raw = manifest_path(path).read_bytes()
    manifest_path(path).unlink()
    with pytest.raises(TableError, match=r"manifest\.json is missing"):
        read_table(empty, "cpu", KIND)
    manifest_path(path).write_bytes(raw)
    path.unlink()
    with pytest.raises(TableError, match=r"kind\.parquet is missing"):
        read_table(empty, "cpu", KIND)


def forge(path: Path, raw: bytes) -> None:
    """Replace a table's bytes, with a manifest that fits."""
    manifest = Manifest(table="kind", rows=1, sha256=sha256(raw), made_from={})
    path.write_bytes(raw)
    manifest_path(path).write_bytes(render(manifest))


def test_bytes_that_are_no_parquet(empty: Layout, path: Path) -> None:
    """A file that is what its manifest says, but no Parquet, is refused."""
    forge(path, b"not a table")
    with pytest.raises(TableError, match="is not Parquet"):
        read_table(empty, "cpu", KIND)


@pytest.mark.parametrize(
    ("other", "column"),
    [
        (pl.DataFrame({"n": [1]}), "row_id"),
        (pl.DataFrame({"row_id": ["a"], "n": ["1"]}), "n"),
        (pl.DataFrame({"row_id": ["a"], "n": [1]}), "name"),
    ],
)
def test_a_table_of_another_version(
    empty: Layout, path: Path, other: pl.DataFrame, column: str
) -> None:
    """A whole table with other columns is refused by the first that differs."""
    other.write_parquet(path)
    forge(path, path.read_bytes())
    with pytest.raises(TableError, match=f"column {column} is"):
        read_table(empty, "cpu", KIND)


def test_a_table_under_another_name(empty: Layout, path: Path) -> None:
    """A table and its manifest that were put under another table's name are refused."""
    other = empty.table("cpu", "other")
    path.rename(other)
    manifest_path(path).rename(manifest_path(other))
    renamed = Table(name="other", row="a row", key=("n",), **MADE, body=KIND.body)
    with pytest.raises(TableError, match=r"other\.parquet is not what its manifest says"):
        read_table(empty, "cpu", renamed)


def test_writing_again_replaces_both(empty: Layout, path: Path) -> None:
    """A table that is written again is read as the new one, never as a mixture."""
    write(empty, 3)
    assert read_table(empty, "cpu", KIND).height == 3
    assert read_document(manifest_path(path), Manifest).rows == 3


@pytest.mark.parametrize("size", [0, 100])
def test_a_full_disk_leaves_the_table_that_was_there(empty: Layout, path: Path, size: int) -> None:
    """Where a table cannot be written whole, the earlier one is read as before."""
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    with largest_file(size), pytest.raises(WriteError, match=re.escape(f"{path} was not written")):
        write(empty, 3)
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before
    assert read_table(empty, "cpu", KIND).height == 50


def test_the_bytes_do_not_depend_on_chunks(empty: Layout) -> None:
    """A frame in several chunks is written as the same bytes as a whole one."""
    rows = [{"n": n, "name": "x", "from_ids": ["e#1"]} for n in range(1, 9)]
    table = KIND.build(KIND.frame(rows), {"e#1"})
    parts = pl.concat([table[:3], table[3:]], rechunk=False)
    found = []
    for frame in (table, parts):
        write_table(empty, "cpu", KIND, frame, {})
        found.append(empty.table("cpu", "kind").read_bytes())
    assert found[0] == found[1]


def test_a_damaged_input_stops_the_stage(empty: Layout) -> None:
    """A stage that reads a damaged table writes nothing of its own."""
    write_study(empty)
    path = write(empty, 3)
    path.rename(empty.table("cpu", "latency"))
    manifest_path(path).rename(manifest_path(empty.table("cpu", "latency")))
    with pytest.raises(NearfreeError):
        write_boundaries(empty, "cpu", tolerances=(0.2,), epsilon=0.2)
    assert not empty.table("cpu", BOUNDARIES.name).exists()


def test_the_root_over_seals_changes_with_any_take(empty: Layout) -> None:
    """The digest of a scope's evidence changes with every take of it, and with no other scope's."""
    seen = []
    for scope, take in (("cpu", 1), ("cpu", 2), ("h20", 1)):
        write_study(empty, scope, take)
        seen.append(seals_digest(empty, "cpu"))
    assert list(seen[0]) == ["events/cpu"]
    assert seen[0] != seen[1] == seen[2]
