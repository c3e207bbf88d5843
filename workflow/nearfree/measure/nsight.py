"""Nsight Compute: the kernels of a forward as the GPU's own counters saw them (paper, app. C.1).

`ncu` starts this program once more; there `profile` runs forwards between the marks that `ncu`
waits for, each N in a range of its name, and `payloads` sums what `ncu` wrote of them. The form of
its output is that of recordings that others published: **this never ran on hardware here.**

Every kernel starts with cold caches, at the clocks that it finds. Kernel times are those of a
kernel that is replayed alone: they weigh the counters, and are no latency.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from msgspec import json, structs

from nearfree.backends.adapters.kernel import ExecutionContext, make_kernel
from nearfree.core.plan import PROFILE_SUFFIX, ProfilePlan
from nearfree.core.setting import Setting
from nearfree.errors import HardwareError
from nearfree.hardware.identity import check_identity, machine_fingerprint, require_probe
from nearfree.log.names import Layout
from nearfree.log.run import describe_run
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, ensure_sealed, ensure_take, take_name
from nearfree.measure.nsight_report import RANGE, counters, payloads
from nearfree.measure.prepare import check_finite, resolved


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

    def work(open_take: OpenTake) -> None:
        for sweep in plan.sweeps:
            alone = structs.replace(sweep, setting=resolved(sweep, here))
            one = structs.replace(plan, sweeps=(alone,))
            text = run_ncu(ncu, one, ("profile", scope, study, "--inside"))
            for payload in payloads(text, one, profiler):
                open_take.append(payload, sync=False)
        open_take.sync()

    return ensure_take(
        layout,
        name,
        plan,
        lambda attempt: describe_run(
            f"nearfree profile {scope} {study} --take {take} --forwards {plan.forwards}",
            plan,
            attempt,
            environment=plan.environment,
            device=here.model,
        ),
        work,
    )


def profile_file(file: Path) -> None:
    """Profile the plan in a file; this is what the program inside of `ncu` does."""
    plan, here = json.decode(file.read_bytes(), type=ProfilePlan), machine_fingerprint("cuda")
    execution = ExecutionContext(
        device="cuda", cache_bytes=max(here.caches.values()), sms=here.cores
    )
    for sweep in plan.sweeps:
        profile(sweep.setting, sweep.positions, execution, plan.forwards)
