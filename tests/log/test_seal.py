"""Seals anchor the segments of a take; receipts are copies of seals."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import make_latency, make_plan, make_started, read_sealed, write_take
from msgspec import structs
from nearfree.core.plan import plan_digest
from nearfree.errors import BusyError, DamageError, LogError
from nearfree.log.document import render
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.seal import (
    Seal,
    check_sealed,
    read_seal,
    seal_segment,
    write_receipt,
    write_seal,
)
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name

from log.faults import edit_line


@pytest.fixture
def seal(layout: Layout) -> Seal:
    """Seal a take of one attempt."""
    return write_take(layout)


def segment_path(layout: Layout, seal: Seal) -> Path:
    """Return the path of the take's first segment."""
    return layout.segment(seal.name, 1)


def test_a_seal_says_what_the_segment_is(layout: Layout, seal: Seal) -> None:
    """A seal holds the size, hash, count and head of each segment, and the plan's digest."""
    raw = segment_path(layout, seal).read_bytes()
    (part,) = seal.segments
    assert (part.attempt, part.events, part.bytes) == (1, 11, len(raw))
    assert part.sha256 == sha256(raw)
    assert part.head == sha256(raw.splitlines()[-1])
    assert seal.plan_digest == plan_digest(make_plan())
    read = read_seal(layout, seal.name)
    assert read == structs.replace(seal, hash=read.hash)
    assert len(read_sealed(layout, read)) == 11


def test_a_take_is_sealed_once(layout: Layout, seal: Seal) -> None:
    """A second seal of a take is refused, whatever its content."""
    before = layout.seal(seal.name).read_bytes()
    with pytest.raises(BusyError, match="exists already"):
        write_seal(layout, structs.replace(seal, outcome="partial"))
    assert layout.seal(seal.name).read_bytes() == before


READERS = pytest.mark.parametrize("read", [read_sealed, check_sealed])
Reader = Callable[[Layout, Seal], object]


@READERS
@pytest.mark.parametrize("lines", [1, 5, 11])
def test_a_dropped_tail_is_found(layout: Layout, seal: Seal, lines: int, read: Reader) -> None:
    """Complete lines missing from the end of a sealed segment are found."""
    path = segment_path(layout, seal)
    remaining = path.read_bytes().splitlines(keepends=True)[:-lines]
    path.write_bytes(b"".join(remaining))
    assert len(read_segment(path, seal.name.segment(1)).events) == 11 - lines, "a sound segment"
    with pytest.raises(DamageError, match="is not what its seal says: its first"):
        read(layout, seal)


@READERS
def test_a_forged_last_line_is_found(layout: Layout, seal: Seal, read: Reader) -> None:
    """A last line that was edited and hashed again is a sound line, but not the sealed one."""
    path = segment_path(layout, seal)
    edit_line(path, 11, lambda body: body.replace(b'"outcome":"complete"', b'"outcome":"partial" '))
    assert len(read_segment(path, seal.name.segment(1)).events) == 11
    with pytest.raises(DamageError, match="is not what its seal says: its first"):
        read(layout, seal)


@READERS
def test_a_missing_segment_is_found(layout: Layout, seal: Seal, read: Reader) -> None:
    """A sealed take without its segment gives an error that names the file."""
    segment_path(layout, seal).unlink()
    with pytest.raises(LogError, match=r"\.1\.jsonl cannot be read"):
        read(layout, seal)


@pytest.mark.parametrize("field", ["events", "head"])
def test_a_seal_that_miscounts_is_found(layout: Layout, seal: Seal, field: str) -> None:
    """A seal with the right bytes but another count or head than theirs is found."""
    other = {"events": 10, "head": "0" * 64}[field]
    part = structs.replace(seal.segments[0], **{field: other})
    with pytest.raises(DamageError, match="is not what its seal says: its counts or head"):
        check_sealed(layout, structs.replace(seal, segments=(part,)))


def test_a_segment_that_memory_would_not_hold_is_not_checked(layout: Layout, seal: Seal) -> None:
    """A seal over more bytes than are read at once is refused by its size."""
    os.truncate(segment_path(layout, seal), 10**12)
    part = structs.replace(seal.segments[0], bytes=10**12)
    with pytest.raises(LogError, match="would take 1,000,000,000,000 bytes of memory"):
        check_sealed(layout, structs.replace(seal, segments=(part,)))


def resealed(layout: Layout, seal: Seal) -> Seal:
    """Return a seal over the bytes that the segment has by now, as a forger would make it."""
    raw = segment_path(layout, seal).read_bytes()
    part = structs.replace(seal.segments[0], bytes=len(raw), sha256=sha256(raw))
    return structs.replace(seal, segments=(part,))


def test_a_seal_over_broken_lines_is_found(layout: Layout, seal: Seal) -> None:
    """The check of a take trusts no seal: a broken chain under a fitting seal is found."""
    path = segment_path(layout, seal)
    edit_line(path, 5, lambda body: body.replace(b'"cache":"cold"', b'"cache":"warm"'))
    with pytest.raises(DamageError, match="line 6 does not follow"):
        check_sealed(layout, resealed(layout, seal))


@READERS
@pytest.mark.parametrize(
    ("line", "old", "new", "message"),
    [
        (11, b'"sequence":"00000011"', b'"sequence":"00000012"', "line 11 says it is"),
        (1, b".1", b".2", "line 1 says it is"),
        (11, b"finished.v1", b"finished.v2", "line 11 holds an event"),
        (11, b'"wall_s"', b'"wall_min"', "line 11 holds an event"),
    ],
    ids=["sequence", "source", "version", "field"],
)
def test_a_strange_line_under_a_seal_is_found(
    layout: Layout, seal: Seal, *, read: Reader, line: int, old: bytes, new: bytes, message: str
) -> None:
    """Even under a fitting seal a misplaced or unknown line is named, not believed."""
    path = segment_path(layout, seal)
    if line == 1:
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    edit_line(path, line, lambda body: body.replace(old, new))
    with pytest.raises(LogError, match=message):
        read(layout, resealed(layout, seal))


def test_late_bytes_are_ignored(layout: Layout, seal: Seal) -> None:
    """What a writer appends after the seal is not read, be it an event or noise."""
    before = read_sealed(layout, seal)
    with segment_path(layout, seal).open("ab") as late:
        late.write(segment_path(layout, seal).read_bytes() + b"noise")
    assert read_sealed(layout, seal) == before


def test_a_writer_that_outlives_the_seal_adds_nothing(layout: Layout) -> None:
    """Events that go through an open descriptor after the seal are not part of the take."""
    plan = make_plan()
    name = take_name("cpu", "dense", 1, plan)
    writer = SegmentWriter(layout, name, 1)
    writer.append(make_started(plan))
    part = seal_segment(writer.path, read_segment(writer.path, writer.name), 1, 1)
    seal = Seal(
        scope="cpu",
        stream="dense",
        take=1,
        plan_digest=plan_digest(plan),
        outcome="partial",
        segments=(part,),
    )
    write_seal(layout, seal)
    writer.append(make_latency())
    assert writer.path.stat().st_size > part.bytes
    assert len(read_sealed(layout, read_seal(layout, name))) == 1


def test_a_seal_in_another_place_is_found(layout: Layout, seal: Seal) -> None:
    """A seal under another take's name is refused with the name of its own take."""
    other = write_take(layout, take=2).name
    layout.seal(other).write_bytes(layout.seal(seal.name).read_bytes())
    with pytest.raises(DamageError, match=f"seals {seal.name}"):
        read_seal(layout, other)


@pytest.mark.parametrize("attempts", [(), (1, 1), (2, 1)], ids=["none", "twice", "backwards"])
def test_a_seal_lists_each_attempt_once_and_in_order(
    layout: Layout, seal: Seal, attempts: tuple[int, ...]
) -> None:
    """A seal of no attempt, of one that counts twice, or of a turned order is refused as forged."""
    parts = tuple(structs.replace(seal.segments[0], attempt=attempt) for attempt in attempts)
    layout.seal(seal.name).write_bytes(render(structs.replace(seal, segments=parts)))
    with pytest.raises(DamageError, match=r"seal\.json lists the attempts \["):
        read_seal(layout, seal.name)


def test_a_seal_names_the_plan_of_its_runs(layout: Layout, seal: Seal) -> None:
    """A take's name holds eight digits of its plan's digest: all of them are compared."""
    other = structs.replace(seal, plan_digest=seal.plan_digest[:8] + "0" * 56)
    assert other.name == seal.name
    with pytest.raises(DamageError, match=f"names the plan .*, and its runs {seal.plan_digest}"):
        check_sealed(layout, other)


def test_a_seal_over_a_take_that_nothing_started_is_found(layout: Layout, seal: Seal) -> None:
    """A sealed take holds the start of a run, which says by what plan it was taken."""
    path = segment_path(layout, seal)
    part = seal_segment(path, read_segment(path, seal.name.segment(1)), 1, 0)
    with pytest.raises(DamageError, match="and its runs none"):
        check_sealed(layout, structs.replace(seal, segments=(part,)))


def test_a_seal_of_nothing_holds_no_events(layout: Layout, seal: Seal) -> None:
    """The seal of an attempt without events has no bytes and no head, and reads as empty."""
    path = segment_path(layout, seal)
    part = seal_segment(path, read_segment(path, seal.name.segment(1)), 1, 0)
    assert (part.events, part.bytes, part.head) == (0, 0, "")
    assert read_sealed(layout, structs.replace(seal, segments=(part,))) == []


def test_a_receipt_is_a_copy_of_the_seal(layout: Layout, seal: Seal) -> None:
    """The receipt has the bytes of the seal, and is renewed at will."""
    receipt = layout.receipt(seal.name)
    assert receipt.read_bytes() == layout.seal(seal.name).read_bytes() == render(seal)
    receipt.unlink()
    assert write_receipt(layout, seal.name) == receipt
    assert receipt.read_bytes() == render(seal)
