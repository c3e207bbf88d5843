"""Timers and their disturbances."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from nearfree.errors import HardwareError
from nearfree.hardware import clocks
from nearfree.hardware.clocks import CpuClock, load_1m


def switch(monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
    """Let the system count involuntary context switches as given, a call after the other."""
    answers = iter(counts)
    monkeypatch.setattr(
        clocks.resource, "getrusage", lambda _: SimpleNamespace(ru_nivcsw=next(answers))
    )


def test_a_sample_is_in_microseconds() -> None:
    """A sample's wall time is what the call took, in microseconds."""
    clock = CpuClock()
    began, reference = clock.start(), time.perf_counter_ns()
    time.sleep(0.02)
    sample, most = clock.stop(began), (time.perf_counter_ns() - reference) / 1000
    assert 20_000 <= sample.wall_us <= most + 1000
    assert sample.process_us < 20_000


def test_process_time_counts_work() -> None:
    """Process time is the CPU time of the call, and a wait has none."""
    clock = CpuClock()
    began, until = clock.start(), time.process_time_ns() + 20_000_000
    while time.process_time_ns() < until:
        pass
    assert clock.stop(began).process_us >= 20_000


@pytest.mark.parametrize(
    ("switches", "process_ns", "dirty"),
    [(0, 100_000, False), (0, 50_000, False), (1, 50_000, True), (1, 98_900, True),
     (1, 99_100, False), (9, 180_000, False)],
)  # fmt: skip
def test_a_switch_that_took_time_makes_a_sample_dirty(
    monkeypatch: pytest.MonkeyPatch, switches: int, process_ns: int, *, dirty: bool
) -> None:
    """A sample is dirty if a switch took over a hundredth of it; a voluntary wait is none."""
    clock = CpuClock()
    switch(monkeypatch, 7, 7 + switches)
    began = clock.start()
    monkeypatch.setattr(clocks.time, "perf_counter_ns", lambda: began[2] + 100_000)
    monkeypatch.setattr(clocks.time, "process_time_ns", lambda: began[1] + process_ns)
    sample = clock.stop(began)
    assert (sample.wall_us, sample.process_us) == (100.0, process_ns / 1000)
    assert sample.dirty == dirty


def test_a_time_that_the_clock_cannot_resolve() -> None:
    """A call of under 100 ticks of the clock is refused with both numbers."""
    clock = CpuClock()
    clock.resolution_us = 0.5
    clock.check(50.0)
    with pytest.raises(HardwareError, match=r"49\.900 us, under 100 ticks .* \(0\.500 us\)"):
        clock.check(49.9)


def test_a_time_that_a_reading_shifts() -> None:
    """A call of under 50 readings of the clock is refused with both numbers."""
    clock = CpuClock()
    clock.resolution_us, clock.reading_us = 0.001, 0.08
    clock.check(4.0)
    with pytest.raises(HardwareError, match=r"3\.900 us, under 50 readings .* \(0\.080 us\)"):
        clock.check(3.9)


@pytest.mark.parametrize(("step", "costs"), [(1, (60, 61, 80)), (100, (50, 60, 70))])
def test_the_resolution_is_the_clocks_step(
    monkeypatch: pytest.MonkeyPatch, step: int, costs: tuple[int, ...]
) -> None:
    """The cost of a reading is not the clock's resolution, however long it takes."""
    true_ns, cost = 0, itertools.cycle(costs)

    def reading() -> int:
        nonlocal true_ns
        true_ns += next(cost)
        return true_ns - true_ns % step

    monkeypatch.setattr(clocks.time, "perf_counter_ns", reading)
    clock = CpuClock()
    assert clock.resolution_us == step / 1000
    assert clock.reading_us == max(step, min(costs)) / 1000


def test_the_resolution_is_positive_and_small() -> None:
    """The clock's resolution is found, and is under a tenth of a millisecond."""
    assert 0 < CpuClock().resolution_us < 100


def test_the_load_is_the_average_over_one_minute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The load is the first number that the system gives."""
    (tmp_path / "loadavg").write_text("1.25 2.50 3.75 1/99 1234\n")
    monkeypatch.setattr(clocks, "Path", lambda _: tmp_path / "loadavg")
    assert load_1m() == 1.25


def test_a_system_without_a_load_average(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the system gives no load average there is none, not an error."""
    monkeypatch.setattr(clocks, "Path", lambda _: tmp_path / "loadavg")
    assert load_1m() is None
