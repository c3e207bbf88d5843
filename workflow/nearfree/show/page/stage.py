"""The stage `report`: a page with all its data inside, and interactive figures beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import polars as pl

from nearfree.core.scopes import IMPORTED, PUBLIC, SOURCES
from nearfree.derive.claims.judge import CLAIMS
from nearfree.derive.score.accuracy import ACCURACY
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.hardware.platforms import Platform
from nearfree.log.document import replace
from nearfree.log.events import LatencyMeasured, RunFinished
from nearfree.log.evidence import Take, read_scope
from nearfree.log.manifest import write_folder_manifest
from nearfree.log.names import Layout
from nearfree.measure.adapter_runs import tried
from nearfree.pipeline.pipeline import Pipeline
from nearfree.show.figures.gallery import read_gallery
from nearfree.show.figures.paper import STATUSES, Entry
from nearfree.show.page import (
    accuracy,
    claims_section,
    headline,
    outlook,
    sections,
)
from nearfree.show.page import (
    measuring as harness,
)
from nearfree.show.page.blocks import Block, block, packed
from nearfree.show.page.evidence import config_entries, run_records, runs, sample_blocks
from nearfree.show.page.frames import (
    PAGE_TABLES,
    Frames,
    imported_accuracy,
    scope_frames,
    together,
)
from nearfree.show.page.glossary import WORDS
from nearfree.show.page.model_modules import model_section
from nearfree.show.page.pictures import copy_figures, pictures
from nearfree.show.page.script import script, style


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
    """Write the page over the tables and figures of all scopes, and return its path.

    The folder holds all that the page needs, and a manifest of it.

    Parameters
    ----------
    paper
        What there is of each of the paper's figures and tables.
    imported
        Whether the scores on imported curves are shown, too.
    """
    loaded = {scope: scope_frames(layout, scope) for scope in scopes}
    rows = {
        **together(layout, loaded, scopes),
        ACCURACY.name: accuracy.shown(imported_accuracy(layout, imported=imported)),
    }
    here = [scope for scope in scopes if scope not in (PUBLIC, SOURCES)]
    takes = {
        scope: read_scope(layout, scope, only=_kinds(scope, here))
        for scope in [*scopes, *([IMPORTED] if imported else [])]
    }
    drawn = {s: list(pictures(layout, s)) for s in [*here, *([PUBLIC] if PUBLIC in scopes else [])]}
    said = {
        "epsilon": f"{epsilon:.0%}",
        "origin": sections.own_origin(rows["boundaries"]),
        "platforms": [_platform(scope, loaded[scope], takes[scope], epsilon) for scope in here],
        "predictors": [
            *headline.predictors(rows["scores"], epsilon),
            *headline.unseen(rows["accuracy"]),
        ],
        "galleries": list(drawn.items()),
        "paper": paper,
        "statuses": [(status, count) for status in STATUSES if (count := _having(paper, status))],
        "claims": claims_section.by_claim(rows["claims"]),
        "judged": CLAIMS.body["verdict"].meaning,
        "words": WORDS,
        "claim_counts": claims_section.counts(rows["claims"]),
        "tolerance": sections.by_tolerance(rows["boundaries"], rows["sensitivity"]),
        "models": outlook.models(rows["lookup"].filter("drawn", epsilon=epsilon)),
        "published_lookup": outlook.published(rows["published_lookup"]),
        "changes": outlook.changes(rows["version_drift"]),
        "facts": sections.facts(rows["platforms"]),
        "rules": sections.rules(rows["granularity"]),
        "extracted": sections.extracted(rows["granularity"]),
        "adapters": harness.adapters(tried(layout)),
        "runs": [run for each in takes.values() for run in runs(each)],
        **_accuracy(layout, rows, epsilon),
    }
    page = _template().render(
        **said,
        script=script(),
        style=style(),
        blocks=[
            *_blocks(rows, takes, here, datasheets, epsilon),
            *(each.drawing for every in drawn.values() for each in every),
        ],
    )
    folder = layout.root / "report"
    copy_figures(layout, drawn, folder / "figures")
    path = replace(folder / "index.html", page.encode())
    write_folder_manifest(folder)
    return path


def _having(paper: Sequence[Entry], status: str) -> int:
    return sum(entry.status == status for entry in paper)


def _kinds(scope: str, here: list[str]) -> tuple[type, ...]:
    """Return the events that the page takes from a scope: raw samples of what was timed."""
    return (RunFinished, LatencyMeasured) if scope in here else (RunFinished,)


def _accuracy(layout: Layout, rows: Frames, epsilon: float) -> dict[str, Any]:
    calibrated = recorded_constants(layout)
    return {
        "scores": accuracy.scores(rows["scores"], epsilon),
        "imported_scores": accuracy.imported_scores(rows["accuracy"]),
        "calibrated_on": accuracy.calibrated_on(calibrated),
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
        "cliffs": harness.cliffs(frames["work"]),
        "cost": harness.cost(takes),
        "models": model_section(frames, epsilon),
        "clean": _share(latency["clean_samples"], latency["samples"]),
    }


def _share(part: pl.Series, whole: pl.Series) -> float:
    return float(sum(part.to_list()) / max(sum(whole.to_list()), 1))


def _blocks(
    rows: Frames,
    takes: Mapping[str, list[Take]],
    here: list[str],
    datasheets: Mapping[str, Platform],
    epsilon: float,
) -> list[Block]:
    tables = [table for table in PAGE_TABLES if table.name in rows]
    every = [take for each in takes.values() for take in each]
    own = [take for scope in here for take in takes[scope]]
    return [
        block("site", {"epsilon": epsilon, "here": here, "tables": [t.name for t in tables]}),
        *(block(f"table:{t.name}", packed(t, rows[t.name])) for t in tables),
        block("runs", run_records(every)),
        block("config", config_entries(datasheets, outlook.model_files(rows["lookup"]))),
        *sample_blocks(own),
    ]


def _template() -> jinja2.Template:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html")
