"""Prepare a take's points: make kernels, run each once at every N, check and record their work."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nearfree.backends.adapters.kernel import TURNING, ExecutionContext, Kernel, make_kernel
from nearfree.core.plan import MeasurePlan
from nearfree.engines.forward import EngineKernel
from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.identity import native_dtype
from nearfree.log.events import EngineLoaded, Fingerprint, WorkCounted
from nearfree.log.take import OpenTake
from nearfree.measure.visits import Point

_NO_WORK = frozenset(
    {
        *("alias", "as_strided", "chunk", "expand", "narrow", "numpy_T", "permute", "reshape"),
        *("resolve_conj", "resolve_neg", "select", "slice", "split", "t", "transpose", "unbind"),
        *("unsqueeze", "view", "_unsafe_view", "empty", "empty_like", "empty_strided"),
    }
)
"""Operators that neither move nor compute data."""


def kernel_names(kernel: Kernel, n: int, device: str) -> tuple[str, ...]:
    """Return the names of one forward's kernels, each once, in order.

    On a CPU these are operators, on a GPU the kernels that CUPTI reports. For an engine on a CPU
    they are its operations, with the formats that its products read.
    """
    if isinstance(kernel, EngineKernel) and device == "cpu":
        return kernel.operations()
    names = _cuda_names(kernel, n) if device == "cuda" else _cpu_names(kernel, n)
    return tuple(dict.fromkeys(names))


def _cpu_names(kernel: Kernel, n: int) -> list[str]:
    from torch.autograd import profiler_legacy

    with profiler_legacy.profile() as profiled:  # the newer profiler writes to standard error
        kernel.forward(n)
    names = [event.name.removeprefix("aten::") for event in profiled.function_events]
    return [name for name in names if name not in _NO_WORK]


def _cuda_names(kernel: Kernel, n: int) -> list[str]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("TEARDOWN_CUPTI", "1")  # else CUPTI slows every later forward
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        kernel.forward(n)
        torch.cuda.synchronize()
    events = [event for event in profiled.events() if event.device_type.name == "CUDA"]
    return [event.name for event in events if not event.name.startswith("Mem")]


def execution_of(
    fingerprint: Fingerprint, plan: MeasurePlan, files: Mapping[str, Path] | None = None
) -> ExecutionContext:
    """Return the execution context of a plan's kernels on a machine.

    If the system reports no cache size, `TURNING` bytes stand for it; with none, every read would
    count as cold.
    """
    if fingerprint.kind == "cuda" and not plan.protocol.weight_copies:
        raise ConfigError(
            "weight_copies 0 is for CPUs: a graph replays the copies that it was made with",
            remedy="Give the number of copies of the weights that are used in turn",
        )
    return ExecutionContext(
        device=fingerprint.kind,
        models=plan.models,
        weights=plan.weights,
        files=files or {},
        copies=plan.protocol.weight_copies,
        cache_bytes=max(fingerprint.caches.values(), default=TURNING),
        sms=fingerprint.cores if fingerprint.kind == "cuda" else None,
    )


def make_points(
    plan: MeasurePlan, fingerprint: Fingerprint, files: Mapping[str, Path] | None = None
) -> list[Point]:
    """Return every point of a plan, with its kernel allocated."""
    execution = execution_of(fingerprint, plan, files)
    points_: list[Point] = []
    for sweep in plan.sweeps:
        setting = sweep.resolved(native_dtype(fingerprint))
        kernel = make_kernel(setting, sweep.positions, execution)
        points_ += [Point(setting, sweep.baseline, n, kernel) for n in sweep.positions]
    return points_


def record_work(take: OpenTake, points: Sequence[Point], device: str) -> float:
    """Run each point once, refuse output that is not finite, and record its work and kernels.

    Return the seconds inside these forwards, which also warm every point up.
    """
    warm_s = 0.0
    loaded = [event.data for event in take.events if isinstance(event.data, EngineLoaded)]
    for kernel in dict.fromkeys(point.kernel for point in points):
        if isinstance(kernel, EngineKernel) and (data := kernel.loaded()) not in loaded:
            take.append(data, sync=False)
            loaded.append(data)
    counted = {(e.data.setting, e.data.n) for e in take.events if isinstance(e.data, WorkCounted)}
    for point in points:
        start_s = time.perf_counter()
        check_finite(point.kernel, point.n)
        warm_s += time.perf_counter() - start_s
        if (point.setting, point.n) not in counted:
            take.append(
                WorkCounted(
                    setting=point.setting,
                    n=point.n,
                    work=point.kernel.work(point.n),
                    kernels=kernel_names(point.kernel, point.n, device),
                ),
                sync=False,
            )
    take.sync()
    return warm_s


def check_finite(kernel: Kernel, n: int) -> None:
    """Raise EvidenceError unless the output of the forward over N is finite."""
    if isinstance(kernel, EngineKernel):
        finite = kernel.finite(n)
    else:
        finite = bool(kernel.forward(n).isfinite().all())
    if not finite:
        raise EvidenceError(
            f"the forward over N={n} gives output that is not finite",
            remedy="Choose another dtype: this one overflows here",
        )
