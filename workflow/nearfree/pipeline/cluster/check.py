"""A cluster tried out by SLURM's commands: one second on a node of every platform, and its faults.

The jobs are submitted like the workflow's own, and awaited.
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

_ANSWER_S = 6.0
"""How long a controller may take to say that it is up; a busy one answers within a second."""
_CALL_S = 60.0
_LOOK_S = 0.5
_SHOWN_S = 30.0
"""What a shared file system may take to show here what a job wrote on its node."""


def slurm(*command: str, timeout_s: float = _CALL_S) -> str:
    """Return what a command of SLURM prints; SchedulerError if it is not there or fails."""
    name = command[0]
    if shutil.which(name) is None:
        raise _absent(name)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(
            f"SLURM does not answer: {name} took longer than {timeout_s:.0f} s",
            remedy="Ask `scontrol ping` whether the cluster is up",
        ) from error
    if done.returncode:
        raise SchedulerError(
            f"SLURM refused {name}: {last_line(done.stderr)}",
            remedy="Mend config/cluster.yaml if it names what the cluster does not have"
            if name == "sbatch"
            else "Ask `scontrol ping` whether the cluster is up",
        )
    return done.stdout


def require_slurm() -> None:
    """Raise SchedulerError unless jobs can be submitted from here."""
    if shutil.which("sbatch") is None:
        raise _absent("sbatch")
    answer = slurm("scontrol", "ping", timeout_s=_ANSWER_S)
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
    """Return what sbatch is told of a job, as Snakemake's plugin tells it."""
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
    """Submit a job that looks around on one of its partition's nodes; return its number.

    Parameters
    ----------
    pythons
        The interpreters that it tries, by their environments.
    kind
        Of the platform: cpu, or cuda, which torch must then be able to use.

    Raises
    ------
    SchedulerError
        SLURM refuses the request; the message quotes its answer.
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
    """Wait until every job left its file or is over; return why the others did not, by name.

    Parameters
    ----------
    jobs
        Numbers of jobs by name. Those that have not begun after `timeout_s` are cancelled.
    """
    until = time.monotonic() + timeout_s
    left, over, states = dict(jobs), dict[str, float](), dict[str, str]()
    while left:
        time.sleep(_LOOK_S)
        states = _states(left.values())
        there, now = {path.name for path in folder.iterdir()}, time.monotonic()
        left = {name: job for name, job in left.items() if f"{name}.json" not in there}
        for name in left:
            if left[name] not in states:
                over.setdefault(name, now)
        if now >= until or all(now - over.get(name, now) > _SHOWN_S for name in left):
            break
    why = {}
    for name, job in left.items():
        if job in states:
            with suppress(SchedulerError):  # it may have ended since, which SLURM calls a mistake
                slurm("scancel", job)
            why[name] = f"job {job} is {states[job]} after {timeout_s:.0f} s"
        else:
            why[name] = f"job {job} ended without an answer: {_last_output(folder / f'{name}.log')}"
    return why


def _states(jobs: Iterable[str]) -> dict[str, str]:
    """Return the states of jobs that are not over; of all where SLURM does not answer."""
    wanted = list(jobs)
    try:
        listed = slurm("squeue", "--noheader", f"--jobs={','.join(wanted)}", "--format=%i|%T (%r)")
    except SchedulerError as error:
        return {} if "Invalid job id" in error.what else dict.fromkeys(wanted, error.what)
    lines = (line.partition("|") for line in listed.splitlines())
    return {job.strip(): state for job, _, state in lines}


def _last_output(log: Path) -> str:
    try:
        return last_line(log.read_text(errors="replace"))[:200]
    except OSError:
        return "its node does not write to this folder"


_CLOCK_S = 60.0
"""How far a node's clock may be from this one's: a queue's delay is not in it, NTP's is."""

_NOT_THERE = "config.yaml names {1} for the environment {0}, which is not there"
_TO_MAKE = "the environment {0} is not made yet: the workflow makes it first"


class NodeReport(Struct, frozen=True, kw_only=True):
    """A platform's job: what its node saw, what is wrong, and what is worth knowing."""

    platform: str
    resources: str
    """Partition, constraint and GPU model that the job asked for."""
    state: NodeState | None
    wrong: tuple[str, ...]
    notes: tuple[str, ...] = ()


def check(pipeline: Pipeline, logs: Path, timeout_s: float) -> Iterator[NodeReport]:
    """Submit a job for every platform of `here`, and yield what came of it, in their order.

    Raises
    ------
    SchedulerError
        SLURM is not there.
    """
    require_slurm()
    logs.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=logs, prefix="check-") as name:
        folder = Path(name).absolute()
        held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock(held, LOCK)
            yield from _check_platforms(pipeline, folder, timeout_s)
        finally:
            os.close(held)


def accounting() -> bool:
    """Return whether the cluster keeps accounts of jobs, which sacct needs."""
    for line in slurm("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "AccountingStorageType":
            return not value.strip().endswith("/none")
    return False


def _check_platforms(pipeline: Pipeline, folder: Path, timeout_s: float) -> Iterator[NodeReport]:
    config = pipeline.config
    made = {
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
                made[platform],
                kind=config.platform(platform).kind,
            )
        except SchedulerError as error:
            refused[platform] = error.what
    began_s = time.time()
    refused |= wait(jobs, folder, timeout_s)
    for platform in config.site.here:
        job = config.job_resources(platform, STREAM)
        wanted = " ".join(filter(None, (job.partition, job.constraint, job.gpu_model)))
        state = refused.get(platform) or _state(folder / f"{platform}.json")
        if isinstance(state, str):
            yield NodeReport(platform=platform, resources=wanted, state=None, wrong=(state,))
            continue
        wrong = tuple(_wrong(config.platforms, platform, state))
        wrong += tuple(
            _NOT_THERE.format(name, config.site.python[name])
            for name in pipeline.interpreters(platform).keys() - made[platform]
            if name in config.site.python
        )
        missing = sorted(pipeline.interpreters(platform).keys() - made[platform])
        notes = (
            *_notes(state, began_s),
            *(_TO_MAKE.format(name) for name in missing if name not in config.site.python),
        )
        yield NodeReport(platform=platform, resources=wanted, state=state, wrong=wrong, notes=notes)


def _state(path: Path) -> NodeState | str:
    """Return what a node left, or what is wrong where that cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeState)
    except msgspec.MsgspecError as error:
        return (
            f"its answer is not of this version ({error}): does its job see other code than this?"
        )


def _wrong(platforms: dict[str, Platform], name: str, state: NodeState) -> Iterator[str]:
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


def _notes(state: NodeState, began_s: float) -> Iterator[str]:
    if not state.locked:
        yield (
            "locks are not seen across nodes: two attempts of one take can run at once; "
            "the log stays whole, but work may be done twice"
        )
    if not began_s - _CLOCK_S <= state.time_s <= time.time() + _CLOCK_S:
        yield f"its clock is {state.time_s - time.time():+.0f} s off: the log's times will be"
