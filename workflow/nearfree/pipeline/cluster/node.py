"""Report the state of a cluster's node.

`python -m nearfree.pipeline.cluster.node FOLDER NAME KIND [ENVIRONMENT=PYTHON ...]` writes
FOLDER/NAME.json. It needs the standard library and msgspec only.
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
"""The file in FOLDER whose lock the checking process holds."""


class NodeState(Struct, frozen=True, kw_only=True):
    """The state of a node as a job of one platform sees it."""

    node: str
    job_id: str
    partition: str
    cpus: int
    visible: str | None
    """CUDA_VISIBLE_DEVICES."""
    gpus: tuple[str, ...]
    """The driver's name of each GPU."""
    code_digest: str
    locked: bool
    """Whether a lock that another node holds has effect on this node."""
    time_s: float
    """This node's clock, seconds since 1970."""
    environments: dict[str, str]
    """The fault of each environment's interpreter on this node, empty if it has none."""


def gpu_names() -> tuple[str, ...]:
    """Return the NVIDIA driver's names of this job's GPUs; none without a driver."""
    command = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in completed.stdout.splitlines() if line.strip())


def lock_seen(path: Path) -> bool:
    """Return whether another process's lock on a file keeps this process out."""
    fd = os.open(path, os.O_RDWR)
    try:
        lock(fd, path.name)
    except BusyError:
        return True
    finally:
        os.close(fd)
    return False


def last_line(text: str) -> str:
    """Return the last line that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def fault(environment: str, python: str, kind: str) -> str:
    """Return an interpreter's fault: it is not the lock's, or its torch sees no GPU; else empty."""
    checks: list[tuple[str, ...]] = [("-m", "nearfree", "environment", "check", environment)]
    if kind == "cuda":
        checks.append(("-c", "import torch; torch.cuda.get_device_properties(0)"))
    for arguments in checks:
        try:
            completed = subprocess.run(
                (python, *arguments), capture_output=True, text=True, timeout=240, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if completed.returncode:
            return last_line(completed.stderr)
    return ""


def look(folder: Path, kind: str, pythons: dict[str, str]) -> NodeState:
    """Return the state of this node."""
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
    """Wait a second, then write the node's state atomically."""
    time.sleep(1)
    partial = folder / f".{name}.part"
    state = look(folder, kind, dict(pair.split("=", 1) for pair in pythons))
    partial.write_bytes(msgspec.json.encode(state))
    partial.replace(folder / f"{name}.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
