"""A measuring take from end to end, with real kernels that are tiny."""

import gc

import pytest
import torch
from conftest import make_plan, read_sealed
from derive.tables.logs import write_probe
from msgspec.structs import replace
from nearfree.backends.adapters import torch_dense
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.core.plan import MeasurePlan, ProbePlan, Sweep
from nearfree.core.protocols import Adaptive, Paper, Timing
from nearfree.errors import EvidenceError, HardwareError
from nearfree.hardware import identity, probe
from nearfree.hardware.clocks import CpuClock
from nearfree.hardware.identity import cpu_fingerprint, native_dtype
from nearfree.log.events import (
    Fingerprint,
    LatencyMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    WorkCounted,
)
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.take import take_name
from nearfree.measure import prepare, run
from nearfree.measure.run import measure

PLAN = make_plan(positions=(1, 2), backend="torch", dtype="auto")


@pytest.fixture
def probed(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Return a log that knows this machine, and a clock for which no forward is too short."""
    monkeypatch.setattr(probe, "_SIZES", {"cpu": (16,)})
    monkeypatch.setattr(probe, "_STREAM_BYTES", {"cpu": 4096})
    monkeypatch.setattr(probe, "_GEMM_WIDTHS", {"cpu": (32, 64)})
    probe.probe(layout, "cpu", "cpu", 1, ProbePlan(dtypes=("float32",), guard_s=0.2, rounds=2))

    class FineClock(CpuClock):
        def __init__(self) -> None:
            self.resolution_us = self.reading_us = 1e-6

    monkeypatch.setattr("nearfree.measure.visits.CpuClock", FineClock)
    return layout


def take(layout: Layout, plan: MeasurePlan = PLAN, number: int = 1) -> list[object]:
    """Make sure that a plan is sealed, and return its payloads."""
    seal = measure(layout, "cpu", "dense", number, plan)
    return [event.data for event in read_sealed(layout, seal)]


def visits(data: list[object]) -> list[LatencyMeasured]:
    """Return the visits among payloads."""
    return [event for event in data if isinstance(event, LatencyMeasured)]


def test_a_plan_is_measured_and_sealed(probed: Layout) -> None:
    """A take holds its run, every visit of every round with real times, and its end."""
    data = take(probed)
    assert isinstance(data[0], RunStarted)
    assert (data[0].command, data[0].device) == (
        "nearfree measure cpu dense --take 1",
        cpu_fingerprint().model,
    )
    assert isinstance(data[-1], RunFinished)
    assert [(v.round, v.order) for v in visits(data)] == [(r, o) for r in range(3) for o in (0, 1)]
    assert all(us > 0 for v in visits(data) for us in v.wall_us)
    assert all(len(v.wall_us) == len(v.process_us) == len(v.dirty) for v in visits(data))


def test_auto_is_never_in_an_event(probed: Layout) -> None:
    """An event names the dtype that was used, where the plan has `auto`."""
    native = native_dtype(cpu_fingerprint())
    assert {v.setting.dtype for v in visits(take(probed))} == {native}


def test_the_timed_seconds_fit_into_the_run(probed: Layout) -> None:
    """The seconds inside of forwards are positive and no more than those of the whole run."""
    finished = take(probed)[-1]
    assert isinstance(finished, RunFinished)
    assert finished.timed_s is not None
    assert 0 < finished.timed_s <= finished.wall_s


def test_a_sealed_plan_returns_at_once(probed: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sealed is not measured again, even by a machine that could not."""
    first = take(probed)
    monkeypatch.setattr(prepare, "make_kernel", None)
    monkeypatch.setattr(run, "this_machine", None)
    assert take(probed) == first


def test_the_next_take_is_another_measurement(probed: Layout) -> None:
    """A further take is measured, and the older one stays."""
    take(probed)
    take(probed, number=2)
    assert [t.take for t in probed.takes("cpu") if t.stream == "dense"] == [1, 2]


def test_several_sweeps_interleave(probed: Layout) -> None:
    """The settings of a plan share its rounds."""
    (sweep,) = PLAN.sweeps
    other = Sweep(setting=replace(sweep.setting, batch=2), positions=(1, 4))
    data = visits(take(probed, replace(PLAN, sweeps=(sweep, other))))
    assert len(data) == 3 * 4
    assert {(v.setting.batch, v.n) for v in data[:4]} == {(1, 1), (1, 2), (2, 1), (2, 4)}


def test_measuring_before_probing_is_refused(layout: Layout) -> None:
    """Without a probe nothing is measured and nothing is written."""
    with pytest.raises(EvidenceError, match="no probe of cpu"):
        measure(layout, "cpu", "dense", 1, PLAN)
    assert not layout.events.exists()


def test_another_machine_is_refused(probed: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with another fingerprint is refused, with a new platform name proposed."""
    other = replace(cpu_fingerprint(), cores=cpu_fingerprint().cores + 1)
    monkeypatch.setattr(identity, "cpu_fingerprint", lambda: other)
    with pytest.raises(HardwareError, match="cores") as refusal:
        measure(probed, "cpu", "dense", 1, PLAN)
    assert "cpu_2" in refusal.value.remedy
    assert probed.attempts(take_name("cpu", "dense", 1, PLAN)) == []


def test_output_that_is_not_finite_is_refused(
    probed: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward that overflows ends the take before anything is timed; the log says why."""

    def huge(_execution: ExecutionContext, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.full(shape, float("inf"), dtype=dtype)

    monkeypatch.setattr(torch_dense, "filled", huge)
    with pytest.raises(EvidenceError, match="not finite"):
        measure(probed, "cpu", "dense", 1, PLAN)
    name = take_name("cpu", "dense", 1, PLAN)
    segment = read_segment(probed.segment(name, 1), name.segment(1))
    assert [type(event.data) for event in segment.events] == [RunStarted, RunFailed]
    assert "N=1" in segment.events[-1].data.error


def test_a_backend_without_an_adapter_is_refused(probed: Layout) -> None:
    """A backend that nothing here runs is refused by name, and nothing is sealed."""
    with pytest.raises(EvidenceError, match="no adapter runs dense_ffn on vllm"):
        measure(probed, "cpu", "dense", 1, make_plan(backend="vllm"))
    assert [t.stream for t in probed.takes("cpu")] == ["hardware"]


def test_a_clock_that_is_too_coarse_is_refused(
    probed: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forwards that the clock cannot resolve are refused, not written."""

    class CoarseClock(CpuClock):
        def __init__(self) -> None:
            self.resolution_us = self.reading_us = 1e9

    monkeypatch.setattr("nearfree.measure.visits.CpuClock", CoarseClock)
    with pytest.raises(HardwareError, match="under 100 ticks"):
        measure(probed, "cpu", "dense", 1, PLAN)
    name = take_name("cpu", "dense", 1, PLAN)
    segment = read_segment(probed.segment(name, 1), name.segment(1))
    assert not any(isinstance(event.data, LatencyMeasured) for event in segment.events)


def test_the_cycle_collector_rests_while_it_measures(
    probed: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection is off during the take and on after it, also after a failure."""
    seen = []

    def watch(*_: object) -> float:
        seen.append(gc.isenabled())
        raise HardwareError("stopped", remedy="Go on")

    monkeypatch.setattr(run, "run", watch)
    with pytest.raises(HardwareError, match="stopped"):
        measure(probed, "cpu", "dense", 1, PLAN)
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_gpu_platform_is_not_measured_on_its_cpu(layout: Layout) -> None:
    """A platform that was probed as a GPU needs that GPU, so no CPU latency carries its name."""
    gpu = Fingerprint(kind="cuda", model="Test GPU", features=(), cores=1, caches={})
    write_probe(layout, "h200", fingerprint=gpu)
    with pytest.raises(HardwareError, match="no NVIDIA GPU"):
        measure(layout, "h200", "dense", 1, PLAN)
    assert not layout.takes("h200", sealed=False)


@pytest.mark.parametrize("protocol", [Adaptive(seconds_max=0.2), Paper(rounds=3, forwards=3)])
def test_every_protocol_measures(probed: Layout, protocol: Timing) -> None:
    """A plan is measured by its protocol, and each N has visits."""
    data = visits(take(probed, replace(PLAN, protocol=protocol)))
    assert {v.n for v in data} == {1, 2}
    assert {v.protocol for v in data} == {protocol}
    assert len({v.round for v in data}) >= protocol.rounds


def test_the_work_of_every_point_is_on_record(probed: Layout) -> None:
    """Each point's work and kernels are recorded once a take, before anything is timed."""
    data = take(probed)
    counted = [event for event in data if isinstance(event, WorkCounted)]
    assert [(event.setting.batch, event.n) for event in counted] == [(1, 1), (1, 2)]
    assert {event.work.flop_logical for event in counted} == {4 * n * 64 * 128 for n in (1, 2)}
    assert all("mm" in event.kernels for event in counted)
    assert data.index(counted[-1]) < data.index(visits(data)[0])


def test_a_resumed_take_tells_its_work_once(
    probed: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that an interrupted attempt recorded is not recorded again."""

    def fail(*_: object) -> None:
        raise HardwareError("stopped", remedy="Go on")

    with monkeypatch.context() as patched:
        patched.setattr(run, "run", fail)
        with pytest.raises(HardwareError, match="stopped"):
            take(probed)
    counted = [event for event in take(probed) if isinstance(event, WorkCounted)]
    assert [event.n for event in counted] == [1, 2]


def test_a_lost_gpu_is_told_from_a_mistake() -> None:
    """An error of CUDA becomes one message with what to do; any other error stays what it is."""
    gpu = Fingerprint(kind="cuda", model="Test GPU", features=(), cores=1, caches={})
    failure = pytest.raises(HardwareError, match="the GPU failed: CUDA error: unspecified")
    with failure as refusal, run._torch_settings(gpu, PLAN.protocol):
        raise RuntimeError("CUDA error: unspecified launch failure\nmore lines")
    assert "kept" in refusal.value.remedy
    with pytest.raises(RuntimeError, match="shapes"), run._torch_settings(gpu, PLAN.protocol):
        raise RuntimeError("shapes differ")
    with (
        pytest.raises(RuntimeError, match="CUDA"),
        run._torch_settings(cpu_fingerprint(), PLAN.protocol),
    ):
        raise RuntimeError("CUDA is not here")
