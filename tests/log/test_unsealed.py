"""Reading segments that are not sealed yet: damage must show in the lines themselves."""

import gc
from pathlib import Path

import pytest
from conftest import make_latency
from nearfree.errors import LogError
from nearfree.log import reader
from nearfree.log.events import RunFailed
from nearfree.log.line import line_head
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import parse_segment, read_segment
from nearfree.log.segment import SegmentWriter

from log.faults import flip

NAME = TakeName("cpu", "dense", 1, "0123abcd")


@pytest.fixture
def path(layout: Layout) -> Path:
    """Write a segment of two short lines."""
    with SegmentWriter(layout, NAME, 1) as writer:
        for number in (1, 2):
            writer.append(RunFailed(error=f"error {number}", remedy="none"))
    return writer.path


def test_every_flipped_bit_is_damage_or_a_torn_tail(path: Path) -> None:
    """Any flipped bit is damage; only one in the last newline makes a tail that is not believed."""
    raw = path.read_bytes()
    torn = []
    for bit in range(8 * len(raw)):
        try:
            segment = parse_segment(flip(raw, bit), NAME.segment(1), path)
        except LogError:
            continue
        assert len(segment.events) == 1
        torn.append(bit)
    assert torn == list(range(8 * len(raw) - 8, 8 * len(raw)))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_while_lines_are_parsed(
    layout: Layout, path: Path, monkeypatch: pytest.MonkeyPatch, *, enabled: bool
) -> None:
    """The cycle collector is off while lines are parsed, and then what it was before."""
    seen = []

    def watched(raw: bytes) -> str | None:
        seen.append(gc.isenabled())
        return line_head(raw)

    monkeypatch.setattr(reader, "line_head", watched)
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        read_segment(path, NAME.segment(1))
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False, False]


def test_reading_while_writing_sees_whole_lines(layout: Layout) -> None:
    """A reader beside a running writer sees the complete lines written so far."""
    with SegmentWriter(layout, NAME, 1) as writer:
        for number in range(5):
            assert len(read_segment(writer.path, writer.name).events) == number
            writer.append(make_latency(number))
