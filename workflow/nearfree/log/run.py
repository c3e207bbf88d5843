"""The record of a run's start: command, code, packages, environment, device and batch job."""

import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from nearfree.backends.environments.lock import environment_sha256
from nearfree.backends.records import packages
from nearfree.core.plan import Plan, plan_digest
from nearfree.log.codebase import package_digest
from nearfree.log.events import RunStarted, Scheduler
from nearfree.log.line import sha256
from nearfree.shipped import CLONE

_RECORDED = ("nearfree", "msgspec", "numpy", "triton", *packages())
_OWN_CODE = ("workflow", "rules", "envs", "Snakefile")


def _git(*args: str) -> str | None:
    """Return the output of git in this code's clone; None if the code is in no clone."""
    command = ["git", "-C", str(CLONE)]
    try:
        top_level, output = (
            subprocess.run(
                [*command, *arguments], capture_output=True, text=True, check=True
            ).stdout.strip()
            for arguments in (("rev-parse", "--show-toplevel"), args)
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return output if Path(top_level).resolve() == CLONE.resolve() else None


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that can change a measurement."""
    installed = {}
    for name in _RECORDED:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def _restarts(job: str) -> str | None:
    """Return how often SLURM restarted a job; the job's own steps have no variable for it."""
    command = ["scontrol", "--oneliner", "show", "job", job]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r" Restarts=(\d+)", completed.stdout)
    return match[1] if match else None


def scheduler() -> Scheduler | None:
    """Return the batch job that this process belongs to, None outside of one."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    return Scheduler(
        system="slurm",
        job_id=job,
        restart=os.environ.get("SLURM_RESTART_COUNT") or _restarts(job),
        node=os.environ.get("SLURMD_NODENAME"),
        partition=os.environ.get("SLURM_JOB_PARTITION"),
        devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        gpus=os.environ.get("SLURM_JOB_GPUS") or os.environ.get("SLURM_STEP_GPUS"),
    )


def describe_run(
    command: str, plan: Plan, attempt: int, *, environment: str = "base", device: str | None = None
) -> RunStarted:
    """Return the record of a run that is about to start.

    Parameters
    ----------
    command
        The command as a person would type it to get the same, without paths of this machine.
    environment
        The name of the lock under envs/ that the interpreter was made from.
    """
    lock = Path("envs", f"{environment}.lock")
    status = _git("status", "--porcelain", "--", *_OWN_CODE)
    return RunStarted(
        command=command,
        plan=plan,
        plan_digest=plan_digest(plan),
        attempt=attempt,
        commit=_git("rev-parse", "HEAD"),
        dirty=None if status is None else bool(status),
        code_digest=package_digest(),
        python=platform.python_version(),
        versions=versions(),
        lock_sha256=sha256(lock.read_bytes()) if lock.is_file() else None,
        environment_sha256=environment_sha256(),
        host_label=os.environ.get("NEARFREE_HOST_LABEL") or "unnamed",
        device=device,
        scheduler=scheduler(),
    )
