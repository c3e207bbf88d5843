"""The hardware probe: phi by dtype, and beta by two methods, as measured on this machine.

A CPU is probed with one thread. Peaks are the best of several rounds; all samples stay in the
event.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from nearfree.core.plan import ProbePlan
from nearfree.errors import ConfigError
from nearfree.hardware.clocks import load_1m
from nearfree.hardware.identity import (
    STREAM,
    check_device,
    check_identity,
    machine_fingerprint,
    native_dtype,
)
from nearfree.log.events import BandwidthPeak, ComputePeak, HardwareProbed
from nearfree.log.evidence import refuse_mixed
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.units import BYTES_PER_GB, FLOP_PER_GFLOP

_SIZES = {"cpu": (128, 256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192)}
_STREAM_BYTES = {"cpu": 256 * 1024**2, "cuda": 4 * 1024**3}
_GEMM_WIDTHS = {"cpu": (2048, 4608), "cuda": (4096, 9216)}
_GEMM_ROWS = 2
_GEMM_COPIES = 6
_GEMM_REPEATS = 10


def _seconds(device: str, call: Callable[[], object]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def compute_peak(device: str, dtype: str, plan: ProbePlan) -> ComputePeak:
    """Return phi of a dtype; the product grows up to its full size or until the time guard.

    A dtype without instructions of its own can be a thousand times slower than others, so the next
    size (eight times the work) is tried only if it is expected to fit into `guard_s`.
    """
    for size in _SIZES[device]:
        left = torch.randn(size, size).to(device, getattr(torch, dtype))
        right = torch.randn(size, size).to(device, getattr(torch, dtype))
        product = partial(torch.matmul, left, right)
        if device == "cuda":
            product()  # loads the library
        seconds = _seconds(device, product)
        seconds = min(seconds, _seconds(device, product)) if seconds < plan.guard_s else seconds
        over_guard = 8 * seconds * plan.rounds > plan.guard_s
        if over_guard:
            break
    rounds = max(1, min(plan.rounds, int(plan.guard_s / seconds)))
    samples = [_seconds(device, product) for _ in range(rounds)]
    flop = 2 * size**3
    return ComputePeak(
        dtype=dtype,
        gflop_s=round(flop / min(*samples, seconds) / FLOP_PER_GFLOP, 2),
        size=size,
        samples=tuple(round(flop / s / FLOP_PER_GFLOP, 2) for s in samples),
        guarded=over_guard and size != _SIZES[device][-1],
    )


def stream_bandwidth(device: str, plan: ProbePlan) -> BandwidthPeak:
    """Return beta by a streaming read: the sum of a vector far larger than any cache."""
    size = _STREAM_BYTES[device]
    values = torch.ones(size // 4, device=device)
    values.sum()
    samples = [_seconds(device, values.sum) for _ in range(plan.rounds)]
    return _bandwidth("stream", size, samples)


def gemm_bandwidth(device: str, dtype: str, plan: ProbePlan) -> BandwidthPeak:
    """Return beta by the weight traffic of a two-row product, as in a decode FFN.

    Several copies of the weight are used in turn, so that each is read from memory.
    """
    rows, columns = _GEMM_WIDTHS[device]
    torch_dtype = getattr(torch, dtype)
    weights = [torch.randn(columns, rows).to(device, torch_dtype) for _ in range(_GEMM_COPIES)]
    inputs = torch.randn(_GEMM_ROWS, rows).to(device, torch_dtype)

    def stream(copies: list[torch.Tensor]) -> None:
        for weight in copies:
            torch.matmul(inputs, weight.t())

    stream(weights)
    # On a GPU many products are one sample, so that launching them is hidden.
    turns = [[w] for w in weights] if device == "cpu" else [weights * _GEMM_REPEATS]
    samples = [_seconds(device, partial(stream, turn)) / len(turn) for turn in turns * plan.rounds]
    return _bandwidth("gemm", weights[0].nbytes, samples)


def _bandwidth(method: str, size: int, seconds: list[float]) -> BandwidthPeak:
    rates = [round(size / s / BYTES_PER_GB, 3) for s in seconds]
    return BandwidthPeak(method=method, gb_s=max(rates), bytes_read=size, samples=tuple(rates))  # type: ignore[arg-type]


def probe(
    layout: Layout,
    scope: str,
    kind: str,
    take: int,
    plan: ProbePlan,
    *,
    names: Sequence[str] = (),
) -> Seal:
    """Return the seal of a platform's probe, after probing if there is none yet.

    Raises
    ------
    HardwareError
        There is no such device here, it is not the platform's, or this machine differs from the
        one on record.
    ConfigError
        The plan is for a simulated machine.
    EvidenceError
        The root holds simulated takes.
    """
    if plan.curves:
        raise ConfigError(
            f"the plan for the probe of {scope} is for a simulated machine",
            remedy="Run `nearfree probe` where its curve file is",
        )
    refuse_mixed(layout, as_simulated=False)
    fingerprint = machine_fingerprint(kind)
    check_device(scope, fingerprint, names)
    check_identity(layout, scope, fingerprint)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    native = native_dtype(fingerprint)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def probed() -> list[HardwareProbed]:
        return [
            HardwareProbed(
                fingerprint=fingerprint,
                compute=tuple(compute_peak(kind, dtype, plan) for dtype in plan.dtypes),
                bandwidth=(stream_bandwidth(kind, plan), gemm_bandwidth(kind, native, plan)),
                threads=1,
                load_1m=load_1m(),
            )
        ]

    name, command = take_name(scope, STREAM, take, plan), f"nearfree probe {scope}"
    return ensure_events(
        layout, name, plan, command, probed, environment="cpu", device=fingerprint.model
    )
