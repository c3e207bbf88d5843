"""Nsight Compute: the kernels of a forward as the GPU's own counters saw them (paper, app. C.1).

`ncu` starts this program once more; there `profile` runs forwards between the marks that `ncu`
waits for, each N in a range of its name, and `payloads` sums what `ncu` wrote of them. The form of
its output is that of recordings that others published: **this never ran on hardware here.**

Every kernel starts with cold caches, at the clocks that it finds. Kernel times are those of a
kernel that is replayed alone: they weigh the counters, and are no latency.
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
from nearfree.hardware.identity import check_identity, machine_fingerprint, require_probe
from nearfree.log.events import KernelProfiled
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.measure.prepare import check_finite, resolved

_TIME = "gpu__time_duration.sum"
_DRAM_BYTES = {"dram__bytes_read.sum": 1, "dram__bytes_write.sum": 1}
_DRAM_BUSY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
_TENSOR_BUSY = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
"""Of the dense peak; the peak of the operations below counts sparse ones, and is twice that."""
_TENSOR_FLOP = {
    "bfloat16": "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "float16": "sm__ops_path_tensor_src_fp16.sum",
    "float32": "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "float8": "sm__ops_path_tensor_src_fp8.sum",
}
"""By dtype; a product of M, N and K counts 2 MNK."""
_VECTOR_FLOP = {
    f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": flop
    for name, flop in {"fadd": 1, "fmul": 1, "ffma": 2, "hadd": 2, "hmul": 2, "hfma": 4}.items()
}
"""FLOP of an instruction; those on halves work on two at a time."""
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
"""The units of a counter, by how its name begins, in microseconds, bytes, shares and counts."""
_MISSING = {"", "n/a", "(!) n/a", "no data"}
_RANGES = "thread Domain:Push/Pop_Range"
RANGE = "nearfree n="
_AGAIN = "Compare it with what `ncu --csv --page raw --nvtx` writes by itself, and profile again"


class Launch(Struct, frozen=True):
    """One kernel that ran: its name, the N of its forward, its counters in their first units."""

    kernel: str
    n: int
    counters: dict[str, float | None]


def _flop(setting: Setting) -> dict[str, int]:
    return {_TENSOR_FLOP[setting.dtype]: 1, **_VECTOR_FLOP}


def counters(setting: Setting) -> tuple[str, ...]:
    """Return what is counted for a setting; operations of tensor cores are those of its dtype."""
    return (_TIME, *_DRAM_BYTES, _DRAM_BUSY, _TENSOR_BUSY, *_flop(setting))


def read_report(text: str) -> list[Launch]:
    """Return the kernels of a report: a row of names, one of units, and one for each kernel.

    Raises
    ------
    EvidenceError
        The report has another form, an unknown unit, or a kernel outside of every range.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("==")]
    try:
        names, units, *rows = csv.reader(lines, strict=True)
        unit, *cells = [dict(zip(names, row, strict=True)) for row in (units, *rows)]
        ranges = next(name for name in names if name.startswith(_RANGES))
        return [_launch(row, unit, row[ranges]) for row in cells]
    except (csv.Error, ValueError, KeyError, StopIteration) as error:
        what = f"the report of ncu has not the known form ({error or 'there are no ranges'})"
        raise EvidenceError(what, remedy=_AGAIN) from error


def _launch(row: dict[str, str], unit: dict[str, str], ranges: str) -> Launch:
    match = re.search(rf":{RANGE}(\d+):", ranges)
    if match is None:
        raise ValueError(f"{row['Kernel Name']} ran in no forward")
    known = {name: scales for name in row for k, scales in _UNITS.items() if name.startswith(k)}
    values = {name: _value(row[name], unit[name], scales) for name, scales in known.items()}
    return Launch(row["Kernel Name"], int(match[1]), values)


def _value(cell: str, unit: str, scales: dict[str, float]) -> float | None:
    if cell in _MISSING:
        return None
    value = float(cell.replace(",", "")) * scales[unit]
    if not 0 <= value < math.inf:
        raise ValueError(f"{cell} {unit}")
    return value


def payloads(text: str, plan: ProfilePlan, profiler: str) -> list[KernelProfiled]:
    """Return what a report says of a forward over each N of a plan's one sweep.

    A counter that is missing, even for one kernel of a forward, gives None.

    Raises
    ------
    EvidenceError
        The report has another form, or holds no kernel or no kernel time of an N.
    """
    (sweep,), launches = plan.sweeps, read_report(text)
    profiles = []
    for n in sweep.positions:
        profiled = [launch for launch in launches if launch.n == n]
        us = [launch.counters.get(_TIME) or math.nan for launch in profiled]
        if not profiled or math.isnan(math.fsum(us)):
            raise EvidenceError(f"the report of ncu has no kernel time of N={n}", remedy=_AGAIN)
        profiles.append(
            KernelProfiled(
                setting=sweep.setting,
                n=n,
                profiler=profiler,
                forwards=plan.forwards,
                kernels=tuple(dict.fromkeys(launch.kernel for launch in profiled)),
                kernel_us=round(math.fsum(us) / plan.forwards, 3),
                flop=_total(profiled, _flop(sweep.setting), plan.forwards),
                dram_bytes=_total(profiled, _DRAM_BYTES, plan.forwards),
                tensor_utilization=_mean(profiled, _TENSOR_BUSY, us),
                dram_utilization=_mean(profiled, _DRAM_BUSY, us),
            )
        )
    return profiles


def _total(launches: list[Launch], weights: dict[str, int], forwards: int) -> float | None:
    """Return the weighted sum of counters over all kernels, a forward."""
    values = [(launch.counters.get(name), w) for launch in launches for name, w in weights.items()]
    counted = [value * w for value, w in values if value is not None]
    return math.fsum(counted) / forwards if len(counted) == len(values) else None


def _mean(launches: list[Launch], counter: str, us: list[float]) -> float | None:
    """Return a counter's mean over all kernels, weighted by their time."""
    values = [launch.counters.get(counter) for launch in launches]
    counted = [value * w for value, w in zip(values, us, strict=True) if value is not None]
    return round(math.fsum(counted) / math.fsum(us), 6) if len(counted) == len(values) else None


def ncu_command(ncu: str, setting: Setting, report: Path, program: Sequence[str]) -> list[str]:
    """Return the command that profiles the marked part of a program."""
    switches = "--csv --page raw --print-units base --nvtx --profile-from-start off"
    switches += " --target-processes all --cache-control all --clock-control none"
    metrics = ",".join(counters(setting))
    return [ncu, *switches.split(), "--metrics", metrics, "--log-file", str(report), *program]


@contextmanager
def marked(n: int) -> Iterator[None]:
    """Let `ncu` see what happens inside, as forwards over N."""
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
    """Run forwards of each N, warmed up, inside its mark."""
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
    ask = [path, "--version"]
    text = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    version = re.search(r"^Version (\S+)", text, re.MULTILINE)
    return path, f"Nsight Compute {version[1] if version else 'of unknown version'}"


def run_ncu(ncu: str, plan: ProfilePlan, command: Sequence[str]) -> str:
    """Return the report on a plan of one sweep; `command` profiles the plan in the file after it.

    Raises
    ------
    HardwareError
        The program inside failed, or `ncu` cannot or may not read the counters.
    """
    with TemporaryDirectory(prefix="nearfree-") as folder:
        request, report = Path(folder, "plan.json"), Path(folder, "report.csv")
        request.write_bytes(json.encode(plan))
        program = [sys.executable, "-m", "nearfree", *command, str(request)]
        argv = ncu_command(ncu, plan.sweeps[0].setting, report, program)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    if done.returncode or errors:
        why = (errors or done.stderr.splitlines() or ["it does not say why"])[-1]
        raise HardwareError(
            f"ncu failed with {done.returncode}: {why.removeprefix('==ERROR==').strip()}",
            remedy="Measure the study first; if that works, ask for the right to read the GPU's "
            "performance counters",
        )
    return text


def record(layout: Layout, scope: str, study: str, take: int, plan: ProfilePlan) -> Seal:
    """Make sure that a study's profile is sealed, in a stream beside that of its latencies.

    Raises
    ------
    HardwareError
        This machine is not the platform, has no GPU or no `ncu`, or `ncu` failed.
    EvidenceError
        The platform was not probed yet, or the report has not the known form.
    """
    stream = f"{study}{PROFILE_SUFFIX}"
    name = take_name(scope, stream, take, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    if require_probe(layout, scope).fingerprint.kind != "cuda":
        raise HardwareError(f"{scope} is no GPU", remedy="Nsight Compute profiles NVIDIA GPUs")
    here = machine_fingerprint("cuda")
    check_identity(layout, scope, here)
    ncu, profiler = find_ncu()

    def profiles() -> Iterator[KernelProfiled]:
        for sweep in plan.sweeps:
            alone = structs.replace(sweep, setting=resolved(sweep, here))
            one = structs.replace(plan, sweeps=(alone,))
            text = run_ncu(ncu, one, ("profile", scope, study, "--inside"))
            yield from payloads(text, one, profiler)

    return ensure_events(
        layout,
        name,
        plan,
        f"nearfree profile {scope} {study} --take {take} --forwards {plan.forwards}",
        profiles,
        environment=plan.environment,
        device=here.model,
    )


def profile_file(file: Path) -> None:
    """Profile the plan in a file; this is what the program inside of `ncu` does."""
    plan, here = json.decode(file.read_bytes(), type=ProfilePlan), machine_fingerprint("cuda")
    execution = ExecutionContext(
        device="cuda", cache_bytes=max(here.caches.values()), sms=here.cores
    )
    for sweep in plan.sweeps:
        profile(sweep.setting, sweep.positions, execution, plan.forwards)
