"""The scheduler's own list of jobs, those that ended included."""

import re
from collections.abc import Iterator

from msgspec import Struct


class Job(Struct, frozen=True, kw_only=True):
    """One job as `scontrol show jobs` lists it."""

    id: str
    name: str
    state: str
    reason: str
    partition: str
    node: str
    """Where it runs or ran last; empty before its first start."""
    gpus: str
    """What it asked for of GPUs, such as `gpu:h20:1`; empty without."""
    restarts: int
    comment: str
    exit_code: str
    cpus: int
    memory_mb: int
    minutes: int


_FIELD = re.compile(r"(?:^| )([A-Za-z][A-Za-z/:]*)=(\S*)")
_MEGABYTES = {"M": 1, "G": 1024}


def parse_jobs(text: str) -> Iterator[Job]:
    """Yield the jobs in what `scontrol --oneliner show jobs` prints."""
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "JobId" not in fields:
            continue
        tres = dict(part.split("=", 1) for part in fields["TRES"].split(",") if "=" in part)
        hours, minutes, _ = map(int, fields["TimeLimit"].split(":"))
        memory = tres.get("mem", "0M")
        yield Job(
            id=fields["JobId"],
            name=fields["JobName"],
            state=fields["JobState"],
            reason=fields["Reason"],
            partition=fields["Partition"],
            node=fields["NodeList"].replace("(null)", ""),
            gpus=(fields.get("TresPerNode") or fields.get("TresPerJob", "")).removeprefix("gres:"),
            restarts=int(fields["Restarts"]),
            comment=fields.get("Comment", ""),
            exit_code=fields["ExitCode"],
            cpus=int(fields["NumCPUs"].split("-")[0]),
            memory_mb=int(float(memory[:-1]) * _MEGABYTES[memory[-1]]),
            minutes=60 * hours + minutes,
        )
