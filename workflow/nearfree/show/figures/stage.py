"""The stage `figures`: every figure of a scope's tables, as SVG and offline HTML."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import vl_convert
from msgspec import Struct, structs

from nearfree.core.modules.registry import MAIN
from nearfree.core.scopes import IMPORTED, PUBLIC
from nearfree.derive.outlook.drift import VERSION_DRIFT
from nearfree.derive.outlook.outlook import FORECAST, LOOKUP
from nearfree.derive.outlook.trend import TREND
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.reference.kernels import KERNELS
from nearfree.derive.score.accuracy import ACCURACY, DRIFT
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.score.validation import VALIDATION
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.engine_steps import ENGINE_STEPS
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table, table_digest
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.derive.tables.work import WORK
from nearfree.derive.tune.table import TUNING
from nearfree.log.document import render, replace
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.show.figures.engines import engine_drawings
from nearfree.show.figures.families import Rows, accuracy_drawings, drawings
from nearfree.show.figures.graphs import graph_drawings
from nearfree.show.figures.kernels import kernel_drawings
from nearfree.show.figures.listing import LIST, Drawing, Figure, FigureList
from nearfree.show.figures.models import model_drawings
from nearfree.show.figures.outlook import (
    boundary_over_batch,
    boundary_over_context,
    latency_by_module,
)
from nearfree.show.figures.page import page, vega_lite, write_bundle
from nearfree.show.figures.predicted import imported_drawings
from nearfree.show.figures.trend import drift_drawings, trend_drawings
from nearfree.show.figures.tuning import tuning_drawings

Chart = tuple[Figure, dict[str, Any]]
"""A figure's entry, and the Vega-Lite specification that draws it."""
SIMULATED = "simulated"
_WORDS = {"Measured": "Simulated", "measured": SIMULATED}


class _Tables(Struct):
    """The tables of a results root, with the digests of those that were read."""

    layout: Layout
    digests: dict[str, str] = {}

    def of(self, table: Table, *scopes: str) -> pl.DataFrame:
        for scope in scopes:
            digest = table_digest(self.layout, scope, table)
            self.digests[f"tables/{scope}/{table.name}"] = digest
        return pl.concat(read_table(self.layout, scope, table) for scope in scopes)


def charts(layout: Layout, scope: str, epsilon: float, *, imported: bool = False) -> list[Chart]:
    """Return the specification of every figure that a scope's tables can fill.

    Parameters
    ----------
    imported
        Whether to add the figures of imported curves to the public scope.
    """
    return _charts(_Tables(layout), scope, epsilon, imported=imported)


def draw(layout: Layout, scope: str, epsilon: float, *, imported: bool = False) -> None:
    """Draw a scope's figures, and list them with their digests in its `figures.json`."""
    folder = layout.root / "figures" / scope
    tables = _Tables(layout)
    charts_drawn = _charts(tables, scope, epsilon, imported=imported)
    script = write_bundle(folder.parent)
    files = [file for figure, spec in charts_drawn for file in save(spec, folder / figure.name)]
    digests = {f"../{script.name}": sha256(script.read_bytes())}
    digests |= {path.name: sha256(path.read_bytes()) for path in files}
    listing = FigureList(
        files=digests, figures=tuple(figure for figure, _ in charts_drawn), made_from=tables.digests
    )
    replace(folder / LIST, render(listing))
    for path in folder.iterdir():
        if path.name not in {*digests, LIST}:
            path.unlink()


def save(spec: dict[str, Any], stem: Path) -> tuple[Path, Path]:
    """Write the SVG of a specification, and its page, which draws without a network.

    Parameters
    ----------
    stem
        The path of both files without their suffixes.
    """
    svg = vl_convert.vegalite_to_svg(spec, vl_version=vega_lite())
    renamed = _own_ids(svg, f"{stem.parent.name}-{stem.name}")
    return (
        replace(stem.with_suffix(".svg"), renamed.encode()),
        replace(stem.with_suffix(".html"), page(spec)),
    )


def specification(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart, its data included."""
    with alt.data_transformers.disable_max_rows():
        spec: dict[str, Any] = chart.to_dict(context={"pre_transform": False})
    return spec


def as_simulated(figure: Figure, spec: dict[str, Any]) -> Chart:
    """Return a chart in which measured is replaced by simulated, titled `Simulated`.

    The word is replaced in the whole specification, including its data, so that scales still fit.
    """
    simulated = json.loads(_reworded(json.dumps(spec)))
    simulated["title"]["text"] = f"{SIMULATED.capitalize()}: {simulated['title']['text']}"
    caption = f"{SIMULATED.capitalize()}: {_reworded(figure.caption)}"
    return structs.replace(figure, name=_reworded(figure.name), caption=caption), simulated


def _reworded(text: str) -> str:
    for word, replacement in _WORDS.items():
        text = text.replace(word, replacement)
    return text


def _charts(tables: _Tables, scope: str, epsilon: float, *, imported: bool) -> list[Chart]:
    result = _specified(_measured(tables, scope, epsilon))
    if SIMULATED in tables.of(LATENCY, scope)["origin"]:
        result = [as_simulated(*chart) for chart in result]
    if scope == PUBLIC and imported:
        accuracy, drift = (tables.of(table, IMPORTED) for table in (ACCURACY, DRIFT))
        result += _specified(imported_drawings(accuracy, drift))
    if scope == PUBLIC:
        result += _specified(kernel_drawings(tables.of(KERNELS, PUBLIC)))
        lookup, forecast = tables.of(LOOKUP, PUBLIC), tables.of(FORECAST, PUBLIC)
        result += _specified(outlook_drawings(lookup, forecast, epsilon))
        result += _specified(trend_drawings(tables.of(TREND, PUBLIC)))
        result += _specified(drift_drawings(tables.of(VERSION_DRIFT, PUBLIC)))
    return result


def _specified(drawings: Iterable[Drawing]) -> list[Chart]:
    return [(figure, specification(chart)) for figure, chart in drawings]


def outlook_drawings(
    lookup: pl.DataFrame, forecast: pl.DataFrame, epsilon: float
) -> Iterator[Drawing]:
    """Yield every figure of predictions of models, none without predictions.

    Parameters
    ----------
    lookup, forecast
        Rows of these tables; of `lookup` only those that are `drawn` count.
    """
    lookup = lookup.filter("drawn")
    yield from boundary_over_batch(lookup, epsilon)
    yield from boundary_over_context(lookup, epsilon)
    yield from latency_by_module(lookup, forecast, epsilon)
    yield from graph_drawings(forecast)


def _measured(tables: _Tables, scope: str, epsilon: float) -> Iterator[Drawing]:
    scopes = dict.fromkeys((scope, PUBLIC))
    rows = Rows(
        latency=tables.of(LATENCY, scope),
        work=tables.of(WORK, scope),
        boundaries=tables.of(BOUNDARIES, *scopes),
        predictions=tables.of(PREDICTIONS, *scopes),
    )
    for module in MAIN:
        yield from drawings(rows.of(module.name), epsilon, module)
    of_models = (LATENCY, BOUNDARIES, TIME_SHARES, COMPOSITION)
    frames = {table.name: tables.of(table, scope) for table in of_models}
    yield from model_drawings(frames, epsilon)
    if scope != PUBLIC:
        steps = {ENGINE_STEPS.name: tables.of(ENGINE_STEPS, scope)}
        yield from engine_drawings(frames | steps, epsilon)
        yield from tuning_drawings(tables.of(TUNING, scope), tables.of(LATENCY, scope))
    yield from accuracy_drawings(tables.of(VALIDATION, scope), epsilon)


def _own_ids(svg: str, name: str) -> str:
    """Return a drawing with deterministic ids that are unique among the drawings of a page."""
    ids = dict.fromkeys(re.findall(r' id="([^"]+)"', svg))
    new_ids = {old: f"{name}-{number}" for number, old in enumerate(ids)}
    return re.sub(r'( id="|url\(#|href="#)([^")]+)', lambda m: m[1] + new_ids.get(m[2], m[2]), svg)
