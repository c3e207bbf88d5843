"""SLURM's own commands: whether they are there, and what they answer."""

import shutil
import subprocess

from nearfree.errors import SchedulerError

_ANSWER_S = 6.0
"""How long a controller may take to say that it is up; a busy one answers within a second."""
_CALL_S = 60.0


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


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _absent(name: str) -> SchedulerError:
    return SchedulerError(
        f"SLURM is not here: there is no {name} on PATH",
        remedy="Run this on a login node of the cluster, or without --profile slurm here",
    )
