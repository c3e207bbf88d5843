"""Foreign files and leftovers: `verify` distinguishes them."""

import os
from pathlib import Path

import pytest
from conftest import make_plan
from nearfree.log.document import replace
from nearfree.log.names import Layout
from nearfree.log.take import take_name

from log.faults import damage, findings_of, notices
from log.roots import write_sound_root

NAME = take_name("cpu", "dense", 1, make_plan())


@pytest.fixture
def layout(layout: Layout) -> Layout:
    """Write a sound root."""
    return write_sound_root(layout)


@pytest.mark.parametrize(
    "path",
    [
        "notes.txt",
        ".hidden",
        "events/notes.txt",
        "events/cpu/notes.txt",
        "events/cpu/dense/notes.jsonl",
        "events/cpu/dense/1-0123abcd.1.jsonl.bak",
        "events/cpu/dense/deep/1-0123abcd.1.jsonl",
        "events/CPU/dense/1-0123abcd.1.jsonl",
        "ledger/notes.txt",
        "ledger/1.json",
        "ledger/local/notes.txt",
        "ledger/local/local",
        "state/notes.txt",
        "state/cpu/dense/notes.json",
        "tables/notes.txt",
        "tables/cpu/latency.csv",
    ],
)
def test_a_file_that_does_not_belong_is_found(layout: Layout, path: str) -> None:
    """A file that no rule of the layout explains is found in any folder."""
    replace(layout.root / path, b"who put this here\n")
    assert len(findings_of(layout, layout.root / path)) == 1


@pytest.mark.parametrize("what", ["segment", "seal", "receipt", "ledger", "as_of"])
def test_a_pipe_in_the_place_of_a_file_is_found(layout: Layout, what: str) -> None:
    """A pipe in the place of a file is reported, and reading does not wait for a writer."""
    path = {
        "segment": layout.segment(NAME, 1),
        "seal": layout.seal(NAME),
        "receipt": layout.receipt(NAME),
        "ledger": layout.ledgers / "local" / "000009.json",
        "as_of": layout.root / "as_of/000001/config/more.yaml",
    }[what]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    messages = "\n".join(f"{finding.path} {finding.message}" for finding in damage(layout.root))
    assert path.name in messages


@pytest.mark.parametrize("ending", [".bak", ".txt", ""])
def test_a_copy_of_a_receipt_is_found(layout: Layout, ending: str) -> None:
    """A copy of a receipt under another ending is not the receipt of anything."""
    copy = layout.receipt(NAME).with_suffix(ending)
    copy.write_bytes(layout.receipt(NAME).read_bytes())
    assert len(findings_of(layout, copy)) == 1


def test_a_folder_that_does_not_belong_is_found(layout: Layout) -> None:
    """A foreign folder beside events/ is one finding."""
    replace(layout.root / "backup" / "events" / "notes.txt", b"who put this here\n")
    assert [finding.path for finding in damage(layout.root)] == ["backup"]


@pytest.mark.parametrize("folder", ["ledger", "state", "tables"])
def test_a_file_in_the_place_of_a_folder_is_found(tmp_path: Path, folder: str) -> None:
    """A file that has the name of one of the root's folders is found."""
    (tmp_path / "events").mkdir()
    (tmp_path / folder).touch()
    assert [finding.path for finding in damage(tmp_path)] == [folder]


@pytest.mark.parametrize(
    "path",
    [
        "events/cpu/dense/.1-0123abcd.seal.json.99",
        "ledger/.000002.json.99",
        "ledger/local/.000002.json.99",
        "state/.ledger.json.99",
        "state/cpu/dense/.1-0123abcd.json.99",
        "tables/cpu/.latency.parquet.manifest.json.99",
        "tables/cpu/.latency.parquet.99",
    ],
)
def test_a_leftover_of_a_killed_write_is_a_notice(layout: Layout, path: str) -> None:
    """A partial file that a killed process left is worth knowing, but no damage."""
    replace(layout.root / path, b"{")
    assert damage(layout.root) == []
    assert [finding.path for finding in notices(layout.root)] == [path]
    assert "interrupted write" in notices(layout.root)[0].message
