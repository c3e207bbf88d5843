"""The evidence of a scope: its sealed takes, in order, without what was retracted."""

import pytest
from conftest import (
    make_latency,
    make_plan,
    make_started,
    measure_rounds,
    write_payloads,
    write_take,
)
from msgspec.structs import replace
from nearfree.core.plan import RetractPlan, plan_digest
from nearfree.errors import DamageError, EvidenceError
from nearfree.log.events import (
    LatencyMeasured,
    ObservationRetracted,
    RunFailed,
    RunFinished,
    RunStarted,
)
from nearfree.log.evidence import (
    newest_takes,
    open_takes,
    read_scope,
    read_take,
    retracted_targets,
)
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import read_segment
from nearfree.log.seal import Seal, seal_segment, write_seal
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import ensure_take, take_name
from nearfree.measure.rounds import whole_rounds

from log.faults import flip

PLAN = make_plan()


def name(stream: str = "dense", take: int = 1) -> TakeName:
    """Return the name of a take of the usual plan."""
    return take_name("cpu", stream, take, PLAN)


def retracted(layout: Layout, target: str, take: int = 1) -> None:
    """Write the retraction of a target into the scope."""
    plan = RetractPlan(target=target, reason="wrong clock")
    data = ObservationRetracted(target=target, reason=plan.reason)
    write_payloads(layout, take_name("cpu", "retracted", take, plan), plan, data)


def test_a_scope_holds_its_sealed_takes_sorted(layout: Layout) -> None:
    """Takes come by stream and number; other scopes and unsealed takes stay out."""
    for stream, take in (("moe", 1), ("dense", 10), ("dense", 9)):
        write_take(layout, stream=stream, take=take)
    write_take(layout, scope="h20")
    SegmentWriter(layout, name("attention"), 1).close()
    takes = [(t.name.stream, t.name.take) for t in read_scope(layout, "cpu")]
    assert takes == [("dense", 9), ("dense", 10), ("moe", 1)]
    assert read_scope(layout, "h200") == []


def test_one_stream_alone(layout: Layout) -> None:
    """With `stream` only that stream's takes come back, without what was retracted of them."""
    for stream in ("dense", "moe"):
        for take in (1, 2):
            write_payloads(layout, name(stream, take), PLAN, make_latency())
    retracted(layout, str(name("dense", 1)))
    retracted(layout, str(name("moe", 2)), 2)
    takes = [(t.name.stream, t.name.take) for t in read_scope(layout, "cpu", stream="dense")]
    assert takes == [("dense", 2)]


def test_a_retracted_event_is_left_out(layout: Layout) -> None:
    """A retracted event is missing from its take; the others and the file stay as they were."""
    write_payloads(layout, name(), PLAN, make_latency(0, 1), make_latency(0, 2))
    before = layout.segment(name(), 1).read_bytes()
    retracted(layout, f"{name()}.1#3")
    take = read_scope(layout, "cpu")[0]
    assert [event.id for event in take.events] == ["1", "2", "4"]
    assert layout.segment(name(), 1).read_bytes() == before
    assert len(read_take(layout, name()).events) == 4, "the take itself still holds it"


def test_a_retracted_take_is_left_out(layout: Layout) -> None:
    """A retracted take is missing from its scope, and no other take of its plan is."""
    write_payloads(layout, name(take=1), PLAN, make_latency())
    write_payloads(layout, name(take=11), PLAN, make_latency())
    retracted(layout, str(name(take=1)))
    names = [t.name for t in read_scope(layout, "cpu") if t.name.stream != "retracted"]
    assert names == [name(take=11)]


def test_the_targets_of_a_scope(layout: Layout) -> None:
    """The retracted targets of a scope are listed without reading its takes."""
    assert retracted_targets(layout, "cpu") == set()
    write_payloads(layout, name(), PLAN, make_latency())
    for take, target in enumerate((str(name()), f"{name()}.1#2"), start=1):
        retracted(layout, target, take)
    assert retracted_targets(layout, "cpu") == {str(name()), f"{name()}.1#2"}


def test_a_retraction_reaches_its_own_scope_only(layout: Layout) -> None:
    """A retraction in one scope does not touch the takes of another."""
    other = take_name("h20", "dense", 1, PLAN)
    write_payloads(layout, other, PLAN, make_latency())
    retracted(layout, str(other))
    assert [t.name for t in read_scope(layout, "h20")] == [other]


def test_a_damaged_take_stops_the_scope(layout: Layout) -> None:
    """No evidence is better than wrong evidence: one flipped bit in one take is an error."""
    write_payloads(layout, name(), PLAN, make_latency())
    write_payloads(layout, name(take=2), PLAN, make_latency())
    path = layout.segment(name(), 1)
    path.write_bytes(flip(path.read_bytes(), 4000))
    with pytest.raises(DamageError):
        read_scope(layout, "cpu")


def test_a_damaged_take_can_be_retracted(layout: Layout) -> None:
    """Retracting a damaged take, as its error advises, lets the rest of the scope be read."""
    write_payloads(layout, name(), PLAN, make_latency())
    write_payloads(layout, name(take=2), PLAN, make_latency())
    path = layout.segment(name(), 1)
    path.write_bytes(flip(path.read_bytes(), 4000))
    retracted(layout, str(name()))
    names = [t.name for t in read_scope(layout, "cpu") if t.name.stream != "retracted"]
    assert names == [name(take=2)]


def test_a_take_gives_its_events_by_type(layout: Layout) -> None:
    """Events of one type come in order; an absent type gives an empty list."""
    write_payloads(layout, name(), PLAN, make_latency(0, 2), make_latency(0, 1))
    take = read_take(layout, name())
    assert [event.data.n for event in take.events_of(LatencyMeasured)] == [2, 1]
    assert take.events_of(RunFailed) == []


def test_the_run_that_sealed_a_take_dates_it(layout: Layout) -> None:
    """Of several attempts the last one's start is when a take was made; numbers come first."""
    with SegmentWriter(layout, name(), 1) as first:
        first.append(make_started(PLAN))
    write_take(layout)
    take = read_take(layout, name())
    assert take.started.source == name().segment(2)
    assert take.order == (1, take.started.time, name().plan8)
    newer = read_take(layout, write_take(layout, take=2).name)
    assert newer.order > take.order


def test_the_newest_take_with_events_of_a_type_counts(layout: Layout) -> None:
    """A newer take without events of the type replaces none; a stream without any is left out."""
    for stream, take in (("moe", 1), ("dense", 2), ("dense", 10)):
        write_payloads(layout, name(stream, take), PLAN, make_latency())
    write_payloads(layout, name("dense", 11), PLAN)
    write_payloads(layout, name("bare"), PLAN)
    newest = newest_takes(reversed(read_scope(layout, "cpu")), LatencyMeasured)
    assert [take.name for take in newest] == [name("dense", 10), name("moe", 1)]


def test_a_take_that_nobody_ran_is_damaged(layout: Layout) -> None:
    """A sealed take that does not begin with the start of a run is damage, named by take."""
    with SegmentWriter(layout, name(), 1) as writer:
        writer.append(make_latency())
    segment = read_segment(writer.path, writer.name)
    part = seal_segment(writer.path, segment, 1, 1)
    digest = plan_digest(PLAN)
    seal = Seal(
        scope="cpu", stream="dense", take=1, plan_digest=digest, outcome="complete",
        segments=(part,),
    )  # fmt: skip
    write_seal(layout, seal)
    (take,) = read_scope(layout, "cpu")
    with pytest.raises(DamageError, match=f"{name()} holds no start of a run"):
        newest_takes([take], LatencyMeasured)


def test_takes_can_be_read_for_some_types_alone(layout: Layout) -> None:
    """Only the wanted types come, and with them always the start of a run."""
    write_payloads(layout, name(), PLAN, make_latency(0, 2), make_latency(0, 1))
    (take,) = read_scope(layout, "cpu", only=(RunFinished,))
    assert [type(event.data) for event in take.events] == [RunStarted, RunFinished]
    whole_take = read_take(layout, name())
    assert take.events == (whole_take.events[0], whole_take.events[-1])


def test_a_flipped_bit_is_found_in_what_is_not_wanted(layout: Layout) -> None:
    """Lines that are passed over are hashed like all others."""
    write_payloads(layout, name(), PLAN, make_latency(0, 2), make_latency(0, 1))
    path = layout.segment(name(), 1)
    line = path.read_bytes().index(b'"nearfree.latency.measured')
    path.write_bytes(flip(path.read_bytes(), 8 * (line + 200)))
    with pytest.raises(DamageError, match="is not what its seal says"):
        read_scope(layout, "cpu", only=(RunFinished,))


def test_damage_is_told_before_what_it_looks_like(layout: Layout) -> None:
    """A flip that makes an event unreadable is damage, not an event of another version."""
    write_payloads(layout, name(), PLAN, make_latency(0, 2), make_latency(0, 1))
    path = layout.segment(name(), 1)
    path.write_bytes(path.read_bytes().replace(b"latency.measured", b"latency.neasured", 1))
    with pytest.raises(DamageError, match="is not what its seal says"):
        read_take(layout, name())


def test_takes_come_one_by_one(layout: Layout) -> None:
    """The takes that are read as they come are those of the scope, event by event."""
    for take in (2, 1):
        write_payloads(layout, name(take=take), PLAN, make_latency(0, 2), make_latency(0, 1))
    retracted(layout, f"{name()}.1#2")
    passed = [(take, seal, tuple(events)) for take, seal, events in open_takes(layout, "cpu")]
    assert passed == [(take.name, take.seal, take.events) for take in read_scope(layout, "cpu")]


def on_machine(layout: Layout, stream: str, take: int, device: str | None) -> TakeName:
    """Seal a take that was made on a device, and return its name."""
    of = name(stream, take)

    def started(attempt: int) -> RunStarted:
        return replace(make_started(PLAN, attempt), device=device)

    ensure_take(layout, of, PLAN, started, measure_rounds, keep=whole_rounds)
    return of


def test_the_takes_of_two_machines_are_no_scope(layout: Layout) -> None:
    """Where the logs of two machines were put together neither's takes pass for the other's."""
    on_machine(layout, "hardware", 1, "GPU A")
    on_machine(layout, "modules_foretold", 1, None)
    assert len(read_scope(layout, "cpu")) == 2
    other = on_machine(layout, "dense", 2, "GPU B")
    with pytest.raises(
        EvidenceError, match=r"dense/2-.* on 'GPU B' and .*hardware/1-.* on 'GPU A'"
    ):
        read_scope(layout, "cpu")
    assert len(read_scope(layout, "cpu", stream="dense")) == 1
    retracted(layout, str(other))
    assert [take.name.stream for take in read_scope(layout, "cpu")] == [
        "hardware", "modules_foretold", "retracted",
    ]  # fmt: skip
