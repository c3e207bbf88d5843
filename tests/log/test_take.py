"""Takes: from the first attempt to the seal, over any interruption."""

from pathlib import Path

import pytest
from conftest import latencies, make_latency, make_plan, make_started, measure_rounds, write_take
from msgspec import structs
from nearfree.core.plan import ProbePlan
from nearfree.errors import DamageError, EvidenceError, NearfreeError
from nearfree.log.events import (
    LatencyMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    SegmentRecovered,
)
from nearfree.log.evidence import read_take
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.seal import read_seal
from nearfree.log.take import OpenTake, ensure_sealed, ensure_take, take_name
from nearfree.measure.rounds import whole_rounds

from log.faults import damage, edit_line

PLAN = make_plan()
NAME = take_name("cpu", "dense", 1, PLAN)


def interrupted(layout: Layout, observations: int, tail: bytes = b"") -> Path:
    """Leave an attempt that wrote some observations and perhaps half a line; return its path."""
    take = OpenTake(layout, NAME, PLAN, keep=whole_rounds)
    take.start(make_started(PLAN, take.attempt))
    begun = len(latencies(take))
    for index in range(begun, begun + observations):
        take.append(make_latency(index // 3, (1, 2, 4)[index % 3]))
    take.writer.close()
    with take.writer.path.open("ab") as file:
        file.write(tail)
    return take.writer.path


def kinds(layout: Layout, attempt: int) -> list[type]:
    """Return the types of an attempt's events."""
    path = layout.segment(NAME, attempt)
    return [type(e.data) for e in read_segment(path, NAME.segment(attempt)).events]


def test_a_take_has_a_start_an_end_a_seal_and_a_receipt(layout: Layout) -> None:
    """A take that meets no fault is one segment from run.started to run.finished, sealed."""
    seal = write_take(layout)
    events = read_take(layout, NAME).events
    assert [type(e.data) for e in events] == [RunStarted, *[LatencyMeasured] * 9, RunFinished]
    assert events[-1].data.outcome == seal.outcome == "complete"
    assert events[-1].data.timed_s == 0.5
    assert events[-1].data.wall_s >= 0
    assert seal.name == NAME
    assert layout.receipt(NAME).exists()


@pytest.mark.parametrize("change", [b"", b"{}\n", None], ids=["flipped", "longer", "shorter"])
def test_what_is_not_what_was_written_is_not_sealed(layout: Layout, change: bytes | None) -> None:
    """A file that changed after its lines were written is not sealed."""

    def work(take: OpenTake) -> None:
        measure_rounds(take)
        path = take.writer.path
        raw = path.read_bytes()
        flipped = raw.replace(b'"order":0', b'"order":1', 1)
        path.write_bytes(raw[:-1] if change is None else raw + change if change else flipped)

    with pytest.raises(DamageError, match="does not hold what was written"):
        write_take(layout, work=work)
    assert not layout.seal(NAME).exists()


def test_a_sealed_take_is_never_written_again(layout: Layout) -> None:
    """`ensure_take` of a sealed take returns its seal at once, without any work."""
    first = write_take(layout)
    before = {p: p.read_bytes() for p in layout.events.rglob("*") if p.is_file()}
    layout.receipt(NAME).unlink()
    again = ensure_take(layout, NAME, PLAN, pytest.fail, pytest.fail)
    assert again.segments == first.segments
    assert layout.receipt(NAME).exists(), "the receipt is renewed"
    assert {p: p.read_bytes() for p in layout.events.rglob("*") if p.is_file()} == before


def test_ensure_sealed_says_whether_there_is_a_seal(layout: Layout) -> None:
    """`ensure_sealed` returns None before the seal; after it, the seal and a new receipt."""
    assert ensure_sealed(layout, NAME) is None
    write_take(layout)
    layout.receipt(NAME).unlink()
    assert ensure_sealed(layout, NAME) == read_seal(layout, NAME)
    assert layout.receipt(NAME).exists()


def test_a_damaged_seal_is_not_written_over(layout: Layout) -> None:
    """A take whose seal is damaged is refused, not measured again."""
    write_take(layout)
    layout.seal(NAME).write_bytes(b"{}\n")
    with pytest.raises(DamageError):
        write_take(layout, work=lambda _: pytest.fail("measured again"))


@pytest.mark.parametrize(
    ("observations", "lines_kept"), [(0, 0), (2, 0), (3, 3), (5, 3), (6, 6), (9, 9)]
)
@pytest.mark.parametrize(
    "tail", [b"", b"{", b'{"specversion":"1.0","ty'], ids=["no", "short", "long"]
)
def test_the_next_attempt_keeps_whole_rounds(
    layout: Layout, observations: int, lines_kept: int, tail: bytes
) -> None:
    """After an interruption complete rounds are kept, the rest is left out, both on record."""
    path = interrupted(layout, observations, tail)
    seen: list[int] = []

    def work(take: OpenTake) -> float:
        seen.append(len(latencies(take)))
        return measure_rounds(take)

    seal = write_take(layout, work=work)
    assert seen == [lines_kept]
    assert [part.events for part in seal.segments] == [1 + lines_kept, 3 + 9 - lines_kept]
    record = next(
        e.data for e in read_take(layout, NAME).events if type(e.data) is SegmentRecovered
    )
    assert record.segment == NAME.segment(1)
    assert (record.kept_events, record.kept_bytes) == (1 + lines_kept, seal.segments[0].bytes)
    assert record.ignored_bytes == path.stat().st_size - seal.segments[0].bytes
    assert record.head == seal.segments[0].head
    assert record.torn is bool(tail)
    assert damage(layout.root) == []


def test_each_point_is_there_once_after_many_interruptions(layout: Layout) -> None:
    """Over several attempts the sealed take holds each (round, n) exactly once, in order."""
    for observations, tail in ((4, b""), (4, b"{"), (0, b""), (2, b"\x00" * 40)):
        interrupted(layout, observations, tail)
    seal = write_take(layout)
    data = [event.data for event in read_take(layout, NAME).events]
    places = [(d.round, d.n) for d in data if isinstance(d, LatencyMeasured)]
    assert places == [(number, n) for number in range(3) for n in (1, 2, 4)]
    assert [part.attempt for part in seal.segments] == [1, 2, 3, 4, 5]
    assert [type(d) for d in data].count(SegmentRecovered) == 0 + 1 + 2 + 3 + 4
    assert [d.attempt for d in data if isinstance(d, RunStarted)] == [1, 2, 3, 4, 5]
    assert damage(layout.root) == []


def test_an_attempt_killed_before_its_first_line_is_kept_as_empty(layout: Layout) -> None:
    """A segment without a line holds nothing and hinders nothing."""
    OpenTake(layout, NAME, PLAN).writer.close()
    seal = write_take(layout)
    assert [part.events for part in seal.segments] == [0, 12]
    assert damage(layout.root) == []


def test_a_plan_without_rounds_starts_again(layout: Layout) -> None:
    """Of an interrupted probe or import only the header is kept; its work is repeated."""
    plan = ProbePlan(dtypes=("float32",))
    name = take_name("cpu", "hardware", 1, plan)
    take = OpenTake(layout, name, plan)
    take.start(make_started(plan))
    take.append(make_latency())
    take.writer.close()
    seal = write_take(
        layout, stream="hardware", plan=plan, work=lambda t: t.append(make_latency()) and None
    )
    assert [part.events for part in seal.segments] == [1, 4]


def test_rounds_of_two_releases_are_not_mixed(layout: Layout) -> None:
    """Where an attempt left rounds, the next one must run on the same packages, nearfree aside."""
    interrupted(layout, 3)

    def go_on(**versions: str) -> str:
        def started(attempt: int) -> RunStarted:
            return structs.replace(make_started(PLAN, attempt), versions=versions)

        return ensure_take(layout, NAME, PLAN, started, measure_rounds, keep=whole_rounds).outcome

    with pytest.raises(EvidenceError, match=r"attempt 1 .* msgspec 0\.0\.0, this is 0\.1") as error:
        go_on(msgspec="0.1")
    assert "nearfree retake cpu dense" in error.value.remedy
    with pytest.raises(EvidenceError, match="torch None, this is 2"):
        go_on(msgspec="0.0.0", torch="2")
    assert go_on(msgspec="0.0.0", nearfree="9") == "complete"
    assert damage(layout.root) == []


def test_an_attempt_without_a_round_binds_nobody(layout: Layout) -> None:
    """Nothing was timed yet, so the next attempt may run in another environment."""
    interrupted(layout, 2)
    seal = ensure_take(
        layout,
        NAME,
        PLAN,
        lambda attempt: structs.replace(make_started(PLAN, attempt), versions={"torch": "2"}),
        measure_rounds,
        keep=whole_rounds,
    )
    assert seal.outcome == "complete"


def test_a_failure_is_on_record_and_raised(layout: Layout) -> None:
    """What the work raises ends the attempt, is on record with its remedy, and comes out."""

    def work(take: OpenTake) -> float:
        take.append(make_latency())
        raise NearfreeError("the clock is gone", remedy="Look")

    with pytest.raises(NearfreeError, match="is gone"):
        write_take(layout, work=work)
    assert kinds(layout, 1) == [RunStarted, LatencyMeasured, RunFailed]
    failed = read_segment(layout.segment(NAME, 1), NAME.segment(1)).events[-1].data
    assert (failed.error, failed.remedy) == ("the clock is gone", "Look")
    assert write_take(layout).outcome == "complete"


def test_any_other_exception_closes_the_attempt(layout: Layout) -> None:
    """An unexpected exception leaves a closed, unlocked attempt that can be continued."""

    def work(take: OpenTake) -> float:
        take.append(make_latency())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_take(layout, work=work)
    assert [part.attempt for part in write_take(layout).segments] == [1, 2]


def test_a_damaged_attempt_is_not_resumed(layout: Layout) -> None:
    """An attempt with an edited line is refused; its rounds are neither kept nor dropped."""
    path = interrupted(layout, 6)
    edit_line(path, 3, lambda body: body.replace(b'"n":2', b'"n":3'))
    with pytest.raises(DamageError, match="line 4"):
        write_take(layout)
    assert layout.attempts(NAME) == [1]
