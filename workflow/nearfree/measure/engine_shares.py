"""Shares of an engine's forward by module: each operation is timed, in a separate pass."""

import time
from collections.abc import Sequence

from nearfree.engines.forward import EngineKernel
from nearfree.hardware.clocks import CpuClock
from nearfree.log.events import SharesMeasured
from nearfree.log.take import OpenTake
from nearfree.measure.visits import Point

ROUNDS = 2


def measure_shares(take: OpenTake, points: Sequence[Point]) -> float:
    """Append the rounds of shares that a take lacks, at each baseline times a power of two.

    Return the seconds inside forwards.
    """
    recorded = {
        (event.data.setting, event.data.n, event.data.round)
        for event in take.events
        if isinstance(event.data, SharesMeasured)
    }
    timed_s = 0.0
    for number in range(ROUNDS):
        for point in points:
            kernel = point.kernel
            factor, remainder = divmod(point.n, point.baseline)
            timed = not remainder and factor & (factor - 1) == 0
            if not isinstance(kernel, EngineKernel) or not timed:
                continue
            if (point.setting, point.n, number) in recorded:
                continue
            kernel.ready_shares()
            start_s, clock = time.perf_counter(), CpuClock()
            counters = clock.start()
            part_us = kernel.shares(point.n)
            dirty = clock.stop(counters).dirty
            if not part_us:
                continue
            timed_s += time.perf_counter() - start_s
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
