"""Check a SLURM cluster: run a short job for every platform, and report the faults of its node.

The jobs request the same resources as the workflow's jobs.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from nearfree.config.cluster import JobResources
from nearfree.errors import SchedulerError
from nearfree.hardware.identity import STREAM
from nearfree.hardware.platforms import Platform, as_alias, driver_names
from nearfree.log.codebase import package_digest
from nearfree.log.segment import lock
from nearfree.pipeline.cluster.node import LOCK, NodeState, last_line
from nearfree.pipeline.pipeline import Pipeline

_PING_S = 6.0
"""Timeout of `scontrol ping`; a busy controller answers within a second."""
_CALL_S = 60.0
_POLL_S = 0.5
_VISIBLE_S = 30.0
"""Time that a shared file system may take until a file from a node is visible here."""


def slurm(*command: str, timeout_s: float = _CALL_S) -> str:
    """Return the output of a SLURM command; SchedulerError if it is missing or fails."""
    name = command[0]
    if shutil.which(name) is None:
        raise _absent(name)
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(
            f"SLURM does not answer: {name} took longer than {timeout_s:.0f} s",
            remedy="Ask `scontrol ping` whether the cluster is up",
        ) from error
    if completed.returncode:
        raise SchedulerError(
            f"SLURM refused {name}: {last_line(completed.stderr)}",
            remedy="Mend config/cluster.yaml if it names what the cluster does not have"
            if name == "sbatch"
            else "Ask `scontrol ping` whether the cluster is up",
        )
    return completed.stdout


def require_slurm() -> None:
    """Raise SchedulerError unless jobs can be submitted from here."""
    if shutil.which("sbatch") is None:
        raise _absent("sbatch")
    answer = slurm("scontrol", "ping", timeout_s=_PING_S)
    if " is UP" not in answer:
        raise SchedulerError(
            f"SLURM is down: {last_line(answer)}",
            remedy="Wait for the cluster, or run without --profile slurm on this machine",
        )


def _absent(name: str) -> SchedulerError:
    return SchedulerError(
        f"SLURM is not here: there is no {name} on PATH",
        remedy="Run this on a login node of the cluster, or without --profile slurm here",
    )


def options(job: JobResources) -> list[str]:
    """Return the options of sbatch for a job, the same that Snakemake's plugin passes."""
    gpus = f"{job.gpu_model}:{job.gpus}" if job.gpu_model else job.gpus
    values = {
        "--partition": job.partition,
        "--constraint": job.constraint,
        "--account": job.account,
        "--qos": job.qos,
        "--gpus": gpus if job.gpus else None,
        "--cpus-per-task": job.cpus,
        "--mem": job.resources(attempt=1)["mem_mb"],
    }
    texts = [f"{name}={value}" for name, value in values.items() if value is not None]
    return [*texts, *["--exclusive"] * bool(job.exclusive)]


def submit(
    name: str, job: JobResources, folder: Path, pythons: Mapping[str, str], *, kind: str
) -> str:
    """Submit a job that reports the state of its node; return the job's number.

    Parameters
    ----------
    pythons
        The interpreters to check, by their environments.
    kind
        The platform's kind: `cpu`, or `cuda`, where torch must find a GPU.

    Raises
    ------
    SchedulerError
        SLURM refuses the request; the message quotes SLURM.
    """
    pairs = [f"{environment}={python}" for environment, python in pythons.items()]
    script = shlex.join(
        [sys.executable, "-m", "nearfree.pipeline.cluster.node", str(folder), name, kind, *pairs]
    )
    answer = slurm(
        *("sbatch", "--parsable", "--ntasks=1", "--time=10", f"--job-name=nearfree_check_{name}"),
        *(f"--output={folder / f'{name}.log'}", *options(job), f"--wrap={script}"),
    )
    return answer.strip().partition(";")[0]


def wait(jobs: Mapping[str, str], folder: Path, timeout_s: float) -> dict[str, str]:
    """Wait until every job wrote its file or ended; return why a job wrote none, by name.

    Parameters
    ----------
    jobs
        Numbers of jobs by name. Jobs that are not over after `timeout_s` are cancelled.
    """
    deadline_s = time.monotonic() + timeout_s
    waiting, ended_at_s, states = dict(jobs), dict[str, float](), dict[str, str]()
    while waiting:
        time.sleep(_POLL_S)
        states = _states(waiting.values())
        written, now_s = {path.name for path in folder.iterdir()}, time.monotonic()
        waiting = {name: job for name, job in waiting.items() if f"{name}.json" not in written}
        for name in waiting:
            if waiting[name] not in states:
                ended_at_s.setdefault(name, now_s)
        if now_s >= deadline_s or all(
            now_s - ended_at_s.get(name, now_s) > _VISIBLE_S for name in waiting
        ):
            break
    reasons = {}
    for name, job in waiting.items():
        if job in states:
            with suppress(SchedulerError):  # SLURM refuses it if the job has ended meanwhile
                slurm("scancel", job)
            reasons[name] = f"job {job} is {states[job]} after {timeout_s:.0f} s"
        else:
            reasons[name] = (
                f"job {job} ended without an answer: {_last_output(folder / f'{name}.log')}"
            )
    return reasons


def _states(jobs: Iterable[str]) -> dict[str, str]:
    """Return the states of jobs that are not over; SLURM's error for all if it fails."""
    numbers = list(jobs)
    try:
        output = slurm("squeue", "--noheader", f"--jobs={','.join(numbers)}", "--format=%i|%T (%r)")
    except SchedulerError as error:
        return {} if "Invalid job id" in error.what else dict.fromkeys(numbers, error.what)
    lines = (line.partition("|") for line in output.splitlines())
    return {job.strip(): state for job, _, state in lines}


def _last_output(log: Path) -> str:
    try:
        return last_line(log.read_text(errors="replace"))[:200]
    except OSError:
        return "its node does not write to this folder"


_CLOCK_S = 60.0
"""Accepted difference of a node's clock from this one's, beyond the time since submission."""

_MISSING_PYTHON = "config.yaml names {1} for the environment {0}, which is not there"
_UNMADE = "the environment {0} is not made yet: the workflow makes it first"


class NodeReport(Struct, frozen=True, kw_only=True):
    """The result of a platform's job: the node's state, its faults, and notices."""

    platform: str
    resources: str
    """The partition, constraint and GPU model that the job requested."""
    state: NodeState | None
    wrong: tuple[str, ...]
    notes: tuple[str, ...] = ()


def check(pipeline: Pipeline, logs: Path, timeout_s: float) -> Iterator[NodeReport]:
    """Submit a job for every platform of `here`, and yield their reports in that order.

    Raises
    ------
    SchedulerError
        SLURM is missing or does not answer.
    """
    require_slurm()
    logs.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=logs, prefix="check-") as name:
        folder = Path(name).absolute()
        lock_fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock(lock_fd, LOCK)
            yield from _check_platforms(pipeline, folder, timeout_s)
        finally:
            os.close(lock_fd)


def accounting() -> bool:
    """Return whether the cluster has job accounting, which sacct needs."""
    for line in slurm("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "AccountingStorageType":
            return not value.strip().endswith("/none")
    return False


def _check_platforms(pipeline: Pipeline, folder: Path, timeout_s: float) -> Iterator[NodeReport]:
    config = pipeline.config
    pythons = {
        platform: {
            name: python
            for name, python in pipeline.interpreters(platform).items()
            if which(python)
        }
        for platform in config.site.here
    }
    jobs: dict[str, str] = {}
    refused: dict[str, str] = {}
    for platform in config.site.here:
        try:
            jobs[platform] = submit(
                platform,
                config.job_resources(platform, STREAM),
                folder,
                pythons[platform],
                kind=config.platform(platform).kind,
            )
        except SchedulerError as error:
            refused[platform] = error.what
    submitted_s = time.time()
    refused |= wait(jobs, folder, timeout_s)
    for platform in config.site.here:
        job = config.job_resources(platform, STREAM)
        resources = " ".join(filter(None, (job.partition, job.constraint, job.gpu_model)))
        state = refused.get(platform) or _state(folder / f"{platform}.json")
        if isinstance(state, str):
            yield NodeReport(platform=platform, resources=resources, state=None, wrong=(state,))
            continue
        faults = [*_faults(config.platforms, platform, state)]
        notes = [*_notes(state, submitted_s)]
        for name in sorted(pipeline.interpreters(platform).keys() - pythons[platform]):
            if name in config.site.python:
                faults.append(_MISSING_PYTHON.format(name, config.site.python[name]))
            else:
                notes.append(_UNMADE.format(name))
        yield NodeReport(
            platform=platform,
            resources=resources,
            state=state,
            wrong=tuple(faults),
            notes=tuple(notes),
        )


def _state(path: Path) -> NodeState | str:
    """Return the state that a node wrote, or a fault if its file cannot be decoded."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeState)
    except msgspec.MsgspecError as error:
        return (
            f"its answer is not of this version ({error}): does its job see other code than this?"
        )


def _faults(platforms: dict[str, Platform], name: str, state: NodeState) -> Iterator[str]:
    if state.code_digest != package_digest():
        yield "it sees other code than this: is the project on a shared file system?"
    for environment, fault in state.environments.items():
        if fault:
            yield f"environment {environment}: {fault}"
    platform = platforms[name]
    if platform.kind == "cpu":
        return
    if state.visible is None and not state.gpus:
        yield "the job got no GPU (no CUDA_VISIBLE_DEVICES, no nvidia-smi): gpus or partition?"
    for gpu in sorted(set(state.gpus)):
        names = driver_names(name, platform)
        if names and as_alias(gpu) not in names:
            yield f"its GPU is {gpu!r}, the platform's is {platform.device_name!r}"


def _notes(state: NodeState, submitted_s: float) -> Iterator[str]:
    if not state.locked:
        yield (
            "locks are not seen across nodes: two attempts of one take can run at once; "
            "the log stays whole, but work may be done twice"
        )
    if not submitted_s - _CLOCK_S <= state.time_s <= time.time() + _CLOCK_S:
        yield f"its clock is {state.time_s - time.time():+.0f} s off: the log's times will be"
