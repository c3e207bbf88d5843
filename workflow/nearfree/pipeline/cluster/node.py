"""What a node sees: `python -m nearfree.pipeline.cluster.node` with FOLDER, NAME and KIND.

Then come ENVIRONMENT=PYTHON pairs.
It needs the standard library and msgspec, and leaves FOLDER/NAME.json.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from nearfree.errors import BusyError
from nearfree.log.codebase import package_digest
from nearfree.log.segment import lock

LOCK = "lock"
"""The file in FOLDER whose lock the asking process holds."""


class NodeState(Struct, frozen=True, kw_only=True):
    """One node, as a job of one platform sees it."""

    node: str
    job_id: str
    partition: str
    cpus: int
    visible: str | None
    """CUDA_VISIBLE_DEVICES."""
    gpus: tuple[str, ...]
    """What the driver calls each GPU."""
    code_digest: str
    locked: bool
    """Whether a lock that another node holds is seen here."""
    time_s: float
    """This node's clock, seconds since 1970."""
    environments: dict[str, str]
    """What is wrong with each environment's interpreter here, empty where nothing is."""


def gpu_names() -> tuple[str, ...]:
    """Return what the NVIDIA driver calls the GPUs of this job; none without a driver."""
    ask = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def lock_seen(path: Path) -> bool:
    """Return whether the lock on a file, held by another process, keeps this one out."""
    fd = os.open(path, os.O_RDWR)
    try:
        lock(fd, path.name)
    except BusyError:
        return True
    finally:
        os.close(fd)
    return False


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def fault(environment: str, python: str, kind: str) -> str:
    """Return what is wrong with an interpreter: it is not the lock's, or its torch sees no GPU."""
    checks: list[tuple[str, ...]] = [("-m", "nearfree", "environment", "check", environment)]
    if kind == "cuda":
        checks.append(("-c", "import torch; torch.cuda.get_device_properties(0)"))
    for words in checks:
        try:
            done = subprocess.run(
                (python, *words), capture_output=True, text=True, timeout=240, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if done.returncode:
            return last_line(done.stderr)
    return ""


def look(folder: Path, kind: str, pythons: dict[str, str]) -> NodeState:
    """Return what this node sees."""
    return NodeState(
        node=os.environ.get("SLURMD_NODENAME", "unknown"),
        job_id=os.environ.get("SLURM_JOB_ID", "unknown"),
        partition=os.environ.get("SLURM_JOB_PARTITION", "unknown"),
        cpus=len(os.sched_getaffinity(0)),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        gpus=gpu_names(),
        code_digest=package_digest(),
        locked=lock_seen(folder / LOCK),
        time_s=time.time(),
        environments={name: fault(name, python, kind) for name, python in pythons.items()},
    )


def main(folder: Path, name: str, kind: str, *pythons: str) -> None:
    """Stay a second, and leave what is seen as a whole file."""
    time.sleep(1)
    partial = folder / f".{name}.part"
    state = look(folder, kind, dict(pair.split("=", 1) for pair in pythons))
    partial.write_bytes(msgspec.json.encode(state))
    partial.replace(folder / f"{name}.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
