"""`verify`: every file below a results root is accounted for."""

import os
import shutil
from pathlib import Path

import pytest
from conftest import make_latency, make_plan, make_started
from nearfree.cli import main
from nearfree.errors import LogError, TableError
from nearfree.log.document import (
    FolderManifest,
    check_table,
    manifest_path,
    read_document,
    render,
    replace,
)
from nearfree.log.line import close_line, sha256
from nearfree.log.names import Layout
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import OpenTake, take_name
from nearfree.log.verify import verify

from log.faults import damage, edit_line, findings_of, notices
from log.roots import write_sound_root

PLAN = make_plan()
NAME = take_name("cpu", "dense", 1, PLAN)
OTHER = take_name("cpu", "dense", 2, PLAN)
LINK = "is a link; put what it leads to in its place"


@pytest.fixture
def layout(layout: Layout) -> Layout:
    """Write a sound root."""
    return write_sound_root(layout)


def test_a_sound_root_is_clean(layout: Layout) -> None:
    """Of a sound root everything is counted and nothing is found."""
    summary = verify(layout.root)
    assert (summary.takes, summary.events, summary.tables, summary.figures) == (2, 22, 1, 1)
    assert summary.findings == ()
    assert not summary.damaged


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    """A folder without events/ is no results root, rather than a sound one."""
    with pytest.raises(LogError, match="holds no events/ folder"):
        verify(tmp_path)


def test_late_bytes_are_a_notice(layout: Layout) -> None:
    """What a writer appended after the seal is counted, reported, and no damage."""
    path = layout.segment(NAME, 1)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, b'{"late":1}\n')
    finally:
        os.close(fd)
    assert damage(layout.root) == []
    (finding,) = notices(layout.root)
    assert finding.message == "11 bytes after its sealed part are ignored"
    assert verify(layout.root).events == 22


def test_an_unsealed_attempt_is_a_notice(layout: Layout) -> None:
    """A segment without a seal is a notice with the count of its complete events."""
    take = OpenTake(layout, take_name("cpu", "dense", 3, PLAN), PLAN)
    take.start(make_started(PLAN))
    take.append(make_latency())
    take.writer.close()
    assert [f.message for f in notices(layout.root)] == ["is not sealed: 2 whole events"]
    with take.writer.path.open("ab") as file:
        file.write(b'{"spec')
    (finding,) = notices(layout.root)
    assert finding.message == "is not sealed: 2 whole events, and a torn tail of 6 bytes"
    assert damage(layout.root) == []


def test_a_damaged_unsealed_attempt_is_found(layout: Layout) -> None:
    """An edited line is damage before the seal as well as after it."""
    take = OpenTake(layout, take_name("cpu", "dense", 3, PLAN), PLAN)
    take.start(make_started(PLAN))
    take.append(make_latency())
    take.writer.close()
    edit_line(take.writer.path, 1, lambda body: body.replace(b'"attempt":1', b'"attempt":7'))
    assert len(findings_of(layout, take.writer.path)) == 1


def test_an_attempt_beside_a_seal_is_a_notice(layout: Layout) -> None:
    """An attempt that the seal does not name counts for nothing and is reported."""
    SegmentWriter(layout, NAME, 2).close()
    assert damage(layout.root) == []
    assert [f.message for f in notices(layout.root)] == [
        "was written beside a sealed take and is ignored"
    ]


def test_an_unknown_event_is_found_with_its_line(layout: Layout) -> None:
    """An event of a later version is reported with its file, its line and the way to read it."""
    name = take_name("cpu", "dense", 3, PLAN)
    with SegmentWriter(layout, name, 1) as writer:
        writer.append(make_started(PLAN))
    edit_line(writer.path, 1, lambda body: body.replace(b"started.v1", b"started.v2"))
    (finding,) = damage(layout.root)
    assert "line 1" in finding.message
    assert "version that wrote it" in finding.message


def test_a_renamed_segment_is_found(layout: Layout) -> None:
    """A sealed segment under another attempt's name is missing from its take."""
    layout.segment(NAME, 1).rename(layout.segment(NAME, 2))
    assert len(findings_of(layout, layout.seal(NAME))) == 1


def test_segments_that_changed_places_are_found(layout: Layout) -> None:
    """Two complete segments that swapped their names are both found."""
    one, two = layout.segment(NAME, 1), layout.segment(OTHER, 1)
    raw = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(raw)
    assert [f.path for f in damage(layout.root)] == [
        layout.seal(name).relative_to(layout.root).as_posix() for name in (NAME, OTHER)
    ]


def test_a_receipt_must_be_a_copy(layout: Layout) -> None:
    """A receipt that differs from its seal, or has no seal, is found; a missing receipt is not."""
    receipt = layout.receipt(NAME)
    receipt.write_bytes(close_line(b'{"version":1}') + b"\n")
    assert "is not a copy" in findings_of(layout, receipt)[0].message
    receipt.unlink()
    assert damage(layout.root) == []
    for path in (layout.seal(OTHER), layout.segment(OTHER, 1)):
        path.unlink()
    assert "which is gone" in findings_of(layout, layout.receipt(OTHER))[0].message


def test_a_receipt_of_the_ledger_must_be_a_copy(layout: Layout) -> None:
    """The ledger's receipt is compared with the ledger of its number."""
    receipt = layout.state / "ledger.json"
    receipt.write_bytes(b"{}\n")
    assert len(findings_of(layout, receipt)) == 1
    replace(receipt, (layout.ledgers / "000001.json").read_bytes())
    assert len(findings_of(layout, receipt)) == 1, "the tracked ledger is another one"


def test_a_table_and_its_manifest_need_each_other(layout: Layout) -> None:
    """A table without a manifest and a manifest without a table are both found."""
    table = layout.table("cpu", "latency")
    raw = manifest_path(table).read_bytes()
    manifest_path(table).unlink()
    assert len(findings_of(layout, table)) == 1
    manifest_path(table).write_bytes(raw)
    table.unlink()
    assert len(findings_of(layout, manifest_path(table))) == 1


def test_figures_and_the_report_need_their_manifests(layout: Layout) -> None:
    """A missing manifest, or a missing file that it names, is found once, with a remedy."""
    figure, page = layout.root / "figures/cpu/latency.svg", layout.root / "report/index.html"
    for path, manifest in ((figure, "figures.json"), (page, "manifest.json")):
        beside = path.with_name(manifest)
        raw = beside.read_bytes()
        beside.unlink()
        folder = beside.relative_to(layout.root).parts[0]
        (finding,) = (
            candidate for candidate in damage(layout.root) if candidate.path.startswith(folder)
        )
        assert finding.path == beside.relative_to(layout.root).as_posix()
        assert finding.message.endswith(f"run `nearfree {folder}` again")
        beside.write_bytes(raw)
        path.write_bytes(path.read_bytes() + b" ")
        assert "is not what its manifest says" in findings_of(layout, path)[0].message
        path.unlink()
        assert "is gone" in findings_of(layout, path)[0].message


def test_drawings_are_counted_and_other_files_are_foreign(layout: Layout) -> None:
    """Listed SVG files count as figures; a file that no manifest lists does not belong there."""
    folder = layout.root / "figures" / "cpu"
    listed = {}
    for name in ("latency.svg", "work.svg", "latency.html"):
        (folder / name).write_text(name)
        listed[name] = sha256(name.encode())
    replace(folder / "figures.json", render(FolderManifest(files=listed)))
    assert verify(layout.root).findings == ()
    assert verify(layout.root).figures == 2
    for path in ("figures/cpu/more.svg", "report/more.html"):
        (layout.root / path).write_text("more")
        (finding,) = findings_of(layout, layout.root / path)
        assert finding.message == "does not belong here; move it elsewhere"
    (folder / "figures.json").write_text("damaged")
    assert [finding.path for finding in damage(layout.root)] == [
        "figures/cpu/figures.json", "report/more.html",
    ]  # fmt: skip


def test_a_root_without_figures_and_report_is_sound(layout: Layout) -> None:
    """What was never drawn or written is not missed."""
    for name in ("figures", "report"):
        shutil.rmtree(layout.root / name)
    assert verify(layout.root).findings == ()


@pytest.mark.parametrize(
    "path",
    ["events", "events/cpu", "ledger/local", "state/cpu", "tables/cpu", "figures/cpu", "report"],
)
def test_a_link_to_a_folder_is_found(layout: Layout, tmp_path: Path, path: str) -> None:
    """A link to a folder is damage, because the linked folder can change unnoticed."""
    there = layout.root / path
    there.rename(tmp_path / "elsewhere")
    there.symlink_to(tmp_path / "elsewhere")
    assert [finding.message for finding in findings_of(layout, there)] == [LINK]


@pytest.mark.parametrize(
    "path", ["tables/cpu/latency.parquet", "figures/cpu/latency.svg", "report/index.html",
             "ledger/000001.json", "state/ledger.json"],
)  # fmt: skip
def test_a_link_to_a_file_is_found(layout: Layout, tmp_path: Path, path: str) -> None:
    """A link is damage in every folder outside the log."""
    there = layout.root / path
    there.rename(tmp_path / "elsewhere")
    there.symlink_to(tmp_path / "elsewhere")
    assert LINK in [finding.message for finding in findings_of(layout, there)]


def test_a_link_to_a_segment_is_read_through(layout: Layout, tmp_path: Path) -> None:
    """Roots over another log link its segments and seals; what they lead to is verified."""
    for number, path in enumerate((layout.segment(NAME, 1), layout.seal(NAME))):
        path.rename(tmp_path / str(number))
        path.symlink_to(tmp_path / str(number))
    assert verify(layout.root).findings == ()
    (tmp_path / "0").write_bytes(b"x" + (tmp_path / "0").read_bytes()[1:])
    assert len(findings_of(layout, layout.seal(NAME))) == 1


def test_a_folder_in_the_place_of_a_table_is_found(layout: Layout) -> None:
    """A folder of a table's name is no table."""
    table = layout.table("cpu", "latency")
    table.unlink()
    table.mkdir()
    assert "is gone" in findings_of(layout, manifest_path(table))[0].message
    with pytest.raises(TableError, match="is missing"):
        check_table(table)


def make_again(layout: Layout) -> Path:
    """Put a root and its ledger's config below as_of/, and return its folder."""
    again = layout.root / "as_of" / "000001"
    for name in ("events", "tables", "figures", "report"):
        shutil.copytree(layout.root / name, again / "results" / name)
    shutil.copytree(layout.root.parent / "config", again / "config")
    (again / "other_code.txt").write_text("made by other code\n")
    return again


@pytest.mark.parametrize(
    "path",
    ["results/tables/cpu/latency.parquet", "results/report/index.html", "results/more.txt",
     "config/config.yaml", "config/more.txt", "more.txt", "../more.txt"],
)  # fmt: skip
def test_results_of_earlier_ledgers_are_verified(layout: Layout, path: str) -> None:
    """What was made again is checked to the byte, with its config; other files are foreign."""
    again = make_again(layout)
    assert verify(layout.root).findings == ()
    with (again / path).open("ab") as file:
        file.write(b" ")
    paths = {finding.path for finding in damage(layout.root)}
    expected = (again / path).resolve().relative_to(layout.root).as_posix()
    assert paths == {expected if path != "config/config.yaml" else "as_of/000001/config"}


def test_results_of_a_tracked_ledger_have_its_config(layout: Layout) -> None:
    """Results made again for a tracked ledger are compared with that ledger, not a local one."""
    again = make_again(layout)
    again.rename(again.with_name("adopted_000001"))
    shutil.rmtree(layout.ledgers / "local")
    (layout.state / "ledger.json").unlink()
    assert verify(layout.root).findings == ()
    (layout.root / "as_of/adopted_000001/config/config.yaml").write_text("here: [h20]\n")
    (finding,) = damage(layout.root)
    ledger = layout.ledgers / "000001.json"
    assert finding.message == f"is not the config of {ledger}; make it again"
    (layout.root / "as_of/adopted_000001/results/report/index.html").write_text("other")
    assert "as_of/adopted_000001/results/report/index.html" in {
        found.path for found in damage(layout.root)
    }


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_only_ledgers_have_results_below_as_of(layout: Layout, tmp_path: Path, what: str) -> None:
    """What is no folder of a ledger's number does not belong below as_of/, and is not read."""
    again = make_again(layout)
    other = again.with_name("000002" if what != "folder" else "latest")
    if what == "file":
        other.write_text("text")
    elif what == "folder":
        other.mkdir()
        (other / "more.txt").write_text("text")
    else:
        shutil.copytree(again, tmp_path / "elsewhere")
        other.symlink_to(tmp_path / "elsewhere")
    (finding,) = damage(layout.root)
    assert finding.path == f"as_of/{other.name}"
    expected = LINK if what == "link" else "does not belong here; move it elsewhere"
    assert finding.message == expected


def test_results_of_an_earlier_ledger_without_a_log_are_found(layout: Layout) -> None:
    """A root below as_of/ that holds no log is found, and stops no further check."""
    again = make_again(layout)
    shutil.rmtree(again / "results" / "events")
    assert [finding.path for finding in damage(layout.root)] == ["as_of/000001"]


def test_names_that_are_no_text_are_shown_in_their_line(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file's name with a control code, a line break or bytes that are no UTF-8 is escaped."""
    for name in (b"\xff\xfe", b"x\n\x1b[2J0 damaged"):
        os.close(os.open(os.fsencode(layout.root) + b"/" + name, os.O_CREAT))
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(layout.root)])
    out = capsys.readouterr().out
    assert ended.value.code == 2
    assert len(out.splitlines()) == 3
    assert "\\udcff\\udcfe" in out
    assert "x\\n\\x1b[2J0 damaged" in out


def test_a_manifest_may_name_what_is_no_path(layout: Layout) -> None:
    """A name that no file can have is gone, rather than the end of the check."""
    manifest = layout.root / "figures" / "cpu" / "figures.json"
    listed = read_document(manifest, FolderManifest).files
    replace(manifest, render(FolderManifest(files={**listed, "a\0b.svg": "0" * 64})))
    assert "is gone" in damage(layout.root)[0].message


@pytest.mark.parametrize("what", ["link", "folder"])
def test_something_else_in_the_place_of_a_seal_is_found(layout: Layout, what: str) -> None:
    """A dangling link or a folder in a seal's place is found, and stops no further check."""
    seal = layout.seal(NAME)
    seal.unlink()
    if what == "link":
        seal.symlink_to("gone")
    else:
        seal.mkdir()
    layout.receipt(OTHER).write_bytes(b"")
    assert len(findings_of(layout, seal)) == 1
    assert len(findings_of(layout, layout.receipt(OTHER))) == 1


def test_a_receipt_that_leads_nowhere_is_found(layout: Layout) -> None:
    """A dangling link in a receipt's place is found, and stops no further check."""
    receipt = layout.receipt(NAME)
    receipt.unlink()
    receipt.symlink_to("gone")
    layout.table("cpu", "latency").write_bytes(b"")
    assert len(findings_of(layout, receipt)) == 1
    assert len(findings_of(layout, layout.table("cpu", "latency"))) == 1
