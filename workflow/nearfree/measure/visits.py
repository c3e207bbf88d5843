"""One visit to a point: its warm-up, its timed forwards, and the event that records them."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal, Protocol

from msgspec import Struct, structs

from nearfree.backends.adapters.kernel import Kernel
from nearfree.core.protocols import Timing
from nearfree.core.setting import Setting
from nearfree.errors import StoppedError
from nearfree.hardware.clocks import CpuClock, Sample, load_1m
from nearfree.hardware.handover import Handover, longest
from nearfree.log.curves import threads_of
from nearfree.log.events import DeviceState, LatencyMeasured
from nearfree.log.take import OpenTake

_PREPARING = ("engine", "cpu")
"""The module and clock of forwards whose first one over another N may take longer."""


class Point(Struct, frozen=True):
    """One setting at one N, with the kernel that runs it."""

    setting: Setting
    baseline: int
    n: int
    kernel: Kernel


Progress = Callable[[float], None]
"""Receives the completed share of a take, 0 to 1."""


def no_progress(_share: float) -> None:
    """Ignore progress."""


class Clock(Protocol):
    """Runs a forward and times it."""

    launch: Literal["eager", "graph"]
    forwards_a_sample: int

    @property
    def name(self) -> Literal["cpu", "cuda_events", "simulated"]:
        """The timer's name in a visit's event."""

    def warm(self, kernel: Kernel, n: int) -> None:
        """Run the forwards of one sample, untimed."""

    def sample(self, kernel: Kernel, n: int) -> Sample:
        """Return the time of a forward, the mean if a sample holds several forwards."""

    def check(self, wall_us: float) -> None:
        """Raise HardwareError if this clock is too coarse for a sample of `wall_us`."""

    def state(self) -> DeviceState | None:
        """Return the device's clocks, power and temperature; None for a CPU."""


class CpuTimer:
    """The monotonic clock around one forward."""

    name: Literal["cpu", "cuda_events"] = "cpu"
    launch: Literal["eager", "graph"] = "eager"
    forwards_a_sample = 1

    def __init__(self) -> None:
        self._clock = CpuClock()

    def warm(self, kernel: Kernel, n: int) -> None:
        """Run one forward."""
        kernel.forward(n)

    def sample(self, kernel: Kernel, n: int) -> Sample:
        """Return the time of one forward."""
        start = self._clock.start()
        kernel.forward(n)
        return self._clock.stop(start)

    def check(self, wall_us: float) -> None:
        """Raise HardwareError if the clock is too coarse for a sample of `wall_us`."""
        self._clock.check(wall_us)

    def state(self) -> DeviceState | None:
        """Return None: a CPU's disturbances are marked in its samples."""
        return None


class Bench(Struct):
    """An open take with its clock and protocol; counts the seconds spent in forwards."""

    take: OpenTake
    clock: Clock
    protocol: Timing
    progress: Progress
    timed_s: float = 0.0
    handover: Handover | None = None
    latest_n: dict[Setting, int] = {}
    """The N of the last forward of each setting."""
    history: list[LatencyMeasured] = []
    """Every visit of the take so far, those of earlier attempts first."""

    def __post_init__(self) -> None:
        self.history = [e.data for e in self.take.events if isinstance(e.data, LatencyMeasured)]

    def visit(self, point: Point, warmup: int, forwards: int | None = None) -> tuple[Sample, ...]:
        """Run a point's warm-up and timed forwards; return the samples.

        Disturbed forwards are repeated, up to the protocol's `retries`. `forwards` overrides the
        protocol's number of timed forwards. Forwards of as many threads as CPUs are watched wait
        until these are close; where `Handover` lost its patience they are timed all the same, and
        not repeated.
        """
        protocol, clock, kernel, n = self.protocol, self.clock, point.kernel, point.n
        wanted_samples = protocol.forwards if forwards is None else forwards
        samples: list[Sample] = []
        watch = self.handover
        if watch is not None and watch.threads != threads_of(point.setting, protocol):
            watch = None
        start_s, waited_s = time.perf_counter(), watch.waited_s if watch else 0.0
        trip_ns, changed_us = self._warm(point, warmup, watch)
        clean = 0
        while clean < wanted_samples and len(samples) < wanted_samples + protocol.retries:
            if samples and watch is not None and watch.apart(trip_ns) and watch.patient:
                trip_ns, _ = self._warm(point, warmup, watch)
            sample = clock.sample(kernel, n)
            if watch is not None:
                before_ns, trip_ns = trip_ns, watch.look()
                sample = _placed(sample, watch, longest(before_ns, trip_ns))
            if not samples and changed_us is not None:
                sample = structs.replace(sample, changed_us=changed_us)
            samples.append(sample)
            clean += not sample.dirty or (watch is not None and not watch.patient)
        waited_s = watch.waited_s - waited_s if watch else 0.0
        self.timed_s += time.perf_counter() - start_s - waited_s
        return tuple(samples)

    def _warm(
        self, point: Point, warmup: int, watch: Handover | None
    ) -> tuple[float | None, float | None]:
        """Wait until a forward's CPUs are close, and warm up, at least once after a wait.

        Return the round trip between the CPUs, None if they are not watched; and the wall time of
        an engine's first forward on a CPU after one over another N, None without such a forward.
        """
        waited_s = watch.waited_s if watch else 0.0
        trip_ns = watch.settle() if watch else None
        waited = watch is not None and watch.waited_s > waited_s
        setting, n = point.setting, point.n
        changed = self.latest_n.get(setting, n) != n
        self.latest_n[setting] = n
        count, changed_us = max(warmup, int(waited)), None
        if changed and count and not waited and (setting.module, self.clock.name) == _PREPARING:
            changed_us = self.clock.sample(point.kernel, n).wall_us
            count -= 1
        for _ in range(count):
            self.clock.warm(point.kernel, n)
        return trip_ns, changed_us

    def keep(
        self,
        round_number: int,
        visits: Sequence[tuple[Point, tuple[Sample, ...]]],
        *,
        paired: bool = False,
    ) -> None:
        """Append the visits of a round, and make the round durable."""
        load, state = load_1m(), self.clock.state()
        for order, (point, samples) in enumerate(visits):
            self.clock.check(samples[0].wall_us)
            context = point.setting.context
            visit = LatencyMeasured(
                setting=point.setting,
                n=point.n,
                baseline=point.baseline,
                round=round_number,
                order=order,
                wall_us=tuple(sample.wall_us for sample in samples),
                process_us=tuple(sample.process_us for sample in samples),
                dirty=tuple(sample.dirty for sample in samples),
                cache=point.kernel.cache,
                protocol=self.protocol,
                load_1m=load,
                round_points=len(visits),
                paired=paired,
                key_length=None if context is None else context + point.n,
                timer=self.clock.name,
                launch=self.clock.launch,
                forwards_a_sample=self.clock.forwards_a_sample,
                state=state,
                handover_ns=_handover_ns(samples),
                changed_us=samples[0].changed_us,
            )
            self.take.append(visit, sync=False)
            self.history.append(visit)
        self.take.sync()


def _placed(sample: Sample, watch: Handover, trip_ns: float | None) -> Sample:
    """Return a sample with the round trip between its CPUs, dirty if they were apart."""
    dirty = sample.dirty or watch.apart(trip_ns)
    return structs.replace(sample, handover_ns=trip_ns, dirty=dirty)


def _handover_ns(samples: Sequence[Sample]) -> tuple[float | None, ...] | None:
    trips_ns = tuple(sample.handover_ns for sample in samples)
    return None if longest(*trips_ns) is None else trips_ns


@contextmanager
def on_sigterm(handler: Callable[[int], object]) -> Iterator[None]:
    """Call `handler` on SIGTERM; on exit restore the previous handler and pass the signal on to it.

    So a SIGTERM that ends one take also ends a loop over several takes.
    """
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        handler(number)

    previous = signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        if received and callable(previous):
            previous(signal.SIGTERM, None)


@contextmanager
def stoppable(progress: Progress) -> Iterator[Progress]:
    """Yield a progress function that ends the take after the current round, once SIGTERM came.

    Raises
    ------
    StoppedError
        Raised by the progress function, after the round is durable.
    """
    received: list[int] = []

    def note(number: int) -> None:
        received.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the program at once

    def stop_or_go_on(share: float) -> None:
        progress(share)
        if received and share < 1:
            raise stop_error()

    with on_sigterm(note):
        yield stop_or_go_on


def stop_error() -> StoppedError:
    """Return the error for a job that received SIGTERM."""
    return StoppedError(
        "the job was told to stop (SIGTERM): preempted, cancelled or out of time",
        remedy="Whole rounds are kept: run the same command again to continue",
    )
