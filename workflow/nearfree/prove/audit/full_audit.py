"""The full audit: recompute every table, figure and report from the log, and compare."""

import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from graphlib import TopologicalSorter
from itertools import islice
from pathlib import Path

from msgspec import Struct

from nearfree.core.scopes import PUBLIC
from nearfree.derive.jobs import TABLES, Job, dependencies, make
from nearfree.derive.stages import STAGES
from nearfree.derive.tables.store import read_table
from nearfree.errors import EvidenceError, NearfreeError, StoppedError
from nearfree.log.names import Layout, require_log
from nearfree.log.reader import gc_paused, read_bytes
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.recompute import MAX_LISTED, differences, jobs, scratch_root
from nearfree.prove.audit.table_index import TableIndex, table_files, unresolved_ids
from nearfree.show.figures.listing import FigureList, read_figures
from nearfree.show.figures.page import page
from nearfree.show.figures.stage import Chart, charts, draw
from nearfree.show.page.stage import report_of

_FIGURES, _REPORT = "figures", "report"
_DIFFERS = "is not what the log and config give"


class AuditResult(Struct, frozen=True):
    """Counts of recomputed items, and the findings, each with its file."""

    tables: int = 0
    rows: int = 0
    cells: int = 0
    figures: int = 0
    marks: int = 0
    findings: tuple[str, ...] = ()


class _JobResult(Struct, frozen=True):
    """Counts and findings of one job."""

    counts: dict[str, int]
    findings: tuple[str, ...]
    failed: bool = False
    """Whether the job produced nothing, so that later jobs cannot use it."""


def audit_all(layout: Layout, config: Path, *, drawn: bool = False) -> AuditResult:
    """Recompute every table and figure of a root from its log, and compare.

    Parameters
    ----------
    drawn
        Also draw the figures and write the report again, and compare them byte by byte. Otherwise
        figures are compared by their data, and the report is not compared.

    Raises
    ------
    LogError
        The root holds no event log.
    EvidenceError
        No table was made from it yet.
    StoppedError
        A process that recomputes tables was killed.
    """
    require_log(layout)
    if not table_files(layout):
        raise EvidenceError(
            f"{layout.root} holds no table, so no number was reported from its log yet",
            remedy="Run the workflow first (`make run`)",
        )
    with tempfile.TemporaryDirectory() as folder:
        scratch = scratch_root(layout, Path(folder) / "results")
        pipeline = Pipeline(scratch.root, config)
        try:
            results = list(_run_jobs(layout, pipeline, config, drawn=drawn))
        except BrokenProcessPool as error:
            raise StoppedError(
                f"a process that recomputes the tables of {layout.root} was killed, as by a system "
                "whose memory runs out",
                remedy="Free memory, then audit again; nothing was changed",
            ) from error
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
    findings = [finding for result in results for finding in result.findings]
    findings += unmade_files(layout, pipeline)
    return AuditResult(**counts, findings=tuple(findings))


def _run_jobs(
    layout: Layout, pipeline: Pipeline, config: Path, *, drawn: bool
) -> Iterator[_JobResult]:
    """Run every job in a process pool, after the jobs that it needs; yield each result."""
    all_jobs = jobs(pipeline)
    graph = {job: dependencies(job) & set(all_jobs) for job in all_jobs}
    for scope in pipeline.scopes:
        figures = Job(_FIGURES, scope)
        graph[figures] = dependencies(figures) & set(all_jobs)
    if drawn:
        graph[Job(_REPORT, "")] = set(graph)
    order = TopologicalSorter(graph)
    order.prepare()
    context = multiprocessing.get_context("spawn")
    roots = layout.root, pipeline.layout.root, config
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), mp_context=context) as pool:
        unresolved = pool.submit(_audit_ids, layout.root)
        running: dict[Future[_JobResult], Job] = {}
        failed: set[Job] = set()
        while order.is_active():
            for job in sorted(order.get_ready(), key=_priority):
                if graph[job] & failed:
                    failed.add(job)
                    order.done(job)
                    message = f"{job.stage} of {job.scope} needs a table that cannot be recomputed"
                    yield _JobResult({}, (message,))
                else:
                    running[pool.submit(_audit_job, job, *roots, drawn=drawn)] = job
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                job, result = running.pop(future), future.result()
                failed |= {job} if result.failed else set()
                order.done(job)
                yield result
        yield unresolved.result()


def _priority(job: Job) -> tuple[bool, bool]:
    """Return a sort key: long jobs and their prerequisites first."""
    return job.stage not in {"schedules", "outlook"}, job.scope != PUBLIC


def _audit_ids(root: Path) -> _JobResult:
    """Return the unresolved ids as findings; unreadable tables are reported by their own stage."""
    try:
        return _JobResult({}, tuple(unresolved_ids(Layout(root))))
    except NearfreeError:
        return _JobResult({}, ())


@cache
def _pipeline(scratch: Path, config: Path) -> Pipeline:
    return Pipeline(scratch, config)


@gc_paused()
def _audit_job(job: Job, root: Path, scratch: Path, config: Path, *, drawn: bool) -> _JobResult:
    """Run one job again and compare its output; a failing job is a finding."""
    on_disk, recomputed = Layout(root), Layout(scratch)
    pipeline = _pipeline(scratch, config)
    try:
        if job.stage == _FIGURES:
            return _figures(on_disk, recomputed, pipeline, job.scope, drawn=drawn)
        if job.stage == _REPORT:
            report = report_of(pipeline)
            return _JobResult({}, tuple(_file_findings(on_disk.root / "report", report.parent)))
        make(pipeline.layout, pipeline.config, job)
    except NearfreeError as error:
        reason = str(error).replace(str(scratch), str(root))
        message = f"{job.stage} of {job.scope} cannot be recomputed: {reason}"
        return _JobResult({}, (message,), failed=True)
    counts: Counter[str] = Counter()
    findings = []
    for table in (TABLES[name] for name in STAGES[job.stage].tables):
        frame = read_table(recomputed, job.scope, table)
        counts.update(tables=1, rows=frame.height, cells=frame.height * frame.width)
        path = on_disk.table(job.scope, table.name)
        try:
            differing = differences(table, read_table(on_disk, job.scope, table), frame)
            findings += _first_differences(f"{path}: ", differing)
            if TableIndex(on_disk).inputs(job.scope, table.name) != TableIndex(recomputed).inputs(
                job.scope, table.name
            ):
                findings.append(f"{path}: its manifest names other inputs than log and config give")
        except NearfreeError as error:
            findings.append(str(error))
    return _JobResult(dict(counts), tuple(findings))


def _first_differences(place: str, differing: Iterable[object]) -> list[str]:
    """Return the first differences of a table as text, and the number of the others."""
    remaining = iter(differing)
    shown = [f"{place}{difference}" for difference in islice(remaining, MAX_LISTED)]
    more = sum(1 for _ in remaining)
    return [*shown, *([f"{place}and {more} more"] if more else [])]


def _figures(
    on_disk: Layout, recomputed: Layout, pipeline: Pipeline, scope: str, *, drawn: bool
) -> _JobResult:
    """Compare a scope's figures by their marks; if `drawn`, also byte by byte."""
    folder, imported = on_disk.root / "figures" / scope, bool(pipeline.imported)
    try:
        listed = read_figures(folder)
    except NearfreeError as error:
        return _JobResult({}, (str(error),))
    redrawn = charts(recomputed, scope, pipeline.site.epsilon, imported=imported)
    counts = {"figures": len(redrawn), "marks": sum(len(figure.rows) for figure, _ in redrawn)}
    findings = list(_figure_findings(folder, listed, redrawn))
    if drawn:
        draw(recomputed, scope, pipeline.site.epsilon, imported=imported)
        findings += _file_findings(folder, recomputed.root / "figures" / scope)
        shared = "figures/vega.js"
        findings += _compare_bytes(on_disk.root / shared, (recomputed.root / shared).read_bytes())
    return _JobResult(counts, tuple(dict.fromkeys(findings)))


def _figure_findings(folder: Path, listed: FigureList, redrawn: list[Chart]) -> Iterator[str]:
    listed_by_name = {figure.name: figure for figure in listed.figures}
    for name in sorted(listed_by_name.keys() - {figure.name for figure, _ in redrawn}):
        yield f"{folder}/{name}: no stage draws this figure from this log and config"
    for figure, spec in redrawn:
        if figure.name not in listed_by_name:
            yield f"{folder}/{figure.name}: is missing, and the log gives it"
            continue
        if listed_by_name[figure.name] != figure:
            yield f"{folder}/{figure.name}: its entry in figures.json {_DIFFERS}"
        yield from _compare_bytes(folder / f"{figure.name}.html", page(spec))


def _file_findings(on_disk: Path, made: Path) -> Iterator[str]:
    """Yield a finding for each file that differs between a folder and its recomputed copy."""
    names = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    for name in sorted(names):
        yield from _compare_bytes(on_disk / name, (made / name).read_bytes())
    for path in sorted(on_disk.rglob("*")):
        if not path.is_dir() and path.relative_to(on_disk) not in names:
            yield f"{path}: nothing makes this file from this log and config"


def _compare_bytes(path: Path, made: bytes) -> Iterator[str]:
    try:
        if read_bytes(path) != made:
            yield f"{path}: {_DIFFERS}"
    except NearfreeError as error:
        yield str(error)


def unmade_files(layout: Layout, pipeline: Pipeline) -> Iterator[str]:
    """Yield a finding for each table and each folder of figures that no stage makes."""
    expected = {
        layout.table(job.scope, table)
        for job in jobs(pipeline)
        for table in STAGES[job.stage].tables
    }
    for path in table_files(layout):
        if path not in expected:
            yield f"{path}: no stage makes this table from this log and config"
    for path in sorted((layout.root / "figures").glob("*/")):
        if path.name not in pipeline.scopes:
            yield f"{path}: no stage draws figures of {path.name} from this log and config"
