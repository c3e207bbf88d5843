"""The runs of sealed takes: who ran what, on what, and how it ended."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from nearfree.log.events import RunFinished, RunStarted
from nearfree.log.evidence import Take


class Run(Struct, frozen=True):
    """One sealed take, and the run that sealed it."""

    anchor: str
    name: str
    href: str
    time: str
    record: RunStarted
    events: int
    attempts: int
    outcome: str
    seconds: str
    jobs: tuple[str, ...]
    """The batch jobs that its attempts ran in, oldest first; none where there was no scheduler."""


def anchor(identifier: str) -> str:
    """Return the HTML id of a take or a section."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in identifier)


def runs(takes: Iterable[Take]) -> list[Run]:
    """Return the runs of sealed takes."""
    return [
        Run(
            anchor=anchor(str(take.name)),
            name=str(take.name),
            href=f"../events/{take.name}.seal.json",
            time=take.started.time,
            record=take.started.data,
            events=sum(part.events for part in take.seal.segments),
            attempts=len(take.seal.segments),
            outcome=take.seal.outcome,
            seconds=_seconds(take.of(RunFinished)[-1].data),
            jobs=tuple(jobs(event.data for event in take.of(RunStarted))),
        )
        for take in takes
    ]


def jobs(started: Iterable[RunStarted]) -> Iterator[str]:
    """Yield the batch job of each attempt that had one."""
    for run in started:
        job = run.scheduler
        if job is None:
            continue
        restart = f", restart {job.restart}" if job.restart not in {None, "0"} else ""
        gpus = f", GPU {job.gpus or job.devices}" if job.gpus or job.devices else ""
        where = f"on {job.node} ({job.partition}{gpus})"
        yield f"attempt {run.attempt}: {job.system} job {job.job_id}{restart} {where}"


def _seconds(end: RunFinished) -> str:
    if not end.timed_s or not end.wall_s:
        return f"{end.wall_s:.1f} s"
    return f"{end.wall_s:.1f} s, {end.timed_s / end.wall_s:.0%} of it in forwards"
