"""Disks that take no more: the writer stops, nothing torn is believed, the next attempt goes on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import latencies, make_latency, make_plan, measure_rounds, write_take
from nearfree.errors import WriteError
from nearfree.log.document import replace
from nearfree.log.events import LatencyMeasured, RunFailed
from nearfree.log.evidence import read_take
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.take import OpenTake, take_name

from log.child import LONG
from log.faults import damage, start_child

NAME = take_name("cpu", "dense", 1, LONG)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 16 pages and 16 files."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k,nr_inodes=16", "tmpfs"]
    mounted = subprocess.run(["mount", *options, folder], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a disk is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path) -> Path:
    """Write a file that leaves the disk without a free page."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return path
    pytest.fail("the disk has no end")


def points(layout: Layout) -> list[tuple[int, int]]:
    """Return the (round, n) of the long plan's sealed take."""
    data = [event.data for event in read_take(layout, NAME).events]
    return [(d.round, d.n) for d in data if isinstance(d, LatencyMeasured)]


WHOLE = [(number, n) for number in range(40) for n in (1, 2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 700, 1500, 9_999, 30_001])
def test_a_quota_stops_the_writer(layout: Layout, limit: int) -> None:
    """Short writes at a quota raise WriteError, close the writer, and cost only the torn tail."""
    with start_child("starve", layout.root, limit) as child:
        output, _ = child.communicate()
    lines = output.splitlines()
    path = layout.segment(NAME, 1)
    assert path.stat().st_size == limit, "the last write was not short"
    segment = read_segment(path, NAME.segment(1))
    assert segment.torn_bytes > 0
    seen = [(e.data.round, e.data.n) for e in segment.events if isinstance(e.data, LatencyMeasured)]
    if segment.events:
        assert lines[-3:] == ["first WriteError", "then LogError", "ended WriteError"]
        assert lines[:-3] == [f"{number} {n}" for number, n in seen]
    else:
        assert lines == ["ended WriteError"]
    write_take(layout, plan=LONG)
    assert points(layout) == WHOLE
    assert damage(layout.root) == []


def test_a_full_disk_stops_the_writer(disk: Path) -> None:
    """On a full disk a take fails with WriteError; with space again it goes on from its rounds."""
    layout = Layout(disk / "results")
    with pytest.raises(WriteError, match="No space left on device") as caught:
        write_take(layout, plan=LONG)
    assert "Free space" in caught.value.remedy
    segment = read_segment(layout.segment(NAME, 1), NAME.segment(1))
    assert not any(isinstance(e.data, RunFailed) for e in segment.events)
    acknowledged: list[int] = []

    def work(take: OpenTake) -> float:
        acknowledged.append(len(latencies(take)))
        return measure_rounds(take)

    subprocess.run(["mount", "-o", "remount,size=256k", disk], check=True)
    write_take(layout, plan=LONG, work=work)
    assert acknowledged[0] > 40
    assert points(layout) == WHOLE
    assert damage(layout.root) == []


def test_a_disk_that_is_read_only_asks_for_no_space(disk: Path) -> None:
    """On a read-only disk the error names permission, not space, and no file is left."""
    layout = Layout(disk / "results")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for write in (
        lambda: write_take(layout, plan=LONG),
        lambda: replace(disk / "table.json", b"{}"),
    ):
        with pytest.raises(WriteError, match="Read-only file system") as caught:
            write()
        assert "see that you may write there" in caught.value.remedy
    assert list(disk.iterdir()) == []


def test_a_disk_without_free_files_is_a_write_error(disk: Path) -> None:
    """Where no new file can be made, opening a segment raises WriteError."""
    layout = Layout(disk / "results")
    write_take(layout)
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012 (any of them may fail)
        for number in range(16):
            (disk / str(number)).touch()
    with pytest.raises(WriteError, match="No space left on device"):
        write_take(layout, take=2)


def test_no_space_for_the_seal(disk: Path) -> None:
    """If the disk fills before the seal, the take stays unsealed and the next attempt seals it."""
    layout, plan = Layout(disk / "results"), make_plan(rounds=3)

    def work(take: OpenTake) -> float:
        measure_rounds(take)
        while 4096 - take.writer.size % 4096 < 1024:
            take.append(make_latency(9), sync=False)
        fill(disk)
        return 0.5

    with pytest.raises(WriteError, match=r"seal\.json was not written"):
        write_take(layout, plan=plan, work=work)
    assert layout.takes() == []
    assert not [p for p in layout.events.rglob("*") if p.name.startswith(".")]
    (disk / "filler").unlink()
    seal = write_take(layout, plan=plan)
    assert [part.attempt for part in seal.segments] == [1, 2]
    assert damage(layout.root) == []
