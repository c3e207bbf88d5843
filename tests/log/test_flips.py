"""Flipped bits: `verify` finds any one of them, in any file."""

from pathlib import Path

import pytest
from conftest import write_payloads
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.core.plan import RetractPlan
from nearfree.log.document import manifest_path
from nearfree.log.events import ObservationRetracted
from nearfree.log.ledger import write_ledger
from nearfree.log.names import Layout
from nearfree.log.take import take_name
from nearfree.log.verify import verify
from once import one_in

from log.faults import unnoticed
from log.roots import make_table

PLAN = RetractPlan(target="cpu/dense/1-0123abcd", reason="a small plan")
NAME = take_name("cpu", "dense", 1, PLAN)


def bits(path: Path) -> range:
    """Return the numbers of all bits of a file."""
    return range(8 * path.stat().st_size)


def some_bits(path: Path) -> range:
    """Return those of them that a commit draws: one in four, all with NEARFREE_CASES=all."""
    return bits(path)[one_in(4, path.name)]


def write_small_take(root: Path) -> Layout:
    """Write a take that is as small as can be."""
    layout = Layout(root)
    write_payloads(layout, NAME, PLAN, ObservationRetracted(target=PLAN.target, reason="no"))
    return layout


def write_small_ledger(layout: Layout, config: Path) -> Path:
    """Write a ledger of what there is, and of a short config."""
    config.mkdir()
    (config / "config.yaml").write_text("here: []\n")
    return write_ledger(layout, layout.ledgers / "local", config)


def test_every_bit_of_a_seal(tmp_path: Path) -> None:
    """Any flipped bit of a seal is found, without a receipt's or a ledger's help."""
    layout = write_small_take(tmp_path)
    layout.receipt(NAME).unlink()
    path = layout.seal(NAME)
    assert unnoticed(tmp_path, path, some_bits(path)) == []
    assert verify(tmp_path).findings == ()


def test_every_bit_of_a_receipt(tmp_path: Path) -> None:
    """Any flipped bit of a receipt is found."""
    path = write_small_take(tmp_path).receipt(NAME)
    assert unnoticed(tmp_path, path, some_bits(path)) == []
    assert verify(tmp_path).findings == ()


def test_every_bit_of_a_table(tmp_path: Path) -> None:
    """Any flipped bit of a table or of its manifest is found."""
    (tmp_path / "events").mkdir()
    table = make_table(Layout(tmp_path).table("cpu", "latency"))
    for path in (table, manifest_path(table)):
        assert unnoticed(tmp_path, path, some_bits(path)) == []
    assert verify(tmp_path).findings == ()


def test_every_bit_of_a_ledger(tmp_path: Path) -> None:
    """Any flipped bit of a ledger is found."""
    layout = Layout(tmp_path / "results")
    layout.events.mkdir(parents=True)
    path = write_small_ledger(layout, tmp_path / "config")
    assert unnoticed(layout.root, path, some_bits(path)) == []
    assert verify(layout.root).findings == ()


@pytest.fixture(scope="module")
def take(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Write a take for all examples of a property."""
    return write_small_take(tmp_path_factory.mktemp("take"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table of a hundred kilobytes for all examples of a property."""
    root = tmp_path_factory.mktemp("table")
    (root / "events").mkdir()
    return make_table(Layout(root).table("cpu", "latency"), bytes(range(256)) * 400)


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_any_bit_of_a_segment(take: Layout, data: st.DataObject) -> None:
    """Any flipped bit of a sealed segment is found."""
    path = take.segment(NAME, 1)
    assert unnoticed(take.root, path, [data.draw(st.sampled_from(bits(path)))]) == []


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_any_bit_of_a_large_table(table: Path, data: st.DataObject) -> None:
    """Any flipped bit of a large table is found."""
    root = table.parents[2]
    assert unnoticed(root, table, [data.draw(st.sampled_from(bits(table)))]) == []


@pytest.mark.slow
def test_a_whole_log(tmp_path: Path) -> None:
    """With everything beside it, any bit of a segment is found, and one of each other byte.

    All bits of the other files are flipped above, where fewer files bear witness to them. Of all
    these a commit draws a share.
    """
    layout = write_small_take(tmp_path / "results")
    make_table(layout.table("cpu", "latency"))
    write_small_ledger(layout, tmp_path / "config")
    files = [path for path in layout.root.rglob("*") if path.is_file()]
    assert len(files) == 6
    for path in files:
        step = 1 if path == layout.segment(NAME, 1) else 9
        assert unnoticed(layout.root, path, bits(path)[::step][one_in(5, path.name)]) == []
    assert verify(layout.root).findings == ()
