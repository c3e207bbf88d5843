"""Interrupted takes: listed, and sealed as partial when their machine will not come back."""

from pathlib import Path

import pytest
from conftest import make_latency, make_plan, make_started, write_take
from log.faults import damage, edit_line, start_child
from msgspec import structs
from nearfree.core.plan import Plan, ProbePlan
from nearfree.core.protocols import Paper, Thinned
from nearfree.core.weights import WeightsFile
from nearfree.errors import BusyError, DamageError, EvidenceError, LogError
from nearfree.log.events import LatencyMeasured, RunFinished, RunStarted, SegmentRecovered
from nearfree.log.evidence import read_scope, read_take
from nearfree.log.names import Layout
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import OpenTake, take_name
from nearfree.measure.rounds import interrupted, recover, whole_rounds

PLAN = make_plan(positions=(1, 2), rounds=9)
NAME = take_name("cpu", "dense", 1, PLAN)


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into a folder outside of any repository."""
    monkeypatch.chdir(tmp_path)


def interrupt(layout: Layout, points: int, *, plan: Plan = PLAN, tail: bytes = b"") -> Path:
    """Leave one more attempt with some observations and perhaps a torn line."""
    take = OpenTake(layout, take_name("cpu", "dense", 1, plan), plan, keep=whole_rounds)
    take.start(make_started(plan, take.attempt))
    for index in range(points):
        take.append(make_latency(index // 2, (1, 2)[index % 2]))
    take.writer.close()
    with take.writer.path.open("ab") as file:
        file.write(tail)
    return take.writer.path


def test_interrupted_takes_are_listed(layout: Layout) -> None:
    """Each attempt without a seal is listed with what the next one would keep of it."""
    write_take(layout, stream="sealed")
    interrupt(layout, 5, tail=b"{torn")
    interrupt(layout, 1)
    assert list(interrupted(layout)) == [
        f"{NAME}.1: 6 whole events, 5 kept by the next attempt, 5 torn bytes",
        f"{NAME}.2: 3 whole events, 2 kept by the next attempt, 0 torn bytes",
    ]


def test_without_interrupted_takes_the_list_says_so(layout: Layout) -> None:
    """A log of sealed takes has no interrupted ones."""
    write_take(layout)
    assert list(interrupted(layout)) == ["no interrupted takes"]


def test_an_attempt_without_a_line_is_listed(layout: Layout) -> None:
    """A writer killed before its first line is listed with nothing to keep."""
    SegmentWriter(layout, NAME, 1).close()
    (line,) = interrupted(layout)
    assert line == f"{NAME}.1: 0 whole events, 0 kept by the next attempt, 0 torn bytes"


def test_an_attempt_without_a_start_is_listed(layout: Layout) -> None:
    """Nothing of an attempt without a plan can be kept."""
    with SegmentWriter(layout, NAME, 1) as writer:
        writer.append(make_latency())
    (line,) = interrupted(layout)
    assert line == f"{NAME}.1: 1 whole events, 0 kept by the next attempt, 0 torn bytes"


def test_a_recovered_take_is_sealed_as_partial(layout: Layout) -> None:
    """Complete rounds of all attempts are sealed as partial; the record names the rest."""
    interrupt(layout, 5, tail=b"{torn")
    interrupt(layout, 4)
    assert list(recover(layout, str(NAME))) == [f"{NAME}: sealed as partial with 4 of 9 rounds"]
    take = read_take(layout, NAME)
    assert take.seal.outcome == "partial"
    data = [event.data for event in take.events]
    assert sum(isinstance(d, LatencyMeasured) for d in data) == 8
    assert isinstance(data[-1], RunFinished)
    assert data[-1].outcome == "partial"
    records = [d for d in data if isinstance(d, SegmentRecovered)]
    assert [(r.segment[-1], r.torn) for r in records] == [("1", True), ("1", True), ("2", False)]
    started = [d for d in data if isinstance(d, RunStarted)]
    assert started[-1].command == f"nearfree log recover {NAME}"
    assert damage(layout.root) == []
    assert [t.name for t in read_scope(layout, "cpu")] == [NAME]


def test_a_partial_take_is_not_measured_again(layout: Layout) -> None:
    """A take that was sealed as partial is sealed: measuring it returns at once."""
    interrupt(layout, 6)
    list(recover(layout, str(NAME)))
    seal = write_take(layout, plan=PLAN, work=lambda _: pytest.fail("measured again"))
    assert seal.outcome == "partial"


@pytest.mark.parametrize("points", [0, 1, 5])
def test_too_few_rounds_are_refused(layout: Layout, points: int) -> None:
    """Fewer than three complete rounds are refused, and the take stays open."""
    interrupt(layout, points)
    with pytest.raises(EvidenceError, match=f"holds {points // 2} whole rounds") as caught:
        list(recover(layout, str(NAME)))
    assert "nearfree measure cpu dense" in caught.value.remedy
    assert "--engine" not in caught.value.remedy
    assert layout.takes() == []


def test_a_round_without_large_n_counts(layout: Layout) -> None:
    """Of a thinned protocol a round counts that spares large N, once every point was visited."""
    protocol = Thinned(rounds=9, often_to=4)
    plan = structs.replace(make_plan(positions=(1, 16)), protocol=protocol)
    name = take_name("cpu", "dense", 1, plan)
    take = OpenTake(layout, name, plan, keep=whole_rounds)
    take.start(make_started(plan, take.attempt))
    for number in range(4):
        visited = [n for n in (1, 16) if protocol.takes_part(n, 1, number)]
        for n in visited:
            take.append(make_latency(number, n, round_points=len(visited)))
    take.writer.close()
    assert list(recover(layout, str(name))) == [f"{name}: sealed as partial with 4 of 9 rounds"]


@pytest.mark.parametrize(("second", "rounds"), [(0, 0), (2, 2), (4, 4)])
def test_one_n_after_the_other_has_the_rounds_of_its_fewest(
    layout: Layout, second: int, rounds: int
) -> None:
    """By the paper's protocol a point may lack all rounds, or have fewer than the one before."""
    plan = structs.replace(PLAN, protocol=Paper(rounds=9))
    name = take_name("cpu", "dense", 1, plan)
    take = OpenTake(layout, name, plan, keep=whole_rounds)
    take.start(make_started(plan, take.attempt))
    for n, many in ((1, 9), (2, second)):
        for number in range(many):
            take.append(make_latency(number, n, round_points=1))
    take.writer.close()
    if rounds >= 3:
        assert list(recover(layout, str(name))) == [f"{name}: sealed as partial with 4 of 9 rounds"]
        return
    with pytest.raises(EvidenceError, match=f"holds {rounds} whole rounds of every point"):
        list(recover(layout, str(name)))


def test_the_take_of_an_engine_may_be_of_no_study(layout: Layout) -> None:
    """Where a file of the user's may have been measured, the command that began it is named."""
    weights = {"small": WeightsFile(file_type="q8_0", sha256="0" * 64)}
    plan = structs.replace(PLAN, weights=weights)
    interrupt(layout, 2, plan=plan)
    with pytest.raises(EvidenceError) as caught:
        list(recover(layout, str(take_name("cpu", "dense", 1, plan))))
    assert "`nearfree measure --engine` or `nearfree tune`" in caught.value.remedy


def test_a_refusal_leaves_no_trace(layout: Layout) -> None:
    """A refused recovery adds no attempt to the take."""
    interrupt(layout, 2)
    with pytest.raises(EvidenceError):
        list(recover(layout, str(NAME)))
    assert layout.attempts(NAME) == [1]


def test_the_first_attempt_may_be_empty(layout: Layout) -> None:
    """A take is recovered by any attempt that holds the plan, not only by the first."""
    SegmentWriter(layout, NAME, 1).close()
    interrupt(layout, 8)
    assert list(recover(layout, str(NAME))) == [f"{NAME}: sealed as partial with 4 of 9 rounds"]


def test_the_first_attempt_may_be_gone(layout: Layout) -> None:
    """A take whose first attempt was removed is recovered from those that are there."""
    SegmentWriter(layout, NAME, 1).close()
    interrupt(layout, 8)
    layout.segment(NAME, 1).unlink()
    assert list(recover(layout, str(NAME))) == [f"{NAME}: sealed as partial with 4 of 9 rounds"]


def test_what_is_not_interrupted_is_refused(layout: Layout) -> None:
    """A sealed take and one that does not exist are refused, and text that names no take."""
    sealed = write_take(layout).name
    for name in (sealed, NAME):
        with pytest.raises(EvidenceError, match="is not an interrupted take"):
            list(recover(layout, str(name)))
    with pytest.raises(LogError, match="is not the name of a take"):
        list(recover(layout, "cpu"))


def test_what_has_no_rounds_is_refused(layout: Layout) -> None:
    """A probe or an import that was interrupted is run again, not recovered."""
    plan = ProbePlan(dtypes=("float32",))
    interrupt(layout, 0, plan=plan)
    with pytest.raises(EvidenceError, match="has no rounds"):
        list(recover(layout, str(take_name("cpu", "dense", 1, plan))))


def test_a_living_take_is_not_recovered(layout: Layout) -> None:
    """A take that another process is writing is busy."""
    with start_child("hold", layout.root) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(BusyError):
            list(recover(layout, str(take_name("cpu", "dense", 1, make_plan()))))


def test_a_damaged_take_is_not_recovered(layout: Layout) -> None:
    """An edited line stops the recovery, and nothing is sealed."""
    path = interrupt(layout, 8)
    edit_line(path, 3, lambda body: body.replace(b'"round":0', b'"round":1'))
    with pytest.raises(DamageError, match="line 4"):
        list(recover(layout, str(NAME)))
    assert layout.takes() == []
