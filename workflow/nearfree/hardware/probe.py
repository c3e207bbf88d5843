"""The hardware probe: phi by dtype and beta by two methods, as this machine reaches them.

On a CPU everything runs on as many threads as the measurements use, one by default. Peaks are the
best of several rounds; all samples stay in the event.
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
    """Return phi of a dtype, growing the product until its full size or the time guard.

    A dtype without instructions of its own can be a thousand times slower than its neighbour, so
    the next size (eight times the work) is tried only if it should fit into `guard_s`.
    """
    for size in _SIZES[device]:
        left = torch.randn(size, size).to(device, getattr(torch, dtype))
        right = torch.randn(size, size).to(device, getattr(torch, dtype))
        product = partial(torch.matmul, left, right)
        if device == "cuda":
            product()  # loads the library
        seconds = _seconds(device, product)
        seconds = min(seconds, _seconds(device, product)) if seconds < plan.guard_s else seconds
        guarded = 8 * seconds * plan.rounds > plan.guard_s
        if guarded:
            break
    rounds = max(1, min(plan.rounds, int(plan.guard_s / seconds)))
    samples = [_seconds(device, product) for _ in range(rounds)]
    flop = 2 * size**3
    return ComputePeak(
        dtype=dtype,
        gflop_s=round(flop / min(*samples, seconds) / FLOP_PER_GFLOP, 2),
        size=size,
        samples=tuple(round(flop / s / FLOP_PER_GFLOP, 2) for s in samples),
        guarded=guarded and size != _SIZES[device][-1],
    )


def stream_bandwidth(device: str, plan: ProbePlan) -> BandwidthPeak:
    """Return beta by a streaming read: the sum of a vector far larger than any cache."""
    size = _STREAM_BYTES[device]
    values = torch.ones(size // 4, device=device)
    values.sum()
    samples = [_seconds(device, values.sum) for _ in range(plan.rounds)]
    return _bandwidth("stream", size, samples)


def gemm_bandwidth(device: str, dtype: str, plan: ProbePlan) -> BandwidthPeak:
    """Return beta by the weight traffic of a two-row product, which is what a decode FFN does.

    Several copies of the weight take turns, so that each is read from memory.
    """
    rows, columns = _GEMM_WIDTHS[device]
    kind = getattr(torch, dtype)
    weights = [torch.randn(columns, rows).to(device, kind) for _ in range(_GEMM_COPIES)]
    x = torch.randn(_GEMM_ROWS, rows).to(device, kind)

    def stream(some: list[torch.Tensor]) -> None:
        for weight in some:
            torch.matmul(x, weight.t())

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
    """Make sure that a platform's probe is sealed.

    Parameters
    ----------
    names
        What the driver may call its device, as `driver_names` gives them.

    Raises
    ------
    HardwareError
        There is no such device here, it is not the platform's, or this machine is another than
        the one on record.
    ConfigError
        The plan is of a simulated machine.
    EvidenceError
        The root holds simulated takes.
    """
    if plan.curves:
        raise ConfigError(
            f"the probe of {scope} is of a simulated machine",
            remedy="Run `nearfree probe` where its curve file is",
        )
    refuse_mixed(layout, as_simulated=False)
    here = machine_fingerprint(kind)
    check_device(scope, here, names)
    check_identity(layout, scope, here)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    native = "bfloat16" if kind == "cuda" else native_dtype(here)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def probed() -> list[HardwareProbed]:
        return [
            HardwareProbed(
                fingerprint=here,
                compute=tuple(compute_peak(kind, dtype, plan) for dtype in plan.dtypes),
                bandwidth=(stream_bandwidth(kind, plan), gemm_bandwidth(kind, native, plan)),
                threads=1,
                load_1m=load_1m(),
            )
        ]

    name, command = take_name(scope, STREAM, take, plan), f"nearfree probe {scope}"
    return ensure_events(layout, name, plan, command, probed, environment="cpu", device=here.model)
