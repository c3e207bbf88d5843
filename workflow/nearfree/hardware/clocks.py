"""Timers, and what can disturb them."""

import resource
import time
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from nearfree.errors import HardwareError
from nearfree.units import NS_PER_US


class Sample(Struct, frozen=True):
    """One timed call: wall and process CPU time in microseconds, and whether it was disturbed."""

    wall_us: float
    process_us: float
    dirty: bool


_READINGS = 200
_TAKEN = 0.01
"""Of a sample's wall time: what another process may take of it before it counts as disturbed."""


class CpuClock:
    """The monotonic clock, with what others took of the core as the sign of a disturbed sample.

    It is disturbed if there was an involuntary context switch, and CPU time falls short of wall
    time by over a hundredth. Forwards of a second are switched out for an instant nearly always.
    Of several threads CPU time exceeds wall time, and none of their samples counts as disturbed.

    `resolution_us` is its step, told from what passes between two readings: the least by which two
    such times differ. `reading_us` is the least that passes, which every sample has on top.
    """

    def __init__(self) -> None:
        passed = sorted({self._tick() for _ in range(_READINGS)})
        steps = [later - sooner for sooner, later in pairwise(passed)]
        self.resolution_us = min(passed[0], *steps) / NS_PER_US if steps else passed[0] / NS_PER_US
        self.reading_us = passed[0] / NS_PER_US

    @staticmethod
    def _tick() -> int:
        start = time.perf_counter_ns()
        while (now := time.perf_counter_ns()) == start:
            pass
        return now - start

    def start(self) -> tuple[int, int, int]:
        """Return the counters to hand to `stop`."""
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return switches, time.process_time_ns(), time.perf_counter_ns()

    def stop(self, began: tuple[int, int, int]) -> Sample:
        """Return the sample since `began`; dirty if another process took the core meanwhile."""
        wall = time.perf_counter_ns() - began[2]
        process = time.process_time_ns() - began[1]
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - began[0]
        return Sample(
            wall_us=round(wall / NS_PER_US, 3),
            process_us=round(process / NS_PER_US, 3),
            dirty=switches > 0 and process < (1 - _TAKEN) * wall,
        )

    def check(self, wall_us: float) -> None:
        """Refuse a time of under 100 steps of this clock, or 50 of its readings.

        The first is what it cannot resolve to one percent; the second what its reading shifts by
        more than two, which draws T(N) / T(1) towards 1 by as much.
        """
        for least, what, each_us in (
            (100, "ticks", self.resolution_us),
            (50, "readings", self.reading_us),
        ):
            if wall_us < least * each_us:
                raise HardwareError(
                    f"a forward takes {wall_us:.3f} us, under {least} {what} of this clock "
                    f"({each_us:.3f} us)",
                    remedy="Measure a larger shape",
                )


def load_1m() -> float | None:
    """Return the run-queue average over one minute, None where the system does not tell."""
    try:
        return float(Path("/proc/loadavg").read_text().split()[0])
    except OSError:
        return None
