"""Kernels and timers whose times are scripted, and takes that are measured with them."""

from collections.abc import Callable, Iterable

from conftest import make_setting, make_started, read_sealed
from nearfree.core.plan import MeasurePlan
from nearfree.errors import HardwareError
from nearfree.hardware.clocks import Sample
from nearfree.log.events import DeviceState, LatencyMeasured
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, ensure_take, take_name
from nearfree.measure.protocols import run
from nearfree.measure.rounds import whole_rounds
from nearfree.measure.visits import Bench, Point, Progress, no_progress

TICK = 10.0


class FakeKernel:
    """A forward that may fail at its `fails_at`-th call; `calls` holds the N of each."""

    cache = "cold"

    def __init__(self, fails_at: int = 0) -> None:
        self.calls: list[int] = []
        self.fails_at = fails_at

    def forward(self, n: int) -> None:
        self.calls.append(n)
        if len(self.calls) == self.fails_at:
            raise HardwareError("the machine fell over", remedy="Set it up again")


class FakeTimer:
    """Says of each forward how long it took, ten microseconds unless told, and if it was dirty."""

    name = "cpu"
    launch = "eager"
    forwards_a_sample = 1

    def __init__(
        self, curve: Callable[[int], float] = lambda _n: TICK, dirty: Iterable[bool] = ()
    ) -> None:
        self.curve = curve
        self.dirty = iter(dirty)
        self.checked: list[float] = []

    def warm(self, kernel: FakeKernel, n: int) -> None:
        kernel.forward(n)

    def sample(self, kernel: FakeKernel, n: int) -> Sample:
        kernel.forward(n)
        took = self.curve(n)
        return Sample(wall_us=took, process_us=took - 1, dirty=next(self.dirty, False))

    def check(self, wall_us: float) -> None:
        self.checked.append(wall_us)

    def state(self) -> DeviceState | None:
        return None


def points(plan: MeasurePlan, kernel: FakeKernel) -> list[Point]:
    """Return the points of a plan, all run by one kernel."""
    return [
        Point(sweep.setting, sweep.baseline, n, kernel)  # type: ignore[arg-type]
        for sweep in plan.sweeps
        for n in sweep.positions
    ]


def take(
    layout: Layout,
    plan: MeasurePlan,
    kernel: FakeKernel,
    timer: FakeTimer | None = None,
    progress: Progress = no_progress,
) -> Seal:
    """Make sure that a plan is sealed, by its own protocol on a scripted machine."""

    def work(open_take: OpenTake) -> float:
        bench = Bench(open_take, timer or FakeTimer(), plan.protocol, progress)  # type: ignore[arg-type]
        run(bench, points(plan, kernel), plan.protocol)
        return bench.timed_s

    name = take_name("cpu", "dense", 1, plan)
    return ensure_take(
        layout, name, plan, lambda attempt: make_started(plan, attempt), work, keep=whole_rounds
    )


def measured(layout: Layout, seal: Seal) -> list[LatencyMeasured]:
    """Return the visits of a sealed take."""
    data = (event.data for event in read_sealed(layout, seal))
    return [event for event in data if isinstance(event, LatencyMeasured)]


def bench(kernel: FakeKernel, plan: MeasurePlan, timer: FakeTimer) -> tuple[Bench, Point]:
    """Return a bench that keeps nothing, and a point at N=4."""

    class Nowhere:
        events: tuple[object, ...] = ()

    point = Point(make_setting(), 1, 4, kernel)  # type: ignore[arg-type]
    return Bench(Nowhere(), timer, plan.protocol, no_progress), point  # type: ignore[arg-type]
