"""Shares of a model's forward by module, timed inside the forward, in a separate pass."""

import random
import time
from collections.abc import Sequence
from typing import Literal

import torch

from nearfree.decoders.ranks.modules import Laps
from nearfree.hardware.clocks import CpuClock
from nearfree.log.events import SharesMeasured
from nearfree.log.take import OpenTake
from nearfree.measure.visits import Point
from nearfree.models.kernel import ModelKernel
from nearfree.units import NS_PER_US, US_PER_MS

ROUNDS = 3
_AHEAD_CYCLES = 200_000_000
"""Clock cycles that the GPU spins before a forward, about 0.1 s."""


def measure_shares(take: OpenTake, points: Sequence[Point], device: str) -> float:
    """Append the rounds of shares that a take lacks: every point of a model once per round.

    Return the seconds inside forwards, including the GPU's spinning before them.
    """
    recorded = {
        (event.data.setting, event.data.n, event.data.round)
        for event in take.events
        if isinstance(event.data, SharesMeasured)
    }
    timed_s = 0.0
    for number in range(ROUNDS):
        order = [p for p in points if (p.setting, p.n, number) not in recorded]
        random.Random(f"shares/{number}").shuffle(order)  # noqa: S311 (an order, no secret)
        for point in order:
            if not isinstance(point.kernel, ModelKernel):
                continue
            start_s = time.perf_counter()
            laps = _CudaLaps() if device == "cuda" else _CpuLaps()
            point.kernel.forward(point.n, laps)
            part_us, dirty = laps.parts()
            timed_s += time.perf_counter() - start_s
            shares = SharesMeasured(
                setting=point.setting,
                n=point.n,
                round=number,
                part_us={role: round(us, 3) for role, us in part_us.items()},
                dirty=dirty,
                timer=laps.name,
            )
            take.append(shares, sync=False)
        take.sync()
    return timed_s


class _CpuLaps(Laps):
    """A monotonic clock, read after each module."""

    name: Literal["cpu", "cuda_events"] = "cpu"

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        self._clock = CpuClock()
        self._began = self._clock.start()
        self._last = time.perf_counter_ns()

    def lap(self, role: str) -> None:
        """Add the time since the last lap to a module."""
        now = time.perf_counter_ns()
        self._parts[role] = self._parts.get(role, 0) + now - self._last
        self._last = now

    def parts(self) -> tuple[dict[str, float], bool]:
        """Return microseconds by module, and whether another process used the core meanwhile."""
        dirty = self._clock.stop(self._began).dirty
        return {role: ns / NS_PER_US for role, ns in self._parts.items()}, dirty


class _CudaLaps(Laps):
    """A CUDA event after each module; the forward is launched kernel by kernel.

    Before the first event the GPU spins for about 0.1 s, so that the host gets ahead and no gap
    between launches is timed. The driver queues about 1000 launches; in a longer forward the host
    may fall behind, and gaps are timed again.
    """

    name: Literal["cpu", "cuda_events"] = "cuda_events"

    def __init__(self) -> None:
        self._laps: list[tuple[str, torch.cuda.Event]] = []
        # Not public: ATen/cuda/Sleep.h, "enqueues a kernel that spins for [...] cycles".
        torch.cuda._sleep(_AHEAD_CYCLES)  # noqa: SLF001
        self._first = self._event()

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def lap(self, role: str) -> None:
        """Add the time since the last lap to a module."""
        self._laps.append((role, self._event()))

    def parts(self) -> tuple[dict[str, float], bool]:
        """Return microseconds by module; a GPU pass never counts as disturbed."""
        torch.cuda.synchronize()
        parts: dict[str, float] = {}
        previous = self._first
        for role, event in self._laps:
            parts[role] = parts.get(role, 0.0) + previous.elapsed_time(event) * US_PER_MS
            previous = event
        return parts, False
