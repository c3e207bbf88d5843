"""Measure a take: check the machine, make the kernels, run the protocol, seal."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from nearfree.core.plan import MeasurePlan
from nearfree.core.protocols import Timing
from nearfree.errors import ConfigError, EvidenceError, HardwareError
from nearfree.hardware.handover import watched
from nearfree.hardware.identity import this_machine
from nearfree.log.curves import threads_of
from nearfree.log.events import Fingerprint, LaunchFloor
from nearfree.log.names import Layout
from nearfree.log.reader import gc_paused
from nearfree.log.run import describe_run
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, ensure_sealed, ensure_take, take_name
from nearfree.measure.adapter_runs import refuse_never_run
from nearfree.measure.prepare import make_points, record_work
from nearfree.measure.protocols import run
from nearfree.measure.rounds import whole_rounds
from nearfree.measure.visits import Bench, Clock, CpuTimer, Progress, no_progress, stoppable


def measure(
    layout: Layout,
    scope: str,
    stream: str,
    take: int,
    plan: MeasurePlan,
    *,
    untested: bool = False,
    files: Mapping[str, Path] | None = None,
    progress: Progress = no_progress,
) -> Seal:
    """Measure what a plan's take still lacks, seal it, and return its seal.

    Parameters
    ----------
    untested
        Whether to run adapters that have no sealed run on this kind of device in the log.
    files
        Paths of weights outside the cache, by SHA-256.
    progress
        Receives the completed share of the take after each round.

    Raises
    ------
    HardwareError
        This machine is not the platform that the log knows, or its GPU was lost.
    ConfigError
        The plan is of a simulated machine.
    EvidenceError
        The platform was not probed yet, the root holds simulated takes, an adapter is missing or
        was never run, a setting does not fit into memory, or a forward gives output that is not
        finite.
    StoppedError
        SIGTERM came; whole rounds are kept.
    """
    name = take_name(scope, stream, take, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    if plan.curves:
        raise ConfigError(
            f"the plan of {scope}/{stream} is of a simulated machine",
            remedy="Give its curve file with --curves",
        )
    fingerprint = this_machine(layout, scope)
    if not untested:
        refuse_never_run(layout, plan, fingerprint.kind)

    def work(open_take: OpenTake) -> float:
        if plan.weights and fingerprint.kind == "cpu":
            quiet = gc_paused()
        else:
            quiet = _torch_settings(fingerprint, plan.protocol, whole=bool(plan.weights))
        with quiet, stoppable(progress) as stopping:
            return _measure_points(open_take, plan, fingerprint, files or {}, stopping)

    command = f"nearfree measure {scope} {stream} --take {take}"
    return ensure_take(
        layout,
        name,
        plan,
        partial(
            describe_run, command, plan, environment=plan.environment, device=fingerprint.model
        ),
        work,
        keep=whole_rounds,
    )


def _measure_points(
    take: OpenTake,
    plan: MeasurePlan,
    fingerprint: Fingerprint,
    files: Mapping[str, Path],
    progress: Progress,
) -> float:
    all_points = make_points(plan, fingerprint, files)
    warm_s = record_work(take, all_points, fingerprint.kind)
    bench = Bench(take, _clock(take, plan, fingerprint), plan.protocol, progress, warm_s)
    threads = max(threads_of(sweep.setting, plan.protocol) for sweep in plan.sweeps)
    with watched(threads if fingerprint.kind == "cpu" else 1) as bench.handover:
        run(bench, all_points, plan.protocol)
    if plan.weights:
        from nearfree.measure.engine_shares import measure_shares as measure_engine_shares

        bench.timed_s += measure_engine_shares(take, all_points)
    if plan.models:
        from nearfree.measure.shares import measure_shares

        bench.timed_s += measure_shares(take, all_points, fingerprint.kind)
    return bench.timed_s


def _clock(take: OpenTake, plan: MeasurePlan, fingerprint: Fingerprint) -> Clock:
    """Return the clock of a plan; an engine launches its own graphs, so it is timed eagerly."""
    protocol = plan.protocol
    if fingerprint.kind == "cpu":
        return CpuTimer()
    from nearfree.measure.cuda import CudaTimer, launch_floor

    if not any(isinstance(event.data, LaunchFloor) for event in take.events):
        take.append(launch_floor(protocol.graph_forwards))
    if plan.weights:
        return CudaTimer("eager", 1)
    return CudaTimer(protocol.launch, protocol.graph_forwards, protocol.weight_copies)


@contextmanager
def _torch_settings(
    fingerprint: Fingerprint, protocol: Timing, *, whole: bool = False
) -> Iterator[None]:
    """Configure torch while kernels run, and turn its errors of memory and GPU into ours.

    With `whole`, a whole engine runs, which configures threads and inference mode itself.
    """
    import torch

    threads = torch.get_num_threads()
    torch.manual_seed(protocol.seed)
    if not whole:
        torch.set_num_threads(protocol.threads)
    try:
        with gc_paused(), nullcontext() if whole else torch.inference_mode():
            yield
    except torch.OutOfMemoryError as error:
        raise EvidenceError(
            f"there is too little memory: {str(error).splitlines()[0]}",
            remedy="Choose a smaller shape, context or batch, fewer copies or fewer positions",
        ) from error
    except RuntimeError as error:
        if fingerprint.kind != "cuda" or "CUDA" not in str(error):
            raise
        raise HardwareError(
            f"the GPU failed: {str(error).splitlines()[0]}",
            remedy="Whole rounds are kept. Check the GPU, then run the same command again",
        ) from error
    finally:
        torch.set_num_threads(threads)
