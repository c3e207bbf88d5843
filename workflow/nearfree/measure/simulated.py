"""Measure a take on a simulated machine: the real protocols, with a clock that reads a curve."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from msgspec import structs

from nearfree.backends.adapters.kernel import Kernel
from nearfree.core.label import setting_key
from nearfree.core.modules.registry import kind_of
from nearfree.core.plan import MeasurePlan
from nearfree.core.protocols import Timing
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import ConfigError
from nearfree.hardware.clocks import Sample
from nearfree.hardware.identity import check_identity, require_probe
from nearfree.hardware.simulated import Curve, Machine
from nearfree.log.events import DeviceState, LatencyMeasured, RunStarted, WorkCounted
from nearfree.log.evidence import refuse_mixed
from nearfree.log.names import Layout
from nearfree.log.run import describe_run
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, ensure_sealed, ensure_take, take_name
from nearfree.measure.protocols import run
from nearfree.measure.rounds import whole_rounds
from nearfree.measure.visits import Bench, Point, Progress, no_progress, stoppable

SIGMA = 0.003
"""Standard deviation of the logarithm of a sample."""
NAME: Literal["simulated"] = "simulated"


class SimulatedKernel:
    """The kernel of one setting; EvidenceError if the machine lacks its curve, or an N of it.

    The cache counts as cold: weights and keys are read from memory, as predictors assume.
    """

    cache: Literal["cold", "warm"] = "cold"

    def __init__(self, setting: Setting, positions: Iterable[int], machine: Machine) -> None:
        self.setting = setting
        self._parts = machine.parts(setting)
        self._latency_us = {
            n: sum(count * machine.at(curve, n) for count, curve in self._parts) for n in positions
        }

    def latency_us(self, n: int) -> float:
        """Return T(N) without noise, in microseconds."""
        return self._latency_us[n]

    def forward(self, n: int) -> Any:  # noqa: ARG002 (any N is the same nothing)
        """Compute nothing."""
        return None

    def work(self, n: int) -> ExecutedWork:
        """Return the work that the real kernels would execute, as far as the curves describe it.

        Padding keys of a tile, splits of the keys, and tiles per SM are not counted.
        """
        works = [(count, _executed(curve, n)) for count, curve in self._parts]
        if self.setting.module != "model":
            return works[0][1]
        return ExecutedWork(
            flop_logical=sum(work.flop_logical * count for count, work in works),
            flop_executed=sum(work.flop_executed * count for count, work in works),
            bytes_compulsory=sum(work.bytes_compulsory * count for count, work in works),
            basis=f"simulated: the sum of {len(works)} kinds of modules",
        )


def _executed(curve: Curve, n: int) -> ExecutedWork:
    setting, index = curve.setting, curve.n.index(n)
    basis = f"simulated: {curve.release or setting.backend}"
    rows = curve.block_rows[index] if curve.block_rows else None
    group = curve.rows_per_position[index] if curve.rows_per_position else 1
    return kind_of(setting).executed(setting, n, basis, rows=rows, group=group)


class SimulatedTimer:
    """A curve's T(N) times noise; the timer does not sleep.

    The noise depends on the seed, the point and the sample's number alone. So an interrupted take
    continues as if it had not been interrupted.

    Parameters
    ----------
    visits
        The visits that the take already holds.
    """

    name = NAME

    def __init__(self, protocol: Timing, visits: Iterable[LatencyMeasured] = ()) -> None:
        self._seed = protocol.seed
        self.launch: Literal["eager", "graph"] = protocol.launch
        self.forwards_a_sample = protocol.graph_forwards if protocol.launch == "graph" else 1
        self._noise: dict[tuple[SimulatedKernel, int], random.Random] = {}
        self._earlier_samples: Counter[tuple[Setting, int]] = Counter()
        for visit in visits:
            self._earlier_samples[visit.setting, visit.n] += len(visit.wall_us)

    def warm(self, kernel: Kernel, n: int) -> None:
        """Do nothing: a simulated machine is always warm."""

    def sample(self, kernel: Kernel, n: int) -> Sample:
        """Return the time of a forward."""
        if not isinstance(kernel, SimulatedKernel):
            raise TypeError(f"{type(kernel).__name__} is no simulated kernel")
        noise = self._noise_of(kernel, n).gauss(0, SIGMA)
        latency_us = kernel.latency_us(n) * math.exp(noise)
        return Sample(wall_us=round(latency_us, 3), process_us=0.0, dirty=False)

    def _noise_of(self, kernel: SimulatedKernel, n: int) -> random.Random:
        """Return a point's noise generator, advanced past the samples of earlier attempts."""
        if (kernel, n) not in self._noise:
            name = f"{self._seed}/{setting_key(kernel.setting)}/{n}"
            noise = random.Random(name)  # noqa: S311 (noise, no secret)
            for _ in range(self._earlier_samples[kernel.setting, n]):
                noise.gauss(0, SIGMA)
            self._noise[kernel, n] = noise
        return self._noise[kernel, n]

    def check(self, wall_us: float) -> None:
        """Accept every time: a simulated clock has no resolution."""

    def state(self) -> DeviceState | None:
        """Return nothing: there is no device."""
        return None


def simulate(
    layout: Layout,
    scope: str,
    stream: str,
    take: int,
    plan: MeasurePlan,
    *,
    machine: Machine,
    progress: Progress = no_progress,
) -> Seal:
    """Measure a plan on a simulated machine, seal its take, and return the seal; see `measure`.

    It needs no device, no backend and no torch.

    Raises
    ------
    ConfigError
        The plan was made with another curve file.
    EvidenceError
        The platform was not probed yet, the root holds real measurements, or the machine has no
        curve of a setting.
    """
    if plan.curves != machine.digest:
        raise ConfigError(
            f"the plan of {scope}/{stream} is of another curve file, or of a real machine",
            remedy="Make it again: `nearfree plan` uses the file that config.yaml names",
        )
    name = take_name(scope, stream, take, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    refuse_mixed(layout, as_simulated=True)
    require_probe(layout, scope)
    check_identity(layout, scope, machine.fingerprint)
    points = list(_points(plan, machine))

    def observe(open_take: OpenTake) -> None:
        with stoppable(progress) as stopping:
            _measure_points(open_take, plan, points, stopping)

    def describe(attempt: int) -> RunStarted:
        command = f"nearfree measure {scope} {stream} --take {take}"
        start = describe_run(command, plan, attempt, device=machine.fingerprint.model)
        # A model's prediction reads the rules of the releases that the run records.
        return structs.replace(start, versions=start.versions | machine.file.releases)

    return ensure_take(layout, name, plan, describe, observe, keep=whole_rounds)


def _points(plan: MeasurePlan, machine: Machine) -> Iterator[Point]:
    for sweep in plan.sweeps:
        setting = machine.resolved(sweep.setting)
        kernel = SimulatedKernel(setting, sweep.positions, machine)
        for n in sweep.positions:
            yield Point(setting, sweep.baseline, n, kernel)


def _measure_points(
    take: OpenTake, plan: MeasurePlan, points: Sequence[Point], progress: Progress
) -> None:
    """Record the work of each point, then time all points by the plan's protocol."""
    earlier = [event.data for event in take.events]
    counted = {(data.setting, data.n) for data in earlier if isinstance(data, WorkCounted)}
    for point in points:
        if (point.setting, point.n) not in counted:
            work = point.kernel.work(point.n)
            take.append(
                WorkCounted(setting=point.setting, n=point.n, work=work, kernels=(NAME,)),
                sync=False,
            )
    take.sync()
    timer = SimulatedTimer(plan.protocol, [e for e in earlier if isinstance(e, LatencyMeasured)])
    run(Bench(take, timer, plan.protocol, progress), points, plan.protocol)
