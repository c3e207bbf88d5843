"""Takes on a simulated machine: real protocols, repeatable noise, always marked as simulated."""

from collections import defaultdict
from statistics import median, stdev

import pytest
from conftest import make_plan, read_sealed
from derive.tables.logs import write_probe
from nearfree.backends.adapters.kernel import ADAPTERS
from nearfree.core.boundary import boundary, ratios
from nearfree.core.plan import MeasurePlan
from nearfree.core.protocols import Adaptive, Interleaved, Paper, Timing
from nearfree.errors import ConfigError, EvidenceError, StoppedError
from nearfree.hardware.simulated import Machine, simulate_probe
from nearfree.log.events import LatencyMeasured, RunStarted, WorkCounted
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.measure.adapter_runs import adapter_runs, untested_adapters
from nearfree.measure.run import measure
from nearfree.measure.simulated import SIGMA, SimulatedKernel, SimulatedTimer, simulate
from simulated_machine import (
    EXPERTS,
    FFN,
    GRID,
    MODEL,
    REFUSED,
    SMALL,
    knee,
    make_machine,
    simulated_plan,
    simulated_probe,
)
from test_layers import HEAVY, loaded

MACHINE = make_machine()
PROTOCOLS = (Interleaved(rounds=4), SMALL, Paper(rounds=3, warmup=1, forwards=4))


@pytest.fixture
def probed(layout: Layout) -> Layout:
    """Return a root that knows the simulated machine."""
    simulate_probe(layout, "h20", 1, simulated_probe(MACHINE), MACHINE)
    return layout


def take(layout: Layout, plan: MeasurePlan, machine: Machine = MACHINE) -> Seal:
    """Make sure that a plan is sealed."""
    return simulate(layout, "h20", "ffn", 1, plan, machine=machine)


def visits(layout: Layout, seal: Seal) -> list[LatencyMeasured]:
    """Return the visits of a take."""
    data = (event.data for event in read_sealed(layout, seal))
    return [event for event in data if isinstance(event, LatencyMeasured)]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_every_protocol_runs_on_it(probed: Layout, protocol: Timing) -> None:
    """A take holds visits of every point of the protocol, each marked as simulated."""
    seal = take(probed, simulated_plan(MACHINE, FFN, EXPERTS, MODEL, protocol=protocol))
    visited = visits(probed, seal)
    assert {(v.setting, v.n) for v in visited} == {
        (s, n) for s in (FFN, EXPERTS, MODEL) for n in GRID
    }
    assert {v.timer for v in visited} == {"simulated"}
    assert {v.launch for v in visited} == {protocol.launch}
    assert not any(True in v.dirty for v in visited)


def test_the_run_says_what_it_pretends_to_be(probed: Layout) -> None:
    """The run names the device as simulated, and the releases whose curves it takes."""
    data = [e.data for e in read_sealed(probed, take(probed, simulated_plan(MACHINE)))]
    started = next(event for event in data if isinstance(event, RunStarted))
    assert started.device == "NVIDIA H20 (simulated)"
    assert started.versions["vllm"] == "0.33.0"
    counted = [event for event in data if isinstance(event, WorkCounted)]
    assert [(event.n, event.kernels) for event in counted] == [(n, ("simulated",)) for n in GRID]


def test_the_noise_is_small_and_has_no_bias() -> None:
    """A thousand samples scatter around the curve with a standard deviation of SIGMA."""
    timer, kernel = SimulatedTimer(SMALL), SimulatedKernel(FFN, GRID, MACHINE)
    samples = [timer.sample(kernel, 1).wall_us for _ in range(1000)]
    assert median(samples) == pytest.approx(knee(1), rel=SIGMA)
    assert stdev(samples) == pytest.approx(SIGMA * knee(1), rel=0.2)


def test_noise_depends_on_the_point_and_the_samples_number_alone() -> None:
    """Points do not disturb each other, whatever their order; another seed is another noise."""
    kernels = [SimulatedKernel(setting, GRID, MACHINE) for setting in (FFN, EXPERTS)]
    one, other = SimulatedTimer(SMALL), SimulatedTimer(SMALL)
    there = [[one.sample(k, 1).wall_us for _ in range(3)] for k in kernels]
    back = [[other.sample(k, 1).wall_us for _ in range(3)] for k in reversed(kernels)]
    assert there == back[::-1]
    assert len({us for latencies in there for us in latencies}) == 6
    seeded = SimulatedTimer(Adaptive(seed=1))
    assert seeded.sample(kernels[0], 1).wall_us != there[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_an_interrupted_take_goes_on_as_it_would_have(
    probed: Layout, tmp_path_factory: pytest.TempPathFactory, protocol: Timing
) -> None:
    """Stopped after any round, a take ends with the same samples as one that never stopped."""
    plan = simulated_plan(MACHINE, FFN, EXPERTS, protocol=protocol)
    straight = visits(probed, take(probed, plan))
    other = Layout(tmp_path_factory.mktemp("other"))
    simulate_probe(other, "h20", 1, simulated_probe(MACHINE), MACHINE)
    shares: list[float] = []

    def stopping(share: float) -> None:
        shares.append(share)
        if len(shares) in {1, 3}:
            raise StoppedError("stopped", remedy="Go on")

    for _ in range(2):
        with pytest.raises(StoppedError):
            simulate(other, "h20", "ffn", 1, plan, machine=MACHINE, progress=stopping)
    seal = simulate(other, "h20", "ffn", 1, plan, machine=MACHINE)
    assert len(seal.segments) == 3

    def rows_of(taken: list[LatencyMeasured]) -> list[object]:
        return [(v.setting, v.n, v.round, v.order, v.paired, v.wall_us) for v in taken]

    assert rows_of(visits(other, seal)) == rows_of(straight)


def test_the_boundary_is_that_of_the_curve(probed: Layout) -> None:
    """N_max from the take is the last N at which the curve without noise passes."""
    rounds: dict[int, dict[int, float]] = defaultdict(dict)
    for visit in visits(probed, take(probed, simulated_plan(MACHINE, protocol=Adaptive()))):
        rounds[visit.n][visit.round] = median(visit.wall_us)
    interval = boundary(ratios(rounds, 1), 0.2, 1)
    assert (interval.last_pass, interval.low, interval.high) == (8, 8, 8)


def test_it_is_sealed_once(probed: Layout) -> None:
    """A sealed plan is not run again."""
    plan = simulated_plan(MACHINE)
    assert take(probed, plan).segments == take(probed, plan).segments


def test_another_curve_file_is_another_plan(probed: Layout) -> None:
    """A plan runs on the file that it names, and on no other, nor does a real machine's plan."""
    other = make_machine(code="f" * 16)
    for plan in (simulated_plan(other), make_plan()):
        with pytest.raises(ConfigError, match="another curve file"):
            take(probed, plan)
    assert simulated_plan(other) != simulated_plan(MACHINE)


def test_a_refused_setting_fails_with_its_reason(probed: Layout) -> None:
    """Nothing of a plan is begun if the predictor refused one of its settings."""
    with pytest.raises(EvidenceError, match="no rules are read"):
        take(probed, simulated_plan(MACHINE, FFN, REFUSED))
    assert [take.stream for take in probed.takes(sealed=False)] == []


def test_the_platform_is_probed_first(layout: Layout) -> None:
    """As on a real machine."""
    with pytest.raises(EvidenceError, match="no probe of h20"):
        take(layout, simulated_plan(MACHINE))


def test_neither_kind_is_written_beside_the_other(
    probed: Layout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is measured stays out of a simulated root, and the other way round."""
    with pytest.raises(EvidenceError, match="holds simulated takes of h20"):
        measure(probed, "h20", "ffn", 1, make_plan())
    real = Layout(tmp_path_factory.mktemp("real"))
    write_probe(real, "cpu")
    with pytest.raises(EvidenceError, match="holds measured takes of cpu"):
        take(real, simulated_plan(MACHINE))


def test_a_real_machine_does_not_take_a_simulated_plan(layout: Layout) -> None:
    """Without its curve file such a plan is a mistake, not a measurement."""
    with pytest.raises(ConfigError, match="--curves"):
        measure(layout, "h20", "ffn", 1, simulated_plan(MACHINE))


def test_no_adapter_counts_as_run(probed: Layout) -> None:
    """A simulated take proves nothing of a backend."""
    take(probed, simulated_plan(MACHINE, EXPERTS))
    assert adapter_runs(probed) == set()
    assert len(untested_adapters(set())) >= len(ADAPTERS)


def test_it_needs_neither_torch_nor_tables() -> None:
    """Where only msgspec is installed, a simulated take can be made."""
    program = (
        "import nearfree.measure.simulated, nearfree.hardware.simulated\n"
        "from nearfree.cli import machine, measure\n"
    )
    assert not loaded(program, *HEAVY, "numpy") & HEAVY
