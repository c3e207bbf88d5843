"""Reading segments: damage is found, torn tails are not damage, unknown events are named."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import make_latency, make_plan, make_started
from nearfree.errors import DamageError, LogError
from nearfree.log.line import close_line
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import Segment, parse_segment, read_segment
from nearfree.log.segment import SegmentWriter

from log.faults import edit_line

NAME = TakeName("cpu", "dense", 1, "0123abcd")


@pytest.fixture
def path(layout: Layout) -> Path:
    """Write a segment of a start and three observations, and return its path."""
    with SegmentWriter(layout, NAME, 1) as writer:
        writer.append(make_started(make_plan()))
        for n in (1, 2, 4):
            writer.append(make_latency(0, n))
    return writer.path


def read(path: Path) -> Segment:
    """Read the segment under the name that it was written with."""
    return read_segment(path, NAME.segment(1))


def test_whole_lines_are_believed(path: Path) -> None:
    """A segment gives its events in order, where each ends, and the hash of each line."""
    segment = read(path)
    raw = path.read_bytes()
    assert [event.id for event in segment.events] == ["1", "2", "3", "4"]
    assert segment.events[2].data == make_latency(0, 2)
    assert segment.events[2].event_id == "cpu/dense/1-0123abcd.1#3"
    assert [raw[end - 1 : end] for end in segment.ends] == [b"\n"] * 4
    assert (segment.size, segment.torn_bytes) == (len(raw), 0)
    assert len(set(segment.heads)) == 4


def test_an_empty_segment_is_sound(path: Path) -> None:
    """A writer killed before its first line leaves a segment without events."""
    path.write_bytes(b"")
    assert read(path).events == ()
    assert read(path).torn_bytes == 0


@pytest.mark.parametrize("stands_in", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_plain_file_is_not_waited_for(
    path: Path, stands_in: Callable[[Path], None]
) -> None:
    """A pipe that nobody writes and a device without an end are refused, not read."""
    path.unlink()
    stands_in(path)
    with pytest.raises(LogError, match="is no plain file"):
        read(path)


def test_a_torn_tail_is_no_damage(path: Path) -> None:
    """Wherever the last line is cut, the lines before it are believed and the rest is torn."""
    raw = path.read_bytes()
    ends = (0, *read(path).ends)
    for cut in range(len(raw)):
        complete = max(i for i, end in enumerate(ends) if end <= cut)
        segment = parse_segment(raw[:cut], NAME.segment(1), path)
        assert len(segment.events) == complete
        assert segment.torn_bytes == cut - ends[complete]


def test_a_line_without_its_newline_is_torn(path: Path) -> None:
    """A last line that lacks only the newline was never acknowledged, so it does not count."""
    path.write_bytes(path.read_bytes()[:-1])
    assert len(read(path).events) == 3


def drop(lines: list[bytes]) -> list[bytes]:
    """Delete the third line."""
    return lines[:2] + lines[3:]


def swap(lines: list[bytes]) -> list[bytes]:
    """Swap the second and the third line."""
    return [lines[0], lines[2], lines[1], *lines[3:]]


def repeat(lines: list[bytes]) -> list[bytes]:
    """Write the third line twice."""
    return lines[:3] + lines[2:]


def behead(lines: list[bytes]) -> list[bytes]:
    """Delete the first line."""
    return lines[1:]


def blank(lines: list[bytes]) -> list[bytes]:
    """Put an empty line in between."""
    return [*lines[:2], b"", *lines[2:]]


def edit(lines: list[bytes]) -> list[bytes]:
    """Change a number in the third line."""
    return [*lines[:2], lines[2].replace(b'"n":2', b'"n":3'), *lines[3:]]


def edit_last(lines: list[bytes]) -> list[bytes]:
    """Change a number in the last line, which no further line vouches for."""
    return [*lines[:3], lines[3].replace(b'"n":4', b'"n":3'), *lines[4:]]


def respell(lines: list[bytes]) -> list[bytes]:
    """Spell a number in another way that means the same."""
    return [*lines[:2], lines[2].replace(b"14.5", b"14.50"), *lines[3:]]


@pytest.mark.parametrize("fault", [drop, swap, repeat, behead, blank, edit, edit_last, respell])
def test_changed_lines_are_damage(path: Path, fault: Callable[[list[bytes]], list[bytes]]) -> None:
    """A deleted, swapped, repeated, inserted or edited line is damage, and its place is named."""
    lines = path.read_bytes().split(b"\n")
    changed = fault(lines)
    assert changed != lines
    path.write_bytes(b"\n".join(changed))
    with pytest.raises(DamageError, match=r"\.jsonl line [1-4] "):
        read(path)


def test_a_forged_line_breaks_the_next(path: Path) -> None:
    """An edited line with a recomputed hash does not match `prevhash` of the next line."""
    edit_line(path, 2, lambda body: body.replace(b'"n":1', b'"n":3'))
    with pytest.raises(DamageError, match=r"line 3 does not follow the line before it"):
        read(path)


def test_a_line_of_another_segment_is_damage(path: Path, layout: Layout) -> None:
    """A line moved from another segment is damage, even as the first line of its chain."""
    with SegmentWriter(layout, NAME, 2) as other:
        other.append(make_started(make_plan()))
    path.write_bytes(other.path.read_bytes())
    with pytest.raises(DamageError, match=r"line 1 says it is cpu/dense/1-0123abcd\.2#1"):
        read(path)


@pytest.mark.parametrize("fields", [("id",), ("sequence",), ("id", "sequence")])
def test_a_wrong_place_is_damage(path: Path, fields: tuple[str, ...]) -> None:
    """A last line with another id or sequence than its place is damage, forged hash or not."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    for field in fields:
        width = 8 if field == "sequence" else 1
        old, new = (f'"{field}":"{number:0{width}}"'.encode() for number in (2, 7))
        edit_line(path, 2, lambda body, old=old, new=new: body.replace(old, new))
    with pytest.raises(DamageError, match="line 2 says it is"):
        read(path)


def test_a_renamed_segment_is_damage(path: Path) -> None:
    """A segment under another name is damage."""
    moved = path.rename(path.with_name("1-0123abcd.2.jsonl"))
    with pytest.raises(DamageError, match="dropped, swapped or moved"):
        read_segment(moved, NAME.segment(2))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"measured.v1", b"measured.v2"),
        (b"latency.measured", b"latency.guessed"),
        (b'"n":4', b'"n":4,"colour":"red"'),
        (b'"n":4', b'"n":"four"'),
        (b'"sequence":"00000004"', b'"sequence":"00000004","subject":"x"'),
        (b'"specversion":"1.0"', b'"specversion":"2.0"'),
        (b'"cold"', b'"\xff"'),
    ],
    ids=["version", "type", "field", "kind", "attribute", "envelope", "no UTF-8"],
)
def test_an_unknown_event_is_named(path: Path, old: bytes, new: bytes) -> None:
    """A valid line of an unknown type, version or field is refused with its place and a remedy."""
    edit_line(path, 4, lambda body: body.replace(old, new))
    with pytest.raises(LogError, match=r"1-0123abcd\.1\.jsonl line 4 holds an event") as caught:
        read(path)
    assert not isinstance(caught.value, DamageError)
    assert "version that wrote it" in caught.value.remedy


def test_a_plan_that_is_refused_today_is_named(path: Path) -> None:
    """A valid line whose plan this version refuses is named by its place, too."""
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    content = path.read_bytes()
    deep = b'"models":{"a":{"b":' + b"[" * 200_000 + b"]" * 200_000 + b'}},"environment"'
    for old, new in ((b"[1,2,4]", b"[2,4]"), (b'"environment"', deep)):
        path.write_bytes(content)
        edit_line(path, 1, lambda body, old=old, new=new: body.replace(old, new))
        with pytest.raises(LogError, match="line 1 holds an event"):
            read(path)


def test_a_sound_line_that_is_no_json_is_named(path: Path) -> None:
    """Text that is not JSON, with a right hash, gives an error with its line, not a traceback."""
    raw = path.read_bytes()
    body = b'{"type":' + b',"prevhash":"' + read(path).heads[-1].encode() + b'"}'
    path.write_bytes(raw + close_line(body) + b"\n")
    with pytest.raises(LogError, match="line 5"):
        read(path)


def test_a_missing_segment_is_a_clean_error(layout: Layout) -> None:
    """A segment that is not there gives a LogError with its path."""
    with pytest.raises(LogError, match=r"1-0123abcd\.1\.jsonl cannot be read"):
        read(layout.segment(NAME, 1))
