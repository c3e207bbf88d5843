"""How an engine's forward divides into its modules: each operation timed, in a pass of its own."""

import time
from collections.abc import Sequence

from nearfree.engines.forward import EngineKernel
from nearfree.hardware.clocks import CpuClock
from nearfree.log.events import SharesMeasured
from nearfree.log.take import OpenTake
from nearfree.measure.visits import Point

ROUNDS = 2


def measure_shares(take: OpenTake, points: Sequence[Point]) -> float:
    """Append the rounds of shares that a take lacks, at each baseline and doublings of it.

    Returns
    -------
    float
        The seconds inside forwards.
    """
    done = {
        (event.data.setting, event.data.n, event.data.round)
        for event in take.events
        if isinstance(event.data, SharesMeasured)
    }
    timed_s = 0.0
    for number in range(ROUNDS):
        for point in points:
            kernel = point.kernel
            if not isinstance(kernel, EngineKernel) or not _watched(point):
                continue
            if (point.setting, point.n, number) in done:
                continue
            kernel.ready_shares()
            began, clock = time.perf_counter(), CpuClock()
            counters = clock.start()
            part_us = kernel.shares(point.n)
            dirty = clock.stop(counters).dirty
            if not part_us:
                continue
            timed_s += time.perf_counter() - began
            shares = SharesMeasured(
                setting=point.setting,
                n=point.n,
                round=number,
                part_us=part_us,
                dirty=dirty,
                timer="cpu",
            )
            take.append(shares, sync=False)
        take.sync()
    return timed_s


def _watched(point: Point) -> bool:
    """Return whether N is the baseline times a power of two."""
    times, rest = divmod(point.n, point.baseline)
    return not rest and times & (times - 1) == 0
