"""Flipped bits: `verify` finds any one of them, in any file."""

from pathlib import Path

import pytest
from conftest import make_latency, write_payloads
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.events.ledger import current_seals, write_ledger
from nearfree.events.manifest import manifest_path
from nearfree.events.names import Layout
from nearfree.events.take import take_name
from nearfree.events.types import ObservationRetracted
from nearfree.events.verify import verify
from nearfree.settings import RetractPlan

from events.faults import damage, unnoticed
from events.test_manifest import make_table

PLAN = RetractPlan(target="cpu/dense/1-0123abcd", reason="a small plan")
NAME = take_name("cpu", "dense", 1, PLAN)


def write_root(root: Path, *, ledgers: bool) -> Layout:
    """Write a root that is as small as can be: a take, a table, and ledgers if asked."""
    layout = Layout(root)
    write_payloads(layout, NAME, PLAN, ObservationRetracted(target=PLAN.target, reason="no"))
    make_table(layout.table("cpu", "latency"))
    config = root.parent / "config"
    config.mkdir(exist_ok=True)
    for folder in (layout.ledgers, layout.ledgers / "local") if ledgers else ():
        write_ledger(layout, folder, current_seals(layout), config)
    assert verify(root).findings == ()
    return layout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Write a root without ledgers, so that nothing else can notice a flip."""
    return write_root(tmp_path_factory.mktemp("bare") / "results", ledgers=False)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Write a root with ledgers."""
    return write_root(tmp_path_factory.mktemp("full") / "results", ledgers=True)


def bits(path: Path) -> range:
    """Return the numbers of all bits of a file."""
    return range(8 * path.stat().st_size)


def test_every_bit_of_a_seal(bare: Layout) -> None:
    """Any flipped bit of a seal is found without a ledger's or a receipt's help."""
    receipt = bare.receipt(NAME)
    raw = receipt.read_bytes()
    receipt.unlink()
    assert unnoticed(bare.root, bare.seal(NAME), bits(bare.seal(NAME))) == []
    receipt.write_bytes(raw)


def test_every_bit_of_a_receipt(bare: Layout) -> None:
    """Any flipped bit of a receipt is found."""
    assert unnoticed(bare.root, bare.receipt(NAME), bits(bare.receipt(NAME))) == []


def test_every_bit_of_a_table(bare: Layout) -> None:
    """Any flipped bit of a table or of its manifest is found."""
    table = bare.table("cpu", "latency")
    for path in (table, manifest_path(table)):
        assert unnoticed(bare.root, path, bits(path)) == []


def test_every_bit_of_a_ledger(full: Layout) -> None:
    """Any flipped bit of a ledger is found."""
    path = full.ledgers / "000001.json"
    assert unnoticed(full.root, path, bits(path)) == []


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_any_bit_of_a_segment(bare: Layout, data: st.DataObject) -> None:
    """Any flipped bit of a sealed segment is found."""
    path = bare.segment(NAME, 1)
    bit = data.draw(st.sampled_from(bits(path)))
    assert unnoticed(bare.root, path, iter([bit])) == []


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_any_bit_of_a_large_table(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any flipped bit of a table of a hundred kilobytes is found."""
    root = tmp_path_factory.getbasetemp() / "large"
    path = Layout(root).table("cpu", "latency")
    if not path.exists():
        (root / "events").mkdir(parents=True)
        make_table(path, bytes(range(256)) * 400)
    assert damage(root) == []
    assert unnoticed(root, path, iter([data.draw(st.sampled_from(bits(path)))])) == []


@pytest.mark.slow
def test_every_bit_of_a_whole_log(tmp_path: Path) -> None:
    """Any flipped bit of any file of a small log is found."""
    layout = write_root(tmp_path / "results", ledgers=True)
    other = take_name("cpu", "dense", 2, PLAN)
    write_payloads(layout, other, PLAN, make_latency())
    files = [path for path in layout.root.rglob("*") if path.is_file()]
    assert len(files) == 2 * 3 + 2 + 2
    for path in files:
        assert unnoticed(layout.root, path, bits(path)) == []
