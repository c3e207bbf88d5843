"""The stage `figures`: every figure that a platform's tables can fill, as SVG and offline HTML."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import altair as alt
import msgspec
import polars as pl

from nearfree.events.document import replace
from nearfree.events.names import Layout
from nearfree.figures.boundaries import nmax_against_batch
from nearfree.figures.latency import latency_against_n
from nearfree.figures.listing import Figure
from nearfree.figures.sensitivity import sensitivity_map
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.tables.boundaries import BOUNDARIES
from nearfree.tables.latency import LATENCY
from nearfree.tables.schema import Table
from nearfree.tables.store import read_table
from nearfree.theory.predictions import PREDICTIONS

MODULE = "dense_ffn"
LIST = "figures.json"


def draw(layout: Layout, scope: str, epsilon: float) -> None:
    """Draw a platform's figures and list them in its `figures.json`."""
    folder = layout.root / "figures" / scope
    charts = list(_charts(layout, scope, epsilon))
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    for figure, chart in charts:
        _save(chart, folder / figure.name)
        figures.append(figure)
    replace(folder / LIST, msgspec.json.encode(figures))
    drawn = {f"{figure.name}{suffix}" for figure in figures for suffix in (".svg", ".html")}
    for path in folder.iterdir():
        if path.name not in {*drawn, LIST}:
            path.unlink()


def _charts(layout: Layout, scope: str, epsilon: float) -> Iterator[tuple[Figure, alt.FacetChart]]:
    def of(table: Table, *scopes: str) -> pl.DataFrame:
        frames = [read_table(layout, name, table) for name in scopes]
        return pl.concat(frames).filter(pl.col("module") == MODULE)

    latency, own = of(LATENCY, scope), of(BOUNDARIES, scope)
    if latency.is_empty():
        return
    every, laws = of(BOUNDARIES, scope, PUBLIC), of(PREDICTIONS, scope, PUBLIC)
    yield (
        Figure(
            name="latency_against_n",
            caption="T(N) of every batch size, with the tolerance band and the boundary.",
            rows=tuple(latency.filter("newest")["row_id"]),
        ),
        latency_against_n(latency, own, epsilon),
    )
    at = every.filter("newest", pl.col("epsilon") == epsilon)
    yield (
        Figure(
            name="nmax_against_batch",
            caption="N_max against batch: measured here, published for H20, and predicted.",
            rows=(*at["row_id"], *laws["row_id"]),
        ),
        nmax_against_batch(every, laws, epsilon),
    )
    yield (
        Figure(
            name="sensitivity",
            caption="N_max over tolerances: measured here and published for H20.",
            rows=tuple(every.filter("newest")["row_id"]),
        ),
        sensitivity_map(every),
    )


def _save(chart: alt.FacetChart, stem: Path) -> None:
    drawn, page = io.StringIO(), io.StringIO()
    chart.save(drawn, format="svg")
    chart.save(page, format="html", inline=True)
    replace(
        stem.with_suffix(".svg"),
        _own_ids(drawn.getvalue(), f"{stem.parent.name}-{stem.name}").encode(),
    )
    replace(stem.with_suffix(".html"), page.getvalue().encode())


def _own_ids(svg: str, name: str) -> str:
    """Return a drawing with ids of its own, the same each time and in no other drawing's way."""
    found = dict.fromkeys(re.findall(r' id="([^"]+)"', svg))
    renamed = {old: f"{name}-{number}" for number, old in enumerate(found)}
    return re.sub(r'( id="|url\(#|href="#)([^")]+)', lambda m: m[1] + renamed.get(m[2], m[2]), svg)
