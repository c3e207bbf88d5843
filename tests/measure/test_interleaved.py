"""The interleaved protocol, with a kernel and a clock that do as they are told."""

from collections.abc import Iterable

import pytest
from conftest import make_plan, make_setting, make_started
from msgspec.structs import replace
from nearfree.clocks import Sample
from nearfree.errors import HardwareError
from nearfree.events.names import Layout
from nearfree.events.seal import Seal, read_sealed
from nearfree.events.take import ensure_take, take_name
from nearfree.events.types import LatencyMeasured, RunFinished
from nearfree.measure.interleaved import Point, rounds, run, sweep_points, visit
from nearfree.settings import Interleaved, MeasurePlan

TICK = 10.0


class FakeKernel:
    """A forward of ten microseconds, that may fail at its `fails_at`-th call."""

    cache = "cold"

    def __init__(self, fails_at: int = 0) -> None:
        self.calls: list[int] = []
        self.fails_at = fails_at

    def forward(self, n: int) -> None:
        self.calls.append(n)
        if len(self.calls) == self.fails_at:
            raise HardwareError("the machine fell over", remedy="Set it up again")

    def check(self) -> None:
        """Find nothing wrong."""


class FakeClock:
    """A clock that counts a kernel's forwards, and says of each as scripted if it was dirty."""

    def __init__(self, kernel: FakeKernel, dirty: Iterable[bool] = ()) -> None:
        self.kernel = kernel
        self.dirty = iter(dirty)
        self.checked: list[float] = []

    def start(self) -> int:
        return len(self.kernel.calls)

    def stop(self, began: int) -> Sample:
        took = len(self.kernel.calls) - began
        dirty = next(self.dirty, False) if took == 1 else False
        return Sample(wall_us=TICK * took, process_us=9.0 * took, dirty=dirty)

    def check(self, wall_us: float) -> None:
        self.checked.append(wall_us)


PROTOCOL = Interleaved(rounds=3, warmup=2, forwards=3, retries=2)
PLAN = replace(make_plan(positions=(1, 2, 4)), protocol=PROTOCOL)
NAME = take_name("cpu", "dense", 1, PLAN)


def points(kernel: FakeKernel) -> list[Point]:
    """Return the points of the plan, all run by one kernel."""
    return sweep_points(PLAN.sweeps[0], make_setting(), kernel)  # type: ignore[arg-type]


def take(layout: Layout, kernel: FakeKernel, plan: MeasurePlan = PLAN) -> Seal:
    """Make sure that the plan is sealed."""
    clock = FakeClock(kernel)
    return ensure_take(
        layout,
        NAME,
        plan,
        lambda attempt: make_started(plan, attempt),
        lambda each: run(each, points(kernel), plan.protocol, clock),  # type: ignore[arg-type]
    )


def measured(layout: Layout, seal: Seal) -> list[LatencyMeasured]:
    """Return the visits of a sealed take."""
    data = (event.data for event in read_sealed(layout, seal))
    return [each for each in data if isinstance(each, LatencyMeasured)]


def test_a_quiet_visit() -> None:
    """A visit is the warm-up, which is not timed, and the timed forwards."""
    kernel = FakeKernel()
    seen = visit(kernel, 4, PROTOCOL, FakeClock(kernel))  # type: ignore[arg-type]
    assert kernel.calls == [4] * 5
    assert [s.wall_us for s in seen.samples] == [TICK] * 3
    assert seen.timed_us == 5 * TICK


def test_dirty_samples_are_kept_flagged_and_repeated() -> None:
    """A disturbed forward is kept with its flag, and another one is run in its place."""
    kernel = FakeKernel()
    clock = FakeClock(kernel, [True, False, False, False])
    seen = visit(kernel, 1, PROTOCOL, clock)  # type: ignore[arg-type]
    assert [s.dirty for s in seen.samples] == [True, False, False, False]


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_retries_are_limited(retries: int) -> None:
    """However disturbed a visit is, it is repeated at most `retries` times."""
    kernel, protocol = FakeKernel(), replace(PROTOCOL, retries=retries)
    seen = visit(kernel, 1, protocol, FakeClock(kernel, [True] * 99))  # type: ignore[arg-type]
    assert len(seen.samples) == 3 + retries
    assert all(s.dirty for s in seen.samples)
    assert len(kernel.calls) == 2 + 3 + retries


def test_the_order_differs_and_is_reproducible() -> None:
    """Each round visits every point once, in an order of its own that the seed decides."""
    every = points(FakeKernel()) + sweep_points(PLAN.sweeps[0], make_setting(batch=2), None)  # type: ignore[arg-type]
    many = replace(PROTOCOL, rounds=8)
    first = [order for _, order in rounds(every, many, 0)]
    assert all(len(order) == 6 and all(p in order for p in every) for order in first)
    assert len({tuple(every.index(p) for p in order) for order in first}) > 4
    assert [order for _, order in rounds(every, many, 0)] == first
    other = [order for _, order in rounds(every, replace(many, seed=1), 0)]
    assert other != first


def test_a_resumed_take_keeps_its_orders() -> None:
    """A round has the same order whether or not the rounds before it are still to do."""
    every = points(FakeKernel())
    assert list(rounds(every, PROTOCOL, 2)) == list(rounds(every, PROTOCOL, 0))[2:]
    assert list(rounds(every, PROTOCOL, 3)) == []


def test_a_take_holds_every_point_of_every_round(layout: Layout) -> None:
    """Each round has one event a point, with its place in the order and its samples."""
    seal = take(layout, FakeKernel())
    visits = measured(layout, seal)
    assert sorted((v.round, v.n) for v in visits) == [(r, n) for r in range(3) for n in (1, 2, 4)]
    assert [v.order for v in visits] == [0, 1, 2] * 3
    assert {v.wall_us for v in visits} == {(TICK,) * 3}
    assert {v.process_us for v in visits} == {(9.0,) * 3}
    assert {(v.cache, v.baseline, v.protocol) for v in visits} == {("cold", 1, PROTOCOL)}


def test_the_timed_seconds_are_those_of_all_forwards(layout: Layout) -> None:
    """The end of a run says how long its forwards took, warm-up included."""
    seal = take(layout, FakeKernel())
    finished = read_sealed(layout, seal)[-1].data
    assert isinstance(finished, RunFinished)
    assert finished.timed_s == pytest.approx(9 * 5 * TICK / 1e6)


def test_every_visit_is_checked_against_the_clock(layout: Layout) -> None:
    """Before a visit is written its first sample is held against the clock's resolution."""
    kernel = FakeKernel()
    clock = FakeClock(kernel)

    def refuse(wall_us: float) -> None:
        raise HardwareError(f"{wall_us} is too short", remedy="Measure more")

    clock.check = refuse  # type: ignore[method-assign]
    with pytest.raises(HardwareError, match=r"10\.0 is too short"):
        ensure_take(
            layout, NAME, PLAN, lambda attempt: make_started(PLAN, attempt),
            lambda each: run(each, points(kernel), PROTOCOL, clock),  # type: ignore[arg-type]
        )  # fmt: skip
    assert len(kernel.calls) == 5
    assert not layout.takes()


@pytest.mark.parametrize(("fails_at", "left"), [(1, 3), (18, 2), (32, 1), (45, 1)])
def test_a_resumed_take_does_only_what_is_missing(layout: Layout, fails_at: int, left: int) -> None:
    """After a failure whole rounds are kept, and only the others are measured again."""
    with pytest.raises(HardwareError, match="fell over"):
        take(layout, FakeKernel(fails_at))
    kernel = FakeKernel()
    seal = take(layout, kernel)
    assert len(kernel.calls) == left * 3 * 5
    visits = measured(layout, seal)
    assert sorted((v.round, v.n) for v in visits) == [(r, n) for r in range(3) for n in (1, 2, 4)]
    assert [part.attempt for part in seal.segments] == [1, 2]
