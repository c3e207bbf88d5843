"""Audit lines: for each row that the report shows, what it says, how it was made and from what."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import polars as pl
from msgspec import Struct

from nearfree.events.evidence import Take
from nearfree.events.types import RunFinished, RunStarted

_FORMULAS = {
    "latency": "median over rounds of the median of a visit's clean samples",
    "boundaries": "max { N : T(N) <= (1 + epsilon) T(baseline) }, paper sec. 2.2",
    "work": "counted by the adapter, or told by a profiler; AI = FLOPs / bytes",
    "sensitivity": "the boundary at each tolerance",
    "predictions": "",
    "time_shares": "median over rounds, each module timed inside the forward; share: of their sum",
    "composition": "a hit is n_max <= predicted < next N; the limiter's time grows most up to it",
    "validation": "a hit is n_max <= predicted < next N of the grid; a refusal is a miss",
    "accuracy": "scores of the function that answers users, which never sees the curves",
    "platforms": "rho = phi / beta, paper sec. 2.3",
    "granularity": "as printed, or read from source in two ways that agree",
    "lookup": "minimum of the modules' boundaries, or of the sum of their T(N)",
    "published_lookup": "paper sec. 3.2, 3.3 and 4, with M_attn and d_ff as given",
    "trend": "rho s / (2 b), and M_attn as the paper or a release has it",
    "version_drift": "the rules of each release at the same layer or call",
    "settings": "what was asked, with the first event of its newest take",
}


class Link(Struct, frozen=True):
    """A piece of evidence: what it is called, where it is, in which lines, by which run."""

    text: str
    href: str
    lines: str = ""
    run: str = ""


class AuditLine(Struct, frozen=True):
    """One row: its anchor, what it speaks of, its numbers, its formula and its evidence."""

    anchor: str
    row_id: str
    subject: str
    says: str
    formula: str
    made_from: tuple[Link, ...]


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
    """Return the HTML id of a row, a take or an event's segment."""
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
            jobs=tuple(_jobs(event.data for event in take.of(RunStarted))),
        )
        for take in takes
    ]


def _jobs(started: Iterable[RunStarted]) -> Iterator[str]:
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


def audit_lines(name: str, frame: pl.DataFrame, says: tuple[str, ...]) -> list[AuditLine]:
    """Return a line for each row of a table.

    Parameters
    ----------
    name
        The table.
    says
        The columns that hold the row's numbers.
    """
    lines = []
    for row in frame.iter_rows(named=True):
        shown = ", ".join(f"{c} = {_number(row[c])}" for c in says if row[c] is not None)
        lines.append(
            AuditLine(
                anchor=anchor(row["row_id"]),
                row_id=row["row_id"],
                subject=subject(row),
                says=shown,
                formula=row.get("evidence") or row.get("refusal") or _FORMULAS[name],
                made_from=tuple(_links(row["from_ids"])),
            )
        )
    return lines


_OF_A_FACT = ("platform", "basis", "dtype", "package", "versions", "path", "condition", "place")
_OF_A_SETTING = (
    *("platform", "origin", "stream", "module", "backend", "dtype", "batch", "context"),
    *("top_k", "routing", "take", "n", "epsilon", "predictor", "basis"),
)

_OF_A_MODEL_SETTING = (
    *("platform", "origin", "stream", "model", "backend", "moe", "mask", "dtype", "batch"),
    *("context", "top_k", "routing", "take", "n", "role", "epsilon", "predictor", "basis"),
)
_OF_A_MODEL = (
    *("model", "model_type", "platform", "attention", "moe", "package", "version", "module"),
    *("routing", "dtype", "batch", "context", "experts", "top_k", "term", "reference"),
    *("query_group", "baseline", "predictor", "composition", "epsilon"),
)


def _fields(row: dict[str, object]) -> tuple[str, ...]:
    """Return what tells a row apart: of a model, measured or not, of a setting, or of a fact."""
    if "origin" in row and "module" in row:
        return _OF_A_MODEL_SETTING if row.get("model") else _OF_A_SETTING
    if {"model", "model_type", "term"} & row.keys():
        return _OF_A_MODEL
    return _OF_A_SETTING if "module" in row else _OF_A_FACT


def subject(row: dict[str, object]) -> str:
    """Return what a row speaks of, in the fields that it has."""
    fields = _fields(row)
    parts = []
    for field in fields:
        value = row.get(field)
        if value not in (None, "", 0):
            named = isinstance(value, int | float)
            parts.append(f"{field} {_number(value)}" if named else str(value))
    return ", ".join(parts)


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _links(identifiers: list[str]) -> list[Link]:
    segments: dict[str, list[int]] = defaultdict(list)
    links = []
    for identifier in identifiers:
        segment, found, sequence = identifier.partition("#")
        if found:
            segments[segment].append(int(sequence))
        else:
            links.append(Link(text=identifier, href=f"#{anchor(identifier)}"))
    for segment, numbers in segments.items():
        lines = ", ".join(str(number) for number in sorted(numbers))
        links.append(
            Link(
                text=segment,
                href=f"../events/{segment}.jsonl",
                lines=lines,
                run=anchor(segment.rpartition(".")[0]),
            )
        )
    return links
