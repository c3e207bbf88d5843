"""Manifests: a table is believed only together with its manifest."""

from pathlib import Path

import pytest
from nearfree.errors import DamageError, TableError
from nearfree.log.manifest import check_table, manifest_path

from log.faults import flip
from log.roots import make_table


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
