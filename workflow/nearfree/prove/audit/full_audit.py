"""Everything that is reported, made again from the log in processes, and compared."""

import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from graphlib import TopologicalSorter
from itertools import islice
from pathlib import Path

from msgspec import Struct

from nearfree.derive.stages import STAGES, TABLES, Job, before, make
from nearfree.derive.tables.store import read_table
from nearfree.errors import NearfreeError
from nearfree.log.names import Layout, require_log
from nearfree.log.reader import no_collection
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.marks import figure_findings, file_findings, odd_figures
from nearfree.prove.audit.rebuild import jobs, scratch_root
from nearfree.prove.audit.recompute import MOST, differences
from nearfree.prove.audit.table_index import Book, dangling, table_files
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.show.page.whole import report_of

_FIGURES, _REPORT = "figures", "report"


class Audited(Struct, frozen=True):
    """How much was made again, and what is not what the log gives, each with its file."""

    tables: int
    rows: int
    cells: int
    figures: int
    marks: int
    findings: tuple[str, ...]


class _Part(Struct, frozen=True):
    """What one job found."""

    counts: dict[str, int]
    findings: tuple[str, ...]
    failed: bool = False
    """Whether nothing could be made, so that nothing can be made of it either."""


def audit_all(layout: Layout, config: Path, *, drawn: bool = False) -> Audited:
    """Make every table and figure of a root again from its log, and compare.

    Parameters
    ----------
    config
        The config folder.
    drawn
        Whether figures are drawn and the report is written again, too, and compared byte by byte;
        else figures are compared by what they hold, and the report is not.

    Raises
    ------
    LogError
        The root holds no event log.
    """
    require_log(layout)
    with tempfile.TemporaryDirectory() as folder:
        scratch = scratch_root(layout, Path(folder) / "results")
        pipeline = Pipeline(scratch.root, config)
        parts = list(_parts(layout, pipeline, config, drawn=drawn))
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part.counts)
    findings = [each for part in parts for each in part.findings]
    findings += [*_odd_tables(layout, pipeline), *odd_figures(layout, pipeline)]
    return Audited(
        tables=counts["tables"],
        rows=counts["rows"],
        cells=counts["cells"],
        figures=counts["figures"],
        marks=counts["marks"],
        findings=tuple(findings),
    )


def _parts(layout: Layout, pipeline: Pipeline, config: Path, *, drawn: bool) -> Iterator[_Part]:
    """Yield what each job found, each done when those before it are."""
    every = jobs(pipeline)
    graph = {job: before(job) & set(every) for job in every}
    for scope in pipeline.scopes:
        shown = {scope, PUBLIC, *(pipeline.imported if scope == PUBLIC else [])}
        apart = {"claims", "schedules", *({"outlook"} if scope != PUBLIC else {})}
        graph[Job(_FIGURES, scope)] = {
            job for job in every if job.scope in shown and job.stage not in apart
        }
    if drawn:
        graph[Job(_REPORT, "")] = set(graph)
    order = TopologicalSorter(graph)
    order.prepare()
    context = multiprocessing.get_context("spawn")
    ends = layout.root, pipeline.layout.root, config
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), mp_context=context) as pool:
        named = pool.submit(_resolve, layout.root)
        running: dict[Future[_Part], Job] = {}
        failed: set[Job] = set()
        while order.is_active():
            for job in sorted(order.get_ready(), key=_turn):
                if graph[job] & failed:
                    failed.add(job)
                    order.done(job)
                    yield _Part({}, (f"{job.stage} of {job.scope} rests on what cannot be made",))
                else:
                    running[pool.submit(_audit, job, *ends, drawn=drawn)] = job
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                job, part = running.pop(future), future.result()
                failed |= {job} if part.failed else set()
                order.done(job)
                yield part
        yield named.result()


def _turn(job: Job) -> tuple[bool, bool]:
    """Return what puts first those jobs that take long, and what they wait for."""
    return job.stage not in {"schedules", "outlook"}, job.scope != PUBLIC


def _resolve(root: Path) -> _Part:
    """Return the ids that name nothing; tables that cannot be read are found by their stage."""
    try:
        return _Part({}, tuple(dangling(Layout(root))))
    except NearfreeError:
        return _Part({}, ())


@cache
def _pipeline(scratch: Path, config: Path) -> Pipeline:
    return Pipeline(scratch, config)


@no_collection()
def _audit(job: Job, root: Path, scratch: Path, config: Path, *, drawn: bool) -> _Part:
    """Make one stage again and compare; a stage that cannot be made is a finding."""
    said, made = Layout(root), Layout(scratch)
    pipeline = _pipeline(scratch, config)
    try:
        if job.stage == _FIGURES:
            marks, findings = figure_findings(said, made, pipeline, job.scope, drawn=drawn)
            return _Part(marks, tuple(findings))
        if job.stage == _REPORT:
            page = report_of(pipeline)
            return _Part({}, tuple(file_findings(said.root / "report", page.parent)))
        make(pipeline.layout, pipeline.config, job)
    except NearfreeError as error:
        why = str(error).replace(str(scratch), str(root))
        return _Part({}, (f"{job.stage} of {job.scope} cannot be made again: {why}",), failed=True)
    counts: Counter[str] = Counter()
    findings = []
    for table in STAGES[job.stage]:
        frame = read_table(made, job.scope, table)
        counts.update(tables=1, rows=frame.height, cells=frame.height * frame.width)
        path = said.table(job.scope, table.name)
        try:
            found = differences(table, read_table(said, job.scope, table), frame)
            findings += _first(f"{path}: ", found)
            if Book(said).inputs(job.scope, table.name) != Book(made).inputs(job.scope, table.name):
                findings.append(f"{path}: its manifest names other inputs than log and config give")
        except NearfreeError as error:
            findings.append(str(error))
    return _Part(dict(counts), tuple(findings))


def _first(place: str, found: Iterable[object]) -> list[str]:
    """Return the first of some differences at a place, and how many others there are."""
    every = iter(found)
    shown = [f"{place}{each}" for each in islice(every, MOST)]
    more = sum(1 for _ in every)
    return [*shown, *([f"{place}and {more} more"] if more else [])]


def _odd_tables(layout: Layout, pipeline: Pipeline) -> list[str]:
    """Return the tables that lie there and that no stage makes."""
    made = {
        layout.table(job.scope, table.name) for job in jobs(pipeline) for table in STAGES[job.stage]
    }
    return [
        f"{path}: no stage makes this table from this log and config"
        for path in table_files(layout)
        if path not in made or path.stem not in TABLES
    ]
