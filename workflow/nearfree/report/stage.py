"""The stage `report`: one static page that works from a file, without a network."""

from pathlib import Path
from typing import Any

import jinja2
import msgspec
import polars as pl

from nearfree.errors import TableError
from nearfree.events.document import replace
from nearfree.events.evidence import read_scope
from nearfree.events.names import Layout
from nearfree.events.reader import read_bytes
from nearfree.events.types import RunFinished
from nearfree.figures.listing import MODELS, OUTLOOK, Figure
from nearfree.hardware.platforms import Platform
from nearfree.measure.tried import tried
from nearfree.public.curves import SCOPE as IMPORTED
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.report import accuracy, harness, outlook, sections
from nearfree.report.audit import AuditLine, Link, anchor, audit_lines, runs
from nearfree.report.model_section import ModelSection, model_section
from nearfree.report.models import PREFIX
from nearfree.report.svg import safe_svg
from nearfree.sources.record import SCOPE as SOURCES
from nearfree.tables.boundaries import BOUNDARIES, SENSITIVITY
from nearfree.tables.granularity import GRANULARITY
from nearfree.tables.latency import LATENCY
from nearfree.tables.platforms import PLATFORMS, config_id
from nearfree.tables.schema import Table
from nearfree.tables.settings import SETTINGS
from nearfree.tables.store import read_table
from nearfree.tables.time_shares import TIME_SHARES
from nearfree.tables.work import WORK
from nearfree.theory.accuracy import ACCURACY
from nearfree.theory.composition import COMPOSITION
from nearfree.theory.predictions import PREDICTIONS
from nearfree.theory.times.constants import recorded_constants
from nearfree.theory.validation import VALIDATION

_SAYS: tuple[tuple[Table, tuple[str, ...]], ...] = (
    (PLATFORMS, ("peak_tflops", "bandwidth_gb_s", "balance_flop_per_byte")),
    (GRANULARITY, ("value",)),
    (SETTINGS, ("baseline",)),
    (LATENCY, ("latency_us", "latency_low_us", "latency_high_us", "ratio", "rounds")),
    (
        BOUNDARIES,
        (
            *("n_max", "first_exit", "n_low", "n_high", "baseline_over_min", "verdict"),
            *("n_max_from_1", "n_low_from_1", "n_high_from_1"),
        ),
    ),
    (
        WORK,
        (
            *("flop_logical", "flop_executed", "bytes", "intensity_flop_per_byte"),
            *("compute_utilization", "bandwidth_utilization"),
        ),
    ),
    (SENSITIVITY, ("n_max_low", "n_max_high", "verdict")),
    (
        PREDICTIONS,
        (
            *("n_max", "n_max_extended", "low", "high", "balance_flop_per_byte"),
            *("limiting_term", "margin", "constants"),
        ),
    ),
    (VALIDATION, ("n_max", "predicted", "hit", "within_1_31", "within_2", "covered")),
    (TIME_SHARES, ("latency_us", "share", "rounds")),
    (
        COMPOSITION,
        ("n_max", "predicted", "limiter", "measured_limiter", "hit", "within", "foretold"),
    ),
)
_SAYS_ACCURACY = (
    *("settings", "answered", "undecided", "hits", "within_1_31", "within_2", "t_ratio_error"),
    *("interval_coverage", "interval_width"),
)
_OBSERVED = (PLATFORMS, GRANULARITY, SETTINGS, LATENCY, WORK)
Frames = dict[str, pl.DataFrame]


def write_report(
    layout: Layout,
    scopes: list[str],
    datasheets: dict[str, Platform],
    epsilon: float,
    *,
    imported: bool = False,
) -> Path:
    """Write the page over the tables and figures of all scopes, and return its path.

    Parameters
    ----------
    imported
        Whether the scores on imported curves are shown, too.
    """
    loaded = {scope: _frames(layout, scope) for scope in scopes}
    everything = {t.name: _once([f[t.name] for f in loaded.values()]) for t, _ in _SAYS}
    known = {t.name: _outlook(layout, t, scopes) for t, _ in outlook.SAYS}
    score, backing = accuracy.scores(everything["validation"], epsilon)
    measured = [scope for scope in scopes if scope not in (PUBLIC, SOURCES)]
    parts = {scope: model_section(loaded[scope], scope, epsilon) for scope in measured}
    backing += [each for part in parts.values() if part for each in part.backing]
    calibrated = recorded_constants(layout)
    groups = ACCURACY.build(ACCURACY.frame([]), [])
    if imported:
        groups = accuracy.shown(read_table(layout, IMPORTED, ACCURACY))
    page = _template().render(
        epsilon=f"{epsilon:.0%}",
        origin=sections.own_origin(everything["boundaries"]),
        platforms=[_platform(layout, s, loaded[s], parts[s], epsilon) for s in measured],
        tolerance=sections.by_tolerance(everything["boundaries"], everything["sensitivity"]),
        scores=score,
        imported_scores=accuracy.imported_scores(groups),
        calibrated_on=accuracy.calibrated_on(calibrated),
        calibrations=accuracy.calibrations(calibrated),
        constants=accuracy.constants(calibrated),
        forms=accuracy.forms(calibrated.values()),
        accuracy_figures=_figures(layout, PUBLIC, about="") if PUBLIC in scopes else [],
        models=outlook.models(known["lookup"]),
        published_lookup=outlook.published(known["published_lookup"]),
        changes=outlook.changes(known["version_drift"]),
        outlook_figures=_figures(layout, PUBLIC, about=OUTLOOK) if PUBLIC in scopes else [],
        facts=sections.facts(everything["platforms"]),
        rules=sections.rules(everything["granularity"]),
        extracted=sections.extracted(everything["granularity"]),
        adapters=harness.adapters(tried(layout)),
        audit=[
            *_audit(everything, backing),
            *audit_lines(ACCURACY.name, groups, _SAYS_ACCURACY),
            *(
                line
                for t, says in outlook.SAYS
                for line in audit_lines(t.name, known[t.name], says)
            ),
        ],
        datasheets=[
            (anchor(config_id(name, sheet)), config_id(name, sheet), sheet.sources)
            for name, sheet in datasheets.items()
        ],
        model_files=[(anchor(each), each) for each in outlook.model_files(known["lookup"])],
        runs=[
            run
            for scope in [*scopes, *([IMPORTED] if imported else [])]
            for run in runs(read_scope(layout, scope, only=(RunFinished,)))
        ],
    )
    return replace(layout.root / "report" / "index.html", page.encode())


def _outlook(layout: Layout, table: Table, scopes: list[str]) -> pl.DataFrame:
    """Return a table of the public scope that no other scope has, empty without that scope."""
    if PUBLIC in scopes:
        return read_table(layout, PUBLIC, table)
    return table.build(table.frame([]), [])


def _once(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return all rows of all scopes, those that several scopes share but once."""
    return pl.concat(frames).unique("row_id", keep="first", maintain_order=True)


def _frames(layout: Layout, scope: str) -> Frames:
    """Return a scope's tables; the scope of rules has no boundaries and what follows from them."""
    return {
        table.name: read_table(layout, scope, table)
        if scope != SOURCES or table in _OBSERVED
        else table.build(table.frame([]), [])
        for table, _ in _SAYS
    }


def _platform(
    layout: Layout, scope: str, frames: Frames, models: ModelSection | None, epsilon: float
) -> dict[str, Any]:
    boundaries, latency = frames["boundaries"], frames["latency"]
    probed = frames["platforms"].filter(pl.col("basis") != "datasheet")
    return {
        "name": scope,
        "machine": probed["vendor_name"].first() or scope,
        "answer": sections.answer(boundaries, frames["predictions"], epsilon),
        "takes": sections.takes(boundaries, latency, epsilon),
        "cliffs": harness.cliffs(frames["work"]),
        "cost": harness.cost(read_scope(layout, scope, only=(RunFinished,))),
        "figures": _figures(layout, scope, about=""),
        "models": models,
        "model_figures": _figures(layout, scope, about=MODELS),
        "clean": _share(latency["clean_samples"], latency["samples"]),
    }


def _share(part: pl.Series, whole: pl.Series) -> float:
    return float(sum(part.to_list()) / max(sum(whole.to_list()), 1))


def _figures(layout: Layout, scope: str, about: str) -> list[dict[str, Any]]:
    """Return a scope's figures of one subject."""
    folder = layout.root / "figures" / scope
    try:
        listed = msgspec.json.decode(read_bytes(folder / "figures.json"), type=list[Figure])
    except msgspec.MsgspecError as error:
        raise TableError(
            f"{folder}/figures.json is damaged: {error}", remedy="Draw the figures again"
        ) from error
    return [
        {
            "caption": figure.caption,
            "href": f"../figures/{scope}/{figure.name}.html",
            "svg": safe_svg(folder / f"{figure.name}.svg"),
        }
        for figure in listed
        if about == figure.about
    ]


def _audit(everything: Frames, backing: list[tuple[str, list[str]]]) -> list[AuditLine]:
    lines = [
        line
        for table, says in _SAYS
        for line in audit_lines(table.name, everything[table.name], says)
    ]
    lines += [
        AuditLine(
            anchor=anchor(name),
            row_id=name,
            subject=name.removeprefix("score:").removeprefix(PREFIX).replace("-", ", "),
            says=f"{len(rows)} settings",
            formula=f"counts over rows of {rows[0].partition(':')[0]}",
            made_from=tuple(Link(row, f"#{anchor(row)}") for row in rows),
        )
        for name, rows in backing
    ]
    return lines


def _template() -> jinja2.Template:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html")
