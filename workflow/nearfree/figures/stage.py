"""The stage `figures`: every figure that a platform's tables can fill, as SVG and offline HTML."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import msgspec
import polars as pl
from altair.utils.mimebundle import spec_to_mimebundle
from msgspec import structs

from nearfree.events.document import replace
from nearfree.events.names import Layout
from nearfree.figures.drift import drift_drawings
from nearfree.figures.families import Drawing, Rows, accuracy_drawings, drawings
from nearfree.figures.imported import imported_drawings
from nearfree.figures.listing import OUTLOOK, Figure
from nearfree.figures.models import ModelRows, model_drawings
from nearfree.figures.modules import MODULES
from nearfree.figures.origin import SIMULATED, Told, as_simulated
from nearfree.figures.outlook import outlook_drawings
from nearfree.figures.trend import trend_drawings
from nearfree.public.curves import SCOPE as IMPORTED
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.tables.boundaries import BOUNDARIES
from nearfree.tables.latency import LATENCY
from nearfree.tables.schema import Table
from nearfree.tables.store import read_table
from nearfree.tables.time_shares import TIME_SHARES
from nearfree.tables.work import WORK
from nearfree.theory.accuracy import ACCURACY, DRIFT
from nearfree.theory.composition import COMPOSITION
from nearfree.theory.drift import VERSION_DRIFT
from nearfree.theory.outlook import FORECAST, LOOKUP
from nearfree.theory.predictions import PREDICTIONS
from nearfree.theory.trend import TREND
from nearfree.theory.validation import VALIDATION

LIST = "figures.json"
_VERSIONS: dict[str, Any] = {
    "mode": "vega-lite",
    "vega_version": alt.VEGA_VERSION,
    "vegalite_version": alt.VEGALITE_VERSION,
    "vegaembed_version": alt.VEGAEMBED_VERSION,
}


def draw(layout: Layout, scope: str, epsilon: float, *, imported: bool = False) -> None:
    """Draw a scope's figures and list them in its `figures.json`.

    Parameters
    ----------
    imported
        Whether those of the imported curves are drawn beside the published ones.
    """
    folder = layout.root / "figures" / scope
    drawn = list(_own(layout, scope, epsilon))
    if imported and scope == PUBLIC:
        tables = (read_table(layout, IMPORTED, table) for table in (ACCURACY, DRIFT))
        drawn += imported_drawings(*tables)
    if scope == PUBLIC:
        drawn += [
            (structs.replace(figure, about=OUTLOOK), chart)
            for figure, chart in _outlook(layout, epsilon)
        ]
    folder.mkdir(parents=True, exist_ok=True)
    with alt.data_transformers.disable_max_rows():
        for figure, chart in drawn:
            save(chart, folder / figure.name)
    figures = [figure for figure, _ in drawn]
    replace(folder / LIST, msgspec.json.encode(figures))
    names = {f"{figure.name}{suffix}" for figure in figures for suffix in (".svg", ".html")}
    for path in folder.iterdir():
        if path.name not in {*names, LIST}:
            path.unlink()


def _outlook(layout: Layout, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of what is predicted of models, and of what follows from datasheets."""
    yield from outlook_drawings(
        read_table(layout, PUBLIC, LOOKUP), read_table(layout, PUBLIC, FORECAST), epsilon
    )
    yield from trend_drawings(read_table(layout, PUBLIC, TREND))
    yield from drift_drawings(read_table(layout, PUBLIC, VERSION_DRIFT))


def _charts(layout: Layout, scope: str, epsilon: float) -> Iterator[Drawing]:
    def of(table: Table, *scopes: str) -> pl.DataFrame:
        return pl.concat(read_table(layout, name, table) for name in scopes)

    scopes = dict.fromkeys((scope, PUBLIC))
    rows = Rows(
        latency=of(LATENCY, scope),
        work=of(WORK, scope),
        boundaries=of(BOUNDARIES, *scopes),
        predictions=of(PREDICTIONS, *scopes),
    )
    for module in MODULES:
        yield from drawings(rows.of(module.name), epsilon, module)
    models = ModelRows(
        latency=rows.latency,
        boundaries=of(BOUNDARIES, scope),
        time_shares=of(TIME_SHARES, scope),
        composition=of(COMPOSITION, scope),
    )
    yield from model_drawings(models, epsilon)
    yield from accuracy_drawings(of(VALIDATION, scope), epsilon)


def _own(layout: Layout, scope: str, epsilon: float) -> Iterator[tuple[Figure, Any]]:
    """Yield the figures of a scope's tables, told as what they are where it is simulated."""
    drawn = _charts(layout, scope, epsilon)
    simulated = SIMULATED in read_table(layout, scope, LATENCY)["origin"]
    return as_simulated(drawn) if simulated else drawn


def save(chart: alt.TopLevelMixin | Told, stem: Path) -> None:
    """Write a chart as SVG, and as a page that works without a network.

    Parameters
    ----------
    stem
        The path of both files without their suffixes.
    """
    spec = chart.to_dict(context={"pre_transform": False})
    drawn = spec_to_mimebundle(spec, "svg", **_VERSIONS)["image/svg+xml"]
    page = spec_to_mimebundle(
        spec, "html", template="inline", json_kwds={"cls": _InScript}, **_VERSIONS
    )["text/html"]
    own = _own_ids(drawn, f"{stem.parent.name}-{stem.name}")
    replace(stem.with_suffix(".svg"), own.encode())
    replace(stem.with_suffix(".html"), page.encode())


class _InScript(json.JSONEncoder):
    """JSON inside a script of a page: no text of the data can end that script."""

    def encode(self, o: object) -> str:
        return super().encode(o).replace("<", r"\u003c")


def _own_ids(svg: str, name: str) -> str:
    """Return a drawing with ids of its own, the same each time and in no other drawing's way."""
    found = dict.fromkeys(re.findall(r' id="([^"]+)"', svg))
    renamed = {old: f"{name}-{number}" for number, old in enumerate(found)}
    return re.sub(r'( id="|url\(#|href="#)([^")]+)', lambda m: m[1] + renamed.get(m[2], m[2]), svg)
