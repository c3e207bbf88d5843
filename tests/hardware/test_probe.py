"""The probe: small, guarded, and sealed with all its samples."""

from collections.abc import Callable
from typing import Any

import pytest
from conftest import read_sealed
from msgspec.structs import replace
from nearfree.core.plan import ProbePlan
from nearfree.errors import ConfigError, EvidenceError, HardwareError
from nearfree.hardware import identity, probe
from nearfree.hardware.identity import cpu_fingerprint, require_probe
from nearfree.hardware.simulated import simulate_probe
from nearfree.log.events import HardwareProbed, RunStarted
from nearfree.log.names import Layout
from simulated_machine import make_machine, simulated_probe

PLAN = ProbePlan(dtypes=("float32",), guard_s=0.2, rounds=2)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probe work on little data."""
    monkeypatch.setattr(probe, "_SIZES", {"cpu": (16, 32, 64)})
    monkeypatch.setattr(probe, "_STREAM_BYTES", {"cpu": 4096})
    monkeypatch.setattr(probe, "_GEMM_WIDTHS", {"cpu": (32, 64)})


def take(seconds: float) -> Callable[..., float]:
    """Return a stopwatch that reads the same for every call, which it makes."""

    def stopwatch(_: str, call: Callable[[], Any]) -> float:
        call()
        return seconds

    return stopwatch


def test_a_probe_is_sealed_with_all_samples(layout: Layout) -> None:
    """A probe is one sealed event with its fingerprint, its peaks and every sample."""
    seal = probe.probe(layout, "cpu", "cpu", 1, PLAN)
    started, probed, _ = (event.data for event in read_sealed(layout, seal))
    assert isinstance(started, RunStarted)
    assert isinstance(probed, HardwareProbed)
    assert (started.command, started.plan) == ("nearfree probe cpu", PLAN)
    assert probed.fingerprint == cpu_fingerprint()
    (compute,) = probed.compute
    assert (compute.dtype, compute.size, len(compute.samples)) == ("float32", 64, 2)
    assert compute.gflop_s >= max(compute.samples) > 0
    stream, gemm = probed.bandwidth
    assert [b.method for b in probed.bandwidth] == ["stream", "gemm"]
    assert (len(stream.samples), stream.bytes_read) == (2, 4096)
    assert (len(gemm.samples), gemm.bytes_read) == (2 * 6, 32 * 64 * gemm_bytes())
    assert all(b.gb_s == max(b.samples) > 0 for b in probed.bandwidth)


def gemm_bytes() -> int:
    """Return the bytes of an element of this machine's own dtype."""
    return {"bfloat16": 2, "float32": 4}[probe.native_dtype(cpu_fingerprint())]


def test_a_second_probe_returns_at_once(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sealed take is not probed again; the next take is."""
    first = probe.probe(layout, "cpu", "cpu", 1, PLAN)
    assert probe.probe(layout, "cpu", "cpu", 2, PLAN).segments != first.segments
    monkeypatch.setattr(probe, "compute_peak", None)
    assert probe.probe(layout, "cpu", "cpu", 1, PLAN).segments == first.segments


def test_another_machine_is_refused(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform that was probed on another machine is not probed on this one."""
    probe.probe(layout, "cpu", "cpu", 1, PLAN)
    other = replace(cpu_fingerprint(), model="another")
    monkeypatch.setattr(identity, "cpu_fingerprint", lambda: other)
    with pytest.raises(HardwareError, match="is not the platform 'cpu'"):
        probe.probe(layout, "cpu", "cpu", 2, PLAN)
    assert len(layout.takes("cpu")) == 1
    assert require_probe(layout, "cpu").fingerprint == cpu_fingerprint()


def test_no_gpu_here(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not there is refused before anything is written."""
    monkeypatch.setattr(probe.torch.cuda, "is_available", lambda: False)
    with pytest.raises(HardwareError, match="no NVIDIA GPU"):
        probe.probe(layout, "h200", "cuda", 1, PLAN)
    assert not layout.events.exists()


def test_the_guard_stops_a_slow_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dtype whose next size would take longer than the guard stays at its size, and says so."""
    monkeypatch.setattr(probe, "_seconds", take(0.15))
    peak = probe.compute_peak("cpu", "float32", PLAN)
    assert (peak.size, peak.guarded, len(peak.samples)) == (16, True, 1)
    assert peak.gflop_s == round(2 * 16**3 / 0.15 / 1e9, 2)


def test_a_very_slow_dtype_is_tried_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that alone takes longer than the guard is timed once more and no more."""
    calls: list[str] = []

    def stopwatch(_: str, call: Callable[[], Any]) -> float:
        calls.append("one")
        return 10.0

    monkeypatch.setattr(probe, "_seconds", stopwatch)
    assert probe.compute_peak("cpu", "float32", PLAN).guarded
    assert len(calls) == 2


def test_a_fast_dtype_reaches_its_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dtype that fits into the guard is not marked as stopped, even at its last size."""
    monkeypatch.setattr(probe, "_seconds", take(1e-4))
    peak = probe.compute_peak("cpu", "float32", PLAN)
    assert (peak.size, peak.guarded, len(peak.samples)) == (64, False, 2)
    monkeypatch.setattr(probe, "_SIZES", {"cpu": (16,)})
    monkeypatch.setattr(probe, "_seconds", take(0.15))
    assert not probe.compute_peak("cpu", "float32", PLAN).guarded


def test_a_simulated_plan_is_refused(layout: Layout) -> None:
    """A real machine is not probed under the name of a simulated one."""
    with pytest.raises(ConfigError, match="for a simulated machine"):
        probe.probe(layout, "cpu", "cpu", 1, replace(PLAN, curves="0" * 64))
    assert not layout.events.exists()


def test_a_simulated_root_takes_no_real_probe(layout: Layout) -> None:
    """Where a simulated machine is on record, a real probe is refused."""
    machine = make_machine()
    simulate_probe(layout, "h20", 1, simulated_probe(machine), machine)
    with pytest.raises(EvidenceError, match="holds simulated takes of h20"):
        probe.probe(layout, "cpu", "cpu", 1, PLAN)
    assert not layout.takes("cpu")
