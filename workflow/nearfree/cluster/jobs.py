"""One-second jobs: submitted as the workflow's own are, and waited for."""

import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from nearfree.cluster.slurm import slurm
from nearfree.errors import SchedulerError
from nearfree.places import Place

_LOOK_S = 0.5


def options(place: Place) -> list[str]:
    """Return what sbatch is told of a place, as Snakemake's plugin tells it."""
    model = f"{place.gpu_model}:" if place.gpu_model else ""
    said = {
        "--partition": place.partition,
        "--constraint": place.constraint,
        "--account": place.account,
        "--qos": place.qos,
        "--gpus": f"{model}{place.gpus}" if place.gpus else None,
        "--cpus-per-task": place.cpus,
        "--mem": f"{place.memory_gb}G" if place.memory_gb else None,
    }
    found = [f"{name}={value}" for name, value in said.items() if value is not None]
    return [*found, *["--exclusive"] * bool(place.exclusive)]


def submit(name: str, place: Place, folder: Path, pythons: Mapping[str, str]) -> str:
    """Submit a job that looks around on one of a place's nodes; return its number.

    Parameters
    ----------
    pythons
        The interpreters that it tries, by their environments.

    Raises
    ------
    SchedulerError
        SLURM refuses the request; the message says what it said.
    """
    tried = [f"{environment}={python}" for environment, python in pythons.items()]
    script = shlex.join([sys.executable, "-m", "nearfree.cluster.node", str(folder), name, *tried])
    said = slurm(
        *("sbatch", "--parsable", "--ntasks=1", "--time=1", f"--job-name=nearfree_check_{name}"),
        *(f"--output={folder / f'{name}.log'}", *options(place), f"--wrap={script}"),
    )
    return said.strip().partition(";")[0]


def wait(jobs: Mapping[str, str], folder: Path, timeout_s: float) -> dict[str, str]:
    """Wait until every job left its file or is over; return why the others did not, by name.

    Parameters
    ----------
    jobs
        Numbers of jobs by name. Those that have not begun after `timeout_s` are cancelled.
    """
    until = time.monotonic() + timeout_s
    left = dict(jobs)
    while left:
        time.sleep(_LOOK_S)
        states = _states(left.values())  # asked before the files: a job that is over left its own
        left = {name: job for name, job in left.items() if not (folder / f"{name}.json").exists()}
        over = {name: job for name, job in left.items() if job not in states}
        if left and (len(over) == len(left) or time.monotonic() >= until):
            break
    why = {}
    for name, job in left.items():
        if job in states:
            slurm("scancel", job)
            why[name] = f"job {job} is {states[job]} after {timeout_s:.0f} s"
        else:
            why[name] = f"job {job} ended without an answer: {_said(folder / f'{name}.log')}"
    return why


def _states(jobs: Iterable[str]) -> dict[str, str]:
    wanted = ",".join(jobs)
    try:
        listed = slurm("squeue", "--noheader", f"--jobs={wanted}", "--format=%i|%T (%r)")
    except SchedulerError:  # squeue knows none of them any more
        return {}
    lines = (line.partition("|") for line in listed.splitlines())
    return {job.strip(): state for job, _, state in lines}


def _said(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        return "its node does not write to this folder"
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:200] if said else "it said nothing"
