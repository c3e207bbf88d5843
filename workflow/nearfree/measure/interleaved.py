"""The interleaved protocol: every point once a round, in a new order each round.

A load spike or a drift then touches all N alike, where a sweep of one N after the other would
blame it on whichever N was running.
"""

import random
from collections.abc import Iterator

from msgspec import Struct

from nearfree.clocks import CpuClock, Sample, load_1m
from nearfree.events.take import OpenTake
from nearfree.events.types import LatencyMeasured
from nearfree.kernels import Kernel
from nearfree.settings import Interleaved, Setting, Sweep
from nearfree.units import US_PER_S


class Point(Struct, frozen=True):
    """One setting at one N, with the kernel that runs it."""

    setting: Setting
    baseline: int
    n: int
    kernel: Kernel


class Visit(Struct, frozen=True):
    """The samples of one visit, and the wall time that its forwards took, warm-up included."""

    samples: tuple[Sample, ...]
    timed_us: float


def visit(kernel: Kernel, n: int, protocol: Interleaved, clock: CpuClock) -> Visit:
    """Run a point's warm-up and timed forwards, repeating disturbed ones a few times."""
    samples: list[Sample] = []
    began = clock.start()
    for _ in range(protocol.warmup):
        kernel.forward(n)
    clean = 0
    while clean < protocol.forwards and len(samples) < protocol.forwards + protocol.retries:
        start = clock.start()
        kernel.forward(n)
        samples.append(clock.stop(start))
        clean += not samples[-1].dirty
    return Visit(tuple(samples), clock.stop(began).wall_us)


def rounds(
    points: list[Point], protocol: Interleaved, done: int
) -> Iterator[tuple[int, list[Point]]]:
    """Yield the rounds that are still to do, each with its own order of points."""
    for number in range(done, protocol.rounds):
        order = list(points)
        random.Random(f"{protocol.seed}/{number}").shuffle(order)  # noqa: S311 (an order, no secret)
        yield number, order


def run(take: OpenTake, points: list[Point], protocol: Interleaved, clock: CpuClock) -> float:
    """Append what is missing of a take, a durable round at a time; return the timed seconds."""
    done = sum(isinstance(e.data, LatencyMeasured) for e in take.events) // len(points)
    timed_us = 0.0
    for number, order in rounds(points, protocol, done):
        load = load_1m()
        for place, point in enumerate(order):
            seen = visit(point.kernel, point.n, protocol, clock)
            clock.check(seen.samples[0].wall_us)
            timed_us += seen.timed_us
            take.append(
                LatencyMeasured(
                    setting=point.setting,
                    n=point.n,
                    baseline=point.baseline,
                    round=number,
                    order=place,
                    wall_us=tuple(s.wall_us for s in seen.samples),
                    process_us=tuple(s.process_us for s in seen.samples),
                    dirty=tuple(s.dirty for s in seen.samples),
                    cache=point.kernel.cache,
                    protocol=protocol,
                    load_1m=load,
                ),
                sync=False,
            )
        take.writer.sync()
    return timed_us / US_PER_S


def sweep_points(sweep: Sweep, setting: Setting, kernel: Kernel) -> list[Point]:
    """Return a sweep's points; `setting` is the sweep's with its dtype resolved."""
    return [Point(setting, sweep.baseline, n, kernel) for n in sweep.positions]
