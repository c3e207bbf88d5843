"""Nsight Compute: hardware counters of a forward's kernels (paper, app. C.1).

`ncu` starts this program again as a child. There `profile` runs forwards inside profiled ranges,
one NVTX range per N, and `payloads` sums the counters that `ncu` reports. The form of the report is
taken from published recordings: **this never ran on hardware here.**

Every kernel starts with cold caches, at the clocks as they are. Kernel times are those of kernels
replayed alone: they weigh the counters, and are not latencies.
"""

import csv
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from msgspec import Struct, json, structs

from nearfree.backends.adapters.kernel import ExecutionContext, make_kernel
from nearfree.core.plan import PROFILE_SUFFIX, ProfilePlan
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError, HardwareError
from nearfree.hardware.identity import (
    machine_fingerprint,
    native_dtype,
    require_probe,
    this_machine,
)
from nearfree.log.events import KernelProfiled
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.measure.prepare import check_finite

_TIME = "gpu__time_duration.sum"
_DRAM_BYTES = {"dram__bytes_read.sum": 1, "dram__bytes_write.sum": 1}
_DRAM_BUSY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
_TENSOR_BUSY = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
"""Relative to the dense peak. The counters below count sparse operations, whose peak is double."""
_TENSOR_FLOP = {
    "bfloat16": "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "float16": "sm__ops_path_tensor_src_fp16.sum",
    "float32": "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "float8": "sm__ops_path_tensor_src_fp8.sum",
}
"""Counter by dtype; a product of M, N and K counts 2 MNK."""
_VECTOR_FLOP = {
    f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": flop
    for name, flop in {"fadd": 1, "fmul": 1, "ffma": 2, "hadd": 2, "hmul": 2, "hfma": 4}.items()
}
"""FLOP per instruction, by counter; instructions on float16 process two values."""
_TIMES_US = {"n": 1e-3, "u": 1.0, "m": 1e3, "": 1e6}
_COUNTS = {"": 1.0, "inst": 1.0}
_UNITS = {
    "gpu__time": {f"{k}{s}": us for k, us in _TIMES_US.items() for s in ("s", "second")},
    "dram__bytes": {f"{k}byte": 1e3**power for power, k in enumerate(("", "K", "M", "G", "T"))},
    "dram__throughput": {"%": 0.01},
    "sm__pipe": {"%": 0.01},
    "sm__ops": _COUNTS,
    "smsp__sass": _COUNTS,
}
"""Scale of each unit of a counter, by the counter's prefix, to us, bytes, fractions or counts."""
_MISSING = {"", "n/a", "(!) n/a", "no data"}
_RANGES = "thread Domain:Push/Pop_Range"
RANGE = "nearfree n="
_REMEDY_REPORT = (
    "Compare it with what `ncu --csv --page raw --nvtx` writes by itself, and profile again"
)


class Launch(Struct, frozen=True):
    """One launch of a kernel: its name, the N of its forward, and its counters in base units."""

    kernel: str
    n: int
    counters: dict[str, float | None]


def _flop(setting: Setting) -> dict[str, int]:
    return {_TENSOR_FLOP[setting.dtype]: 1, **_VECTOR_FLOP}


def counters(setting: Setting) -> tuple[str, ...]:
    """Return the counters to read for a setting; tensor-core operations depend on its dtype."""
    return (_TIME, *_DRAM_BYTES, _DRAM_BUSY, _TENSOR_BUSY, *_flop(setting))


def read_report(text: str) -> list[Launch]:
    """Return the launches in a report: CSV with a row of names, a row of units, a row per launch.

    Raises
    ------
    EvidenceError
        The report has another form, an unknown unit, or a launch outside every range.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("==")]
    try:
        names, units, *rows = csv.reader(lines, strict=True)
        unit_by_name, *cells = [dict(zip(names, row, strict=True)) for row in (units, *rows)]
        range_column = next(name for name in names if name.startswith(_RANGES))
        return [_launch(row, unit_by_name, row[range_column]) for row in cells]
    except (csv.Error, ValueError, KeyError, StopIteration) as error:
        message = (
            f"the report of ncu has not the known form ({error or 'there are no range_column'})"
        )
        raise EvidenceError(message, remedy=_REMEDY_REPORT) from error


def _launch(row: dict[str, str], unit_by_name: dict[str, str], ranges: str) -> Launch:
    match = re.search(rf":{RANGE}(\d+):", ranges)
    if match is None:
        raise ValueError(f"{row['Kernel Name']} ran in no forward")
    scales_by_counter = {
        name: scales for name in row for prefix, scales in _UNITS.items() if name.startswith(prefix)
    }
    values = {
        name: _value(row[name], unit_by_name[name], scales)
        for name, scales in scales_by_counter.items()
    }
    return Launch(row["Kernel Name"], int(match[1]), values)


def _value(cell: str, unit: str, scales: dict[str, float]) -> float | None:
    if cell in _MISSING:
        return None
    value = float(cell.replace(",", "")) * scales[unit]
    if not 0 <= value < math.inf:
        raise ValueError(f"{cell} {unit}")
    return value


def payloads(text: str, plan: ProfilePlan, profiler: str) -> list[KernelProfiled]:
    """Return the event of each N of a plan's one sweep, from a report.

    A field is None if its counter is missing for any kernel.

    Raises
    ------
    EvidenceError
        The report has another form, or lacks kernels or kernel times for an N.
    """
    (sweep,), launches = plan.sweeps, read_report(text)
    profiles = []
    for n in sweep.positions:
        profiled = [launch for launch in launches if launch.n == n]
        kernel_us = [launch.counters.get(_TIME) or math.nan for launch in profiled]
        if not profiled or math.isnan(math.fsum(kernel_us)):
            raise EvidenceError(
                f"the report of ncu has no kernel time of N={n}", remedy=_REMEDY_REPORT
            )
        profiles.append(
            KernelProfiled(
                setting=sweep.setting,
                n=n,
                profiler=profiler,
                forwards=plan.forwards,
                kernels=tuple(dict.fromkeys(launch.kernel for launch in profiled)),
                kernel_us=round(math.fsum(kernel_us) / plan.forwards, 3),
                flop=_weighted_sum(profiled, _flop(sweep.setting), plan.forwards),
                dram_bytes=_weighted_sum(profiled, _DRAM_BYTES, plan.forwards),
                tensor_utilization=_mean(profiled, _TENSOR_BUSY, kernel_us),
                dram_utilization=_mean(profiled, _DRAM_BUSY, kernel_us),
            )
        )
    return profiles


def _weighted_sum(launches: list[Launch], weights: dict[str, int], forwards: int) -> float | None:
    """Return the weighted sum of counters over all kernels, per forward; None if one is missing."""
    values = [
        (launch.counters.get(name), weight)
        for launch in launches
        for name, weight in weights.items()
    ]
    products = [value * weight for value, weight in values if value is not None]
    return math.fsum(products) / forwards if len(products) == len(values) else None


def _mean(launches: list[Launch], counter: str, kernel_us: list[float]) -> float | None:
    """Return a counter's mean over all kernels, weighted by time; None if one is missing."""
    values = [launch.counters.get(counter) for launch in launches]
    products = [
        value * weight for value, weight in zip(values, kernel_us, strict=True) if value is not None
    ]
    if len(products) < len(values):
        return None
    return round(math.fsum(products) / math.fsum(kernel_us), 6)


def ncu_command(ncu: str, setting: Setting, report: Path, program: Sequence[str]) -> list[str]:
    """Return the command that profiles the marked part of a program."""
    switches = "--csv --page raw --print-units base --nvtx --profile-from-start off"
    switches += " --target-processes all --cache-control all --clock-control none"
    metrics = ",".join(counters(setting))
    return [ncu, *switches.split(), "--metrics", metrics, "--log-file", str(report), *program]


@contextmanager
def marked(n: int) -> Iterator[None]:
    """Profile the enclosed forwards over N: a range of `ncu` with an NVTX range inside."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    torch.cuda.nvtx.range_push(f"{RANGE}{n}")
    yield
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    torch.cuda.profiler.stop()


def profile(
    setting: Setting,
    positions: tuple[int, ...],
    execution: ExecutionContext,
    forwards: int,
    *,
    mark: Callable[[int], AbstractContextManager[None]] = marked,
) -> None:
    """Run warmed-up forwards of each N inside `mark(n)`, the profiled range."""
    torch.manual_seed(0)
    with torch.inference_mode():
        kernel = make_kernel(setting, positions, execution)
        for n in positions:
            check_finite(kernel, n)
            with mark(n):
                for _ in range(forwards):
                    kernel.forward(n)


def find_ncu() -> tuple[str, str]:
    """Return the path of `ncu`, and the profiler's name and version; HardwareError without one."""
    path = shutil.which("ncu")
    if path is None:
        raise HardwareError(
            "ncu, the command of Nsight Compute, is not on the PATH",
            remedy="Add its folder: it comes with the CUDA toolkit, in bin",
        )
    command = [path, "--version"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    version = re.search(r"^Version (\S+)", text, re.MULTILINE)
    return path, f"Nsight Compute {version[1] if version else 'of unknown version'}"


def run_ncu(ncu: str, plan: ProfilePlan, command: Sequence[str]) -> str:
    """Profile a plan of one sweep, and return the report of `ncu`.

    `command` is the subcommand of this program that profiles; the plan's file is appended to it.

    Raises
    ------
    HardwareError
        The profiled program failed, or `ncu` cannot or may not read the counters.
    """
    with TemporaryDirectory(prefix="nearfree-") as folder:
        request, report = Path(folder, "plan.json"), Path(folder, "report.csv")
        request.write_bytes(json.encode(plan))
        program = [sys.executable, "-m", "nearfree", *command, str(request)]
        argv = ncu_command(ncu, plan.sweeps[0].setting, report, program)
        completed = subprocess.run(argv, capture_output=True, text=True, check=False)
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    if completed.returncode or errors:
        reason = (errors or completed.stderr.splitlines() or ["it does not say why"])[-1]
        raise HardwareError(
            f"ncu failed with {completed.returncode}: {reason.removeprefix('==ERROR==').strip()}",
            remedy="Measure the study first; if that works, ask the administrator for permission "
            "to read the GPU's performance counters",
        )
    return text


def record(layout: Layout, scope: str, study: str, take: int, plan: ProfilePlan) -> Seal:
    """Profile a study, seal it in a stream of its own, and return the seal.

    Raises
    ------
    HardwareError
        This machine is not the platform, has no GPU or no `ncu`, or `ncu` failed.
    EvidenceError
        The platform was not probed yet, or the report has an unknown form.
    """
    stream = f"{study}{PROFILE_SUFFIX}"
    name = take_name(scope, stream, take, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    if require_probe(layout, scope).fingerprint.kind != "cuda":
        raise HardwareError(f"{scope} is no GPU", remedy="Nsight Compute profiles NVIDIA GPUs")
    fingerprint = this_machine(layout, scope)
    ncu, profiler = find_ncu()

    native = native_dtype(fingerprint)

    def profiles() -> Iterator[KernelProfiled]:
        for sweep in plan.sweeps:
            resolved_sweep = structs.replace(sweep, setting=sweep.resolved(native))
            sweep_plan = structs.replace(plan, sweeps=(resolved_sweep,))
            text = run_ncu(ncu, sweep_plan, ("profile", scope, study, "--inside"))
            yield from payloads(text, sweep_plan, profiler)

    return ensure_events(
        layout,
        name,
        plan,
        f"nearfree profile {scope} {study} --take {take} --forwards {plan.forwards}",
        profiles,
        environment=plan.environment,
        device=fingerprint.model,
    )


def profile_file(file: Path) -> None:
    """Profile the plan in a file; `ncu` runs this in its child process."""
    plan = json.decode(file.read_bytes(), type=ProfilePlan)
    fingerprint = machine_fingerprint("cuda")
    execution = ExecutionContext(
        device="cuda", cache_bytes=max(fingerprint.caches.values()), sms=fingerprint.cores
    )
    for sweep in plan.sweeps:
        profile(sweep.setting, sweep.positions, execution, plan.forwards)
