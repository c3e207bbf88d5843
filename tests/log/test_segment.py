"""The writer of a segment."""

import errno
import fcntl
import os

import pytest
from conftest import CLOCK, make_latency, make_setting
from msgspec import json
from nearfree.errors import BusyError, LogError, WriteError
from nearfree.log.events import Payload, RunFailed
from nearfree.log.line import GENESIS, line_head
from nearfree.log.names import Layout, TakeName
from nearfree.log.segment import SegmentWriter, utc_now

NAME = TakeName("cpu", "dense", 1, "0123abcd")


@pytest.fixture
def writer(layout: Layout) -> SegmentWriter:
    """Open the first segment of a take under a fixed clock."""
    return SegmentWriter(layout, NAME, 1, now=lambda: CLOCK)


def test_the_line_format_is_pinned(writer: SegmentWriter) -> None:
    """A line holds the envelope, the data, the chain and the hash, in this order."""
    writer.append(RunFailed(error="no memory", remedy="Take less"))
    line = writer.path.read_bytes()
    assert line.endswith(b"\n")
    assert line_head(line[:-1]) == writer.head
    assert list(json.decode(line).items())[:-1] == [
        ("specversion", "1.0"),
        ("type", "nearfree.run.failed.v1"),
        ("id", "1"),
        ("source", "cpu/dense/1-0123abcd.1"),
        ("time", CLOCK),
        ("datacontenttype", "application/json"),
        ("data", {"error": "no memory", "remedy": "Take less"}),
        ("sequence", "00000001"),
        ("prevhash", GENESIS),
    ]


def test_each_line_names_the_one_before(writer: SegmentWriter) -> None:
    """Ids count from one, `prevhash` is the hash of the line before, and sizes add up."""
    ids = [writer.append(make_latency(number)) for number in range(12)]
    assert ids == [f"cpu/dense/1-0123abcd.1#{number}" for number in range(1, 13)]
    lines = writer.path.read_bytes().splitlines()
    heads = [GENESIS, *map(line_head, lines)]
    assert [json.decode(line)["prevhash"] for line in lines] == heads[:-1]
    assert writer.size == writer.path.stat().st_size
    assert (writer.events, writer.head) == (12, heads[-1])


def test_the_clock_is_utc() -> None:
    """Times are RFC 3339 in UTC with microseconds, so that they sort as text."""
    assert len(utc_now()) == len(CLOCK)
    assert utc_now()[-1] == "Z"
    assert utc_now() < utc_now()


def test_a_segment_is_never_opened_twice(writer: SegmentWriter, layout: Layout) -> None:
    """A second writer of one name is refused, while the first lives and after it."""
    writer.append(make_latency())
    before = writer.path.read_bytes()
    with pytest.raises(BusyError, match=r"cpu/dense/1-0123abcd\.1 exists already"):
        SegmentWriter(layout, NAME, 1)
    writer.close()
    with pytest.raises(BusyError):
        SegmentWriter(layout, NAME, 1)
    assert writer.path.read_bytes() == before


def test_a_closed_writer_takes_no_more(layout: Layout) -> None:
    """After `close`, which may come twice, appending and syncing are refused."""
    with SegmentWriter(layout, NAME, 1) as writer:
        writer.append(make_latency())
    writer.close()
    before = writer.path.read_bytes()
    for act in (lambda: writer.append(make_latency()), writer.sync):
        with pytest.raises(LogError, match="is closed"):
            act()
    assert writer.path.read_bytes() == before


def test_an_event_is_synced_unless_told_otherwise(
    writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`append` makes an event durable by default; with `sync=False` that waits for `sync`."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(writer.events))
    writer.append(make_latency())
    assert synced == [1]
    writer.append(make_latency(), sync=False)
    assert synced == [1]
    writer.sync()
    assert synced == [1, 2]


def test_a_new_segment_is_durable_in_its_folder(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a segment syncs its folder, and each folder above it that takes in a new one.

    Or a power cut could drop the whole file.
    """
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    SegmentWriter(layout, NAME, 1).close()
    folder = layout.segment(NAME, 1).parent
    above = (layout.root.parent, layout.root, layout.events, folder.parent)
    assert synced == [path.stat().st_ino for path in (*above, folder)]
    SegmentWriter(layout, NAME, 2).close()
    assert synced[5:] == [folder.stat().st_ino]


def test_a_file_in_the_place_of_the_folder_is_a_write_error(layout: Layout) -> None:
    """A file in the place of the stream's folder is a write error, not an existing segment."""
    folder = layout.segment(NAME, 1).parent
    folder.parent.mkdir(parents=True)
    folder.touch()
    with pytest.raises(WriteError):
        SegmentWriter(layout, NAME, 1)


def test_a_file_system_without_locks_is_told(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without file locks nothing is written, and the message says that locks are missing."""

    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LogError, match="cannot be locked: No locks available") as caught:
        SegmentWriter(layout, NAME, 1)
    assert "flock" in caught.value.remedy


def test_everybody_may_read_a_segment(writer: SegmentWriter) -> None:
    """A segment is its owner's to write and everybody's to read, as far as the umask allows."""
    mask = os.umask(0)
    os.umask(mask)
    assert writer.path.stat().st_mode & 0o777 == 0o644 & ~mask


def test_a_failing_sync_closes_the_writer(
    writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync nothing is known of the file any more, so the writer stops for good."""
    writer.append(make_latency())

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(WriteError, match="Input/output error") as caught:
            writer.append(make_latency())
    assert "run the same command again" in caught.value.remedy
    with pytest.raises(LogError, match="is closed"):
        writer.append(make_latency())


def test_a_folder_that_cannot_be_synced_leaves_no_open_writer(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment whose folder entry is not durable is given up as a failed write, and unlocked."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(WriteError, match="Input/output error"):
            SegmentWriter(layout, NAME, 1)


@pytest.mark.parametrize(
    "event",
    [
        make_latency(wall_us=(1.0, float("nan"))),
        make_latency(wall_us=(1.0, float("inf"))),
        make_latency(load_1m=float("nan")),
        make_latency(order="1"),
        make_latency(setting=make_setting(batch=0)),
        make_latency(cache="tepid"),
        RunFailed(error="no file caf\udce9", remedy="Rename it"),
    ],
    ids=["nan", "inf", "optional nan", "text", "range", "literal", "no UTF-8"],
)
def test_what_would_not_read_back_is_refused(writer: SegmentWriter, event: Payload) -> None:
    """An event that would not read back as it is, NaN for one, is refused, not written.

    Once written it would stop every reader, and no later attempt could seal the take.
    """
    writer.append(make_latency())
    before = writer.path.read_bytes()
    with pytest.raises(LogError):
        writer.append(event)
    assert writer.path.read_bytes() == before
