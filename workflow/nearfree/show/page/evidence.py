"""Evidence of the page's numbers: runs of sealed takes, raw samples, entries of the config."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from nearfree.derive.tables.platforms import config_id
from nearfree.hardware.platforms import Platform
from nearfree.log.events import LatencyMeasured, RunFinished, RunStarted
from nearfree.log.evidence import Take
from nearfree.show.page.inline import Block, block

MAX_SAMPLE_CHARACTERS = 2_000_000
"""Most characters of raw samples in a page; the log has the rest."""


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
    """The batch jobs of its attempts, oldest first; none without a scheduler."""


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
            seconds=_seconds(take.events_of(RunFinished)[-1].data),
            jobs=tuple(jobs(event.data for event in take.events_of(RunStarted))),
        )
        for take in takes
    ]


def jobs(started: Iterable[RunStarted]) -> Iterator[str]:
    """Yield a description of the batch job of each attempt that had one."""
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


def run_records(takes: Iterable[Take]) -> dict[str, dict[str, Any]]:
    """Return the recorded facts of each sealed take's run, by the take's name."""
    records = {}
    for take in takes:
        record = structs.asdict(take.started.data)
        for name in ("plan", "attempt", "scheduler"):
            del record[name]
        records[str(take.name)] = record | {
            "time": take.started.time,
            "outcome": take.seal.outcome,
            "wall_s": take.events_of(RunFinished)[-1].data.wall_s,
            "jobs": list(jobs(event.data for event in take.events_of(RunStarted))),
            "segments": [
                {"attempt": part.attempt, "events": part.events, "sha256": part.sha256}
                for part in take.seal.segments
            ],
        }
    return records


def sample_blocks(takes: Iterable[Take]) -> Iterator[Block]:
    """Yield the raw samples of takes as blocks, up to MAX_SAMPLE_CHARACTERS in total."""
    room = MAX_SAMPLE_CHARACTERS
    for take in takes:
        visits: dict[str, dict[str, list[Any]]] = {}
        for event in take.events_of(LatencyMeasured):
            columns = visits.setdefault(event.source, {name: [] for name in ("line", *_VISIT)})
            columns["line"].append(int(event.id))
            for name in _VISIT:
                columns[name].append(getattr(event.data, name))
        if visits:
            samples = block(f"samples:{take.name}", visits)
            room -= len(samples.text)
            if room >= 0:
                yield samples


_VISIT = ("n", "baseline", "round", "order", "wall_us", "process_us", "dirty", "cache", "timer",
          "launch", "load_1m", "forwards_a_sample")  # fmt: skip


def config_entries(
    datasheets: Mapping[str, Platform], model_files: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Return the sources of datasheets and model files, by their ids in rows."""
    sheets = {config_id(name, sheet): dict(sheet.sources) for name, sheet in datasheets.items()}
    meaning = "a Hugging Face config file, with the digest of the shape that is read from it"
    return sheets | {file: {"model file": meaning} for file in model_files}
