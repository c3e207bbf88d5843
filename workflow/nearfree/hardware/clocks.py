"""Timers, and the detection of disturbed samples."""

import resource
import time
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from nearfree.errors import HardwareError
from nearfree.units import NS_PER_US


class Sample(Struct, frozen=True):
    """One timed call: wall and process CPU time in microseconds; `dirty` if it was disturbed."""

    wall_us: float
    process_us: float
    dirty: bool
    handover_ns: float | None = None
    """Longest round trip between the CPUs before and after it, where they were watched."""
    changed_us: float | None = None
    """Wall time of the untimed call before it, if that was the first one over another N."""


_READINGS = 200
_DISTURBED_SHARE = 0.01
"""The share of a sample's wall time without CPU time above which it counts as disturbed."""


class CpuClock:
    """The monotonic clock, which detects samples that other processes disturbed.

    A sample is disturbed if there was an involuntary context switch and CPU time is more than one
    percent below wall time. The second condition is needed because forwards of a second nearly
    always have a brief switch. With several threads CPU time exceeds wall time, so that this clock
    counts no sample as disturbed; `Handover` does.

    `resolution_us` is the clock's step, the smallest difference between the times of two readings.
    `reading_us` is the shortest time of a reading, which every sample includes.
    """

    def __init__(self) -> None:
        tick_ns = sorted({self._tick() for _ in range(_READINGS)})
        steps_ns = [later - earlier for earlier, later in pairwise(tick_ns)]
        self.resolution_us = min([tick_ns[0], *steps_ns]) / NS_PER_US
        self.reading_us = tick_ns[0] / NS_PER_US

    @staticmethod
    def _tick() -> int:
        """Return the nanoseconds until the clock shows another time."""
        start = time.perf_counter_ns()
        while (now := time.perf_counter_ns()) == start:
            pass
        return now - start

    def start(self) -> tuple[int, int, int]:
        """Return the counters to pass to `stop`."""
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return switches, time.process_time_ns(), time.perf_counter_ns()

    def stop(self, began: tuple[int, int, int]) -> Sample:
        """Return the sample since `start`; dirty if another process used the core meanwhile."""
        wall_ns = time.perf_counter_ns() - began[2]
        process_ns = time.process_time_ns() - began[1]
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - began[0]
        return Sample(
            wall_us=round(wall_ns / NS_PER_US, 3),
            process_us=round(process_ns / NS_PER_US, 3),
            dirty=switches > 0 and process_ns < (1 - _DISTURBED_SHARE) * wall_ns,
        )

    def check(self, wall_us: float) -> None:
        """Raise HardwareError for a time below 100 steps of this clock, or below 50 readings.

        The clock cannot resolve a shorter time to one percent; and a reading adds more than two
        percent to it, which moves T(N) / T(1) towards 1 by as much.
        """
        for minimum, unit, unit_us in (
            (100, "ticks", self.resolution_us),
            (50, "readings", self.reading_us),
        ):
            if wall_us < minimum * unit_us:
                raise HardwareError(
                    f"a forward takes {wall_us:.3f} us, under {minimum} {unit} of this clock "
                    f"({unit_us:.3f} us)",
                    remedy="Measure a larger shape",
                )


def load_1m() -> float | None:
    """Return the load average over one minute, None where the system does not report it."""
    try:
        return float(Path("/proc/loadavg").read_text().split()[0])
    except OSError:
        return None
