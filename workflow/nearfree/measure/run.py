"""One measuring take: the right machine, the kernels, the protocol, the seal."""

import gc

import torch
from msgspec import structs

from nearfree.clocks import CpuClock
from nearfree.errors import HardwareError
from nearfree.events.names import Layout
from nearfree.events.run import describe_run
from nearfree.events.seal import Seal
from nearfree.events.take import OpenTake, ensure_sealed, ensure_take, take_name
from nearfree.events.types import Fingerprint
from nearfree.hardware.cpu import native_dtype
from nearfree.hardware.identity import check_identity, machine_fingerprint, require_probe
from nearfree.kernels import make_kernel
from nearfree.measure.interleaved import Point, run, sweep_points
from nearfree.settings import MeasurePlan, Setting


def measure(layout: Layout, scope: str, stream: str, take: int, plan: MeasurePlan) -> Seal:
    """Make sure that a plan is sealed: measure what is missing of it, or return at once.

    Raises
    ------
    HardwareError
        This machine is not the platform that the log knows, or it is no CPU.
    EvidenceError
        The platform was not probed yet, or a forward gives output that is not finite.
    """
    name = take_name(scope, stream, take, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    known = require_probe(layout, scope).fingerprint
    if known.kind != "cpu":
        raise HardwareError(
            f"{scope} is a {known.kind} platform, and every adapter so far runs on a CPU",
            remedy="Measure a CPU platform; adapters for GPUs are not written yet",
        )
    here = machine_fingerprint(known.kind)
    check_identity(layout, scope, here)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def work(open_take: OpenTake) -> float:
        torch.set_num_threads(plan.protocol.threads)
        torch.manual_seed(0)
        points = _points(plan, here)
        gc.disable()
        try:
            return run(open_take, points, plan.protocol, CpuClock())
        finally:
            gc.enable()

    return ensure_take(
        layout,
        name,
        plan,
        lambda attempt: describe_run(
            f"nearfree measure {scope} {stream} --take {take}",
            plan,
            attempt,
            environment=plan.environment,
            device=here.model,
        ),
        work,
    )


def _points(plan: MeasurePlan, here: Fingerprint) -> list[Point]:
    native = native_dtype(here)
    last_level = max(here.caches.values(), default=0)
    points: list[Point] = []
    for sweep in plan.sweeps:
        setting = _resolved(sweep.setting, native)
        kernel = make_kernel(
            setting,
            sweep.positions,
            copies=plan.protocol.weight_copies,
            cache_bytes=last_level,
        )
        kernel.check()
        points += sweep_points(sweep, setting, kernel)
    return points


def _resolved(setting: Setting, native: str) -> Setting:
    return structs.replace(setting, dtype=native) if setting.dtype == "auto" else setting
