"""One visit to a point: its warm-up, its timed forwards, and the event that keeps them."""

import gc
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal, Protocol

from msgspec import Struct

from nearfree.backends.adapters.kernel import Kernel
from nearfree.core.protocols import Timing
from nearfree.core.setting import Setting
from nearfree.errors import StoppedError
from nearfree.hardware.clocks import Sample, load_1m
from nearfree.log.events import DeviceState, LatencyMeasured
from nearfree.log.take import OpenTake


class Point(Struct, frozen=True):
    """One setting at one N, with the kernel that runs it."""

    setting: Setting
    baseline: int
    n: int
    kernel: Kernel


Progress = Callable[[float], None]
"""Told the share of a take that is done."""


def silent(_share: float) -> None:
    """Tell nobody."""


class Clock(Protocol):
    """What runs a forward and times it."""

    launch: Literal["eager", "graph"]
    forwards_a_sample: int

    @property
    def name(self) -> Literal["cpu", "cuda_events", "simulated"]:
        """What a visit's event says of it."""

    def warm(self, kernel: Kernel, n: int) -> None:
        """Run untimed what a sample runs."""

    def sample(self, kernel: Kernel, n: int) -> Sample:
        """Return the time of a forward, or the mean of those that one sample holds."""

    def check(self, wall_us: float) -> None:
        """Raise HardwareError if this clock is too coarse for such a time."""

    def state(self) -> DeviceState | None:
        """Return what the device says of itself, None for a CPU."""


class Bench:
    """An open take, its clock, and the seconds that its forwards took, warm-up included."""

    def __init__(
        self,
        take: OpenTake,
        clock: Clock,
        protocol: Timing,
        progress: Progress,
    ) -> None:
        self.take = take
        self.clock = clock
        self.protocol = protocol
        self.progress = progress
        self.timed_s = 0.0
        self.history = [e.data for e in take.events if isinstance(e.data, LatencyMeasured)]
        """Every visit of the take so far, those of earlier attempts first."""

    def visit(self, point: Point, warmup: int, forwards: int | None = None) -> tuple[Sample, ...]:
        """Run a point's warm-up and timed forwards, repeating disturbed ones a few times.

        Without a word they are as many as the protocol says.
        """
        protocol, clock, kernel, n = self.protocol, self.clock, point.kernel, point.n
        wanted = protocol.forwards if forwards is None else forwards
        samples: list[Sample] = []
        began = time.perf_counter()
        for _ in range(warmup):
            clock.warm(kernel, n)
        clean = 0
        while clean < wanted and len(samples) < wanted + protocol.retries:
            samples.append(clock.sample(kernel, n))
            clean += not samples[-1].dirty
        self.timed_s += time.perf_counter() - began
        return tuple(samples)

    def keep(
        self,
        number: int,
        visits: Sequence[tuple[Point, tuple[Sample, ...]]],
        *,
        paired: bool = False,
    ) -> None:
        """Append the visits of a round and make it durable."""
        load, state = load_1m(), self.clock.state()
        for place, (point, samples) in enumerate(visits):
            self.clock.check(samples[0].wall_us)
            context = point.setting.context
            visit = LatencyMeasured(
                setting=point.setting,
                n=point.n,
                baseline=point.baseline,
                round=number,
                order=place,
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
            )
            self.take.append(visit, sync=False)
            self.history.append(visit)
        self.take.sync()


@contextmanager
def on_sigterm(react: Callable[[int], object]) -> Iterator[None]:
    """React to SIGTERM, and hand it on at the end to the function that reacted to it before.

    So what ends a take is not lost to who goes on to the next one.
    """
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        react(number)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if came and callable(before):
            before(signal.SIGTERM, None)


@contextmanager
def steady() -> Iterator[None]:
    """Keep the cycle collector away."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def stoppable(progress: Progress) -> Iterator[Progress]:
    """Give a progress that ends the take after a durable round, once SIGTERM has come.

    Raises
    ------
    StoppedError
        From the progress, when it is told of the next round; nothing durable is lost then.
    """
    came: list[int] = []

    def note(number: int) -> None:
        came.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the program at once

    def stop_or_go_on(share: float) -> None:
        progress(share)
        if came and share < 1:
            raise stopped()

    with on_sigterm(note):
        yield stop_or_go_on


def stopped() -> StoppedError:
    """Return what says that SIGTERM has come."""
    return StoppedError(
        "the job was told to stop (SIGTERM): preempted, cancelled or out of time",
        remedy="Whole rounds are kept: run the same command again, and it goes on",
    )
