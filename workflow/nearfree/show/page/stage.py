"""The stage `report`: a page with all its tables embedded, and interactive figures beside it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2
import polars as pl

from nearfree.core.scopes import IMPORTED, PLATFORM, PUBLIC, SOURCES
from nearfree.derive.claims.judge import CLAIMS
from nearfree.derive.jobs import TABLES
from nearfree.derive.score.accuracy import ACCURACY
from nearfree.derive.score.narrowing import calibrated_on
from nearfree.derive.stages import STAGE_OF, STAGES
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.derive.tables.tuned import TUNED
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.hardware.platforms import Platform
from nearfree.log.document import replace, write_folder_manifest
from nearfree.log.events import EngineLoaded, LatencyMeasured, RunFinished
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout
from nearfree.measure.adapter_runs import adapter_runs
from nearfree.pipeline.pipeline import Pipeline
from nearfree.show.figures.boundaries import printed
from nearfree.show.figures.gallery import STATUSES, Entry, read_gallery
from nearfree.show.figures.listing import ENGINES, IMPORTED_CURVES, TUNED_ENGINES, Frames
from nearfree.show.page import (
    accuracy,
    claims_section,
    engines,
    headline,
    models,
    sections,
    tuning,
)
from nearfree.show.page.evidence import config_entries, run_records, runs, sample_blocks
from nearfree.show.page.glossary import WORDS
from nearfree.show.page.inline import Block, block, packed, script, style
from nearfree.show.page.pictures import Picture, copy_figures, pictures

_REPORT = STAGES["report"]
PAGE_TABLES = [TABLES[name] for name in (*_REPORT.reads, *_REPORT.sources, *_REPORT.imported)]
"""Every table that the page is made from."""
_SCOPE_TABLES = [TABLES[name] for name in _REPORT.reads if STAGE_OF[name].has(PLATFORM)]
_PUBLIC_TABLES = [TABLES[name] for name in _REPORT.reads if STAGE_OF[name].single]
OTHER_SECTIONS = (IMPORTED_CURVES, ENGINES, TUNED_ENGINES)
"""Subjects of the figures that other sections show, not the gallery."""
_RULE = re.compile(r"\(([0-9a-f]{12})\)")


def scope_frames(layout: Layout, scope: str) -> dict[str, pl.DataFrame]:
    """Return a scope's tables by name; tables that the scope lacks are empty."""
    return {
        table.name: read_table(layout, scope, table)
        if STAGE_OF[table.name].has(scope)
        else empty(table)
        for table in _SCOPE_TABLES
    }


def all_rows(layout: Layout, loaded: Mapping[str, Frames], scopes: list[str]) -> Frames:
    """Return the rows of all scopes by table, without duplicates.

    Tables that only the public scope has are empty without that scope. Of tuned files only those
    are included that a row cites as evidence.
    """
    frames = {
        table.name: pl.concat(frames_of[table.name] for frames_of in loaded.values()).unique(
            "row_id", keep="first", maintain_order=True
        )
        for table in _SCOPE_TABLES
    }
    frames |= {
        table.name: read_table(layout, PUBLIC, table) if PUBLIC in scopes else empty(table)
        for table in _PUBLIC_TABLES
    }
    if SOURCES in scopes:
        cited_digests = _cited_digests(frames)
        tuned = read_table(layout, SOURCES, TUNED)
        frames[TUNED.name] = tuned.filter(pl.col("sha256").str.slice(0, 12).is_in(cited_digests))
    return frames


def _cited_digests(frames: Frames) -> list[str]:
    """Return the first twelve digits of the digests of files that rows cite as rules."""
    texts = {
        text
        for frame in frames.values()
        for column in ("evidence", "rule")
        if column in frame.columns
        for text in frame[column].drop_nulls().unique()
    }
    return sorted({digest for text in texts for digest in _RULE.findall(text)})


def empty(table: Table) -> pl.DataFrame:
    """Return a table without rows."""
    return table.build(table.frame([]), [])


def report_of(pipeline: Pipeline) -> Path:
    """Write the report of a pipeline's tables and figures, and return its page."""
    return write_report(
        pipeline.layout,
        pipeline.scopes + pipeline.sources,
        pipeline.config.datasheets(PUBLIC),
        pipeline.site.epsilon,
        read_gallery(pipeline.layout, pipeline.config.folder, pipeline.scopes),
        imported=bool(pipeline.imported),
    )


def write_report(
    layout: Layout,
    scopes: list[str],
    datasheets: dict[str, Platform],
    epsilon: float,
    paper: Sequence[Entry],
    *,
    imported: bool = False,
) -> Path:
    """Write the page for the tables and figures of all scopes, and return its path.

    The folder holds all files of the page, and their manifest.

    Parameters
    ----------
    paper
        The paper's figures and tables, with their counterparts here.
    imported
        Whether to show the scores on imported curves.
    """
    loaded = {scope: scope_frames(layout, scope) for scope in scopes}
    on_imported = read_table(layout, IMPORTED, ACCURACY) if imported else empty(ACCURACY)
    rows = {
        **all_rows(layout, loaded, scopes),
        ACCURACY.name: accuracy.by_module(on_imported),
    }
    platforms = [scope for scope in scopes if scope not in (PUBLIC, SOURCES)]
    takes = {
        scope: read_scope(layout, scope, only=_kinds(scope, platforms))
        for scope in [*scopes, *([IMPORTED] if imported else [])]
    }
    galleries = {
        s: list(pictures(layout, s)) for s in [*platforms, *([PUBLIC] if PUBLIC in scopes else [])]
    }
    status_counts = Counter(entry.status for entry in paper)
    content = {
        "epsilon": f"{epsilon:.0%}",
        "origin": sections.own_origin(rows["boundaries"]),
        "printed": printed(rows["boundaries"]),
        "platforms": [
            _platform(scope, loaded[scope], takes[scope], epsilon)
            | {"pictures": _pictures_about(galleries[scope], ENGINES)}
            | {"tuned_pictures": _pictures_about(galleries[scope], TUNED_ENGINES)}
            for scope in platforms
        ],
        "predictors": [
            *headline.predictors(rows["scores"], epsilon),
            *headline.unseen(rows["accuracy"]),
        ],
        "galleries": [
            (scope, [picture for picture in drawn if picture.figure.about not in OTHER_SECTIONS])
            for scope, drawn in galleries.items()
        ],
        "curves": _pictures_about(chain(*galleries.values()), IMPORTED_CURVES),
        "paper": paper,
        "statuses": [(s, status_counts[s]) for s in STATUSES if s in status_counts],
        "claims": claims_section.by_claim(rows["claims"]),
        "judged": CLAIMS.body["verdict"].meaning,
        "words": WORDS,
        "claim_counts": claims_section.counts(rows["claims"]),
        "tolerance": sections.by_tolerance(rows["boundaries"], rows["sensitivity"]),
        "models": models.models(rows["lookup"].filter("drawn", epsilon=epsilon)),
        "published_lookup": models.published(rows["published_lookup"]),
        "changes": models.changes(rows["version_drift"]),
        "facts": sections.facts(rows["platforms"]),
        "rules": sections.rules(rows["granularity"]),
        "extracted": sections.extracted(rows["granularity"]),
        "adapters": sections.adapters(adapter_runs(layout)),
        "runs": [run for scope in takes.values() for run in runs(scope)],
        **_accuracy(layout, rows, epsilon),
    }
    page = _template().render(
        **content,
        script=script(),
        style=style(),
        blocks=[
            *_blocks(rows, takes, platforms, datasheets, epsilon),
            *(picture.drawing for gallery in galleries.values() for picture in gallery),
        ],
    )
    folder = layout.root / "report"
    copy_figures(layout, galleries, folder / "figures")
    path = replace(folder / "index.html", page.encode())
    write_folder_manifest(folder)
    return path


def _pictures_about(candidates: Iterable[Picture], subject: str) -> list[Picture]:
    return [picture for picture in candidates if picture.figure.about == subject]


def _kinds(scope: str, platforms: list[str]) -> tuple[type, ...]:
    """Return the event types that the page reads from a scope; samples only from platforms."""
    platform_events = (LatencyMeasured, EngineLoaded) if scope in platforms else ()
    return (RunFinished, *platform_events)


def _accuracy(layout: Layout, rows: Frames, epsilon: float) -> dict[str, Any]:
    calibrated = recorded_constants(layout)
    return {
        "scores": accuracy.scores(rows["scores"], epsilon),
        "imported_scores": accuracy.imported_scores(rows["accuracy"]),
        "calibrated_on": ", ".join(calibrated_on(recorded_constants(layout, collectives=False))),
        "calibrations": accuracy.calibrations(calibrated),
        "constants": accuracy.constants(calibrated),
        "forms": accuracy.forms(calibrated.values()),
    }


def _platform(scope: str, frames: Frames, takes: list[Take], epsilon: float) -> dict[str, Any]:
    boundaries, latency = frames["boundaries"], frames["latency"]
    probed = frames["platforms"].filter(pl.col("basis") != "datasheet")
    return {
        "name": scope,
        "machine": probed["vendor_name"].first() or scope,
        "headline": headline.answers(boundaries, frames["composition"], epsilon),
        "answer": sections.answer(boundaries, frames["predictions"], epsilon),
        "takes": sections.takes(boundaries, latency, epsilon),
        "cliffs": sections.cliffs(frames["work"]),
        "cost": sections.cost(takes),
        "models": models.model_section(frames, epsilon),
        "engine": engines.engine_section(frames, takes, epsilon),
        "tuning": tuning.tuning_section(frames["tuning"]),
        "clean": _share(latency["clean_samples"], latency["samples"]),
    }


def _share(part: pl.Series, whole: pl.Series) -> float | None:
    """Return the share of a part in a whole, None if the whole is zero."""
    total = sum(whole.to_list())
    return float(sum(part.to_list()) / total) if total else None


def _blocks(
    rows: Frames,
    takes: Mapping[str, list[Take]],
    platforms: list[str],
    datasheets: Mapping[str, Platform],
    epsilon: float,
) -> list[Block]:
    tables = [table for table in PAGE_TABLES if table.name in rows]
    all_takes = [take for scope in takes.values() for take in scope]
    measured = [take for scope in platforms for take in takes[scope]]
    return [
        block("site", {"epsilon": epsilon, "here": platforms, "tables": [t.name for t in tables]}),
        *(block(f"table:{t.name}", packed(t, rows[t.name])) for t in tables),
        block("runs", run_records(all_takes)),
        block("config", config_entries(datasheets, models.model_files(rows["lookup"]))),
        *sample_blocks(measured),
    ]


def _template() -> jinja2.Template:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html")
