"""Figures: the rows that they show, their axes and their colours."""

import json
import re
from collections.abc import Callable
from typing import Any

import altair as alt
import polars as pl
import pytest
from nearfree.figures.boundaries import nmax_against_batch
from nearfree.figures.latency import latency_against_n
from nearfree.figures.sensitivity import sensitivity_map
from nearfree.figures.theme import BAND, MEASURED, PALETTE, PUBLISHED
from nearfree.tables.boundaries import BOUNDARIES
from nearfree.tables.latency import LATENCY
from nearfree.theory.predictions import PREDICTIONS
from tables.logs import GRID, TOLERANCES

Reader = Callable[..., pl.DataFrame]
OKABE_ITO = {
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7",
}  # fmt: skip


def rows(chart: alt.FacetChart) -> list[dict[str, Any]]:
    """Return the rows that a chart's marks are made of."""
    (data,) = chart.to_dict()["datasets"].values()
    return list(data)


def of(chart: alt.FacetChart, kind: str) -> list[dict[str, Any]]:
    """Return the rows of one kind of mark."""
    return [row for row in rows(chart) if row["kind"] == kind]


@pytest.fixture(scope="module")
def charts(dense: Reader) -> dict[str, alt.FacetChart]:
    """Return every figure of the tables."""
    both = dense(BOUNDARIES, "cpu", "public")
    laws = dense(PREDICTIONS, "cpu", "public")
    return {
        "latency": latency_against_n(dense(LATENCY), dense(BOUNDARIES), 0.2),
        "nmax": nmax_against_batch(both, laws, 0.2),
        "sensitivity": sensitivity_map(both),
    }


def test_the_palette_is_safe_for_colour_blind_readers() -> None:
    """Every colour of a category is of Okabe and Ito's palette, and none stands twice."""
    assert set(PALETTE) | {MEASURED, PUBLISHED, BAND} <= OKABE_ITO
    assert len(set(PALETTE)) == len(PALETTE)


@pytest.mark.parametrize("name", ["latency", "nmax", "sensitivity"])
def test_colours_are_of_the_palette(charts: dict[str, alt.FacetChart], name: str) -> None:
    """A figure uses the palette, greys, or a scheme that every reader can follow."""
    text = json.dumps(charts[name].to_dict() | {"datasets": {}})
    used = {colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}", text)}
    greys = {colour for colour in used if colour[1:3] == colour[3:5] == colour[5:7]}
    assert used - greys <= OKABE_ITO
    assert set(re.findall(r'"scheme": "(\w+)"', text)) <= {"viridis"}


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("latency", ("positions N", "T(N), ms")),
        ("nmax", ("batch b", "N_max, positions")),
        ("sensitivity", ("tolerance", "batch b", "N_max")),
    ],
)
def test_axes_have_titles(
    charts: dict[str, alt.FacetChart], name: str, titles: tuple[str, ...]
) -> None:
    """Each axis says what it shows, and in which unit."""
    text = json.dumps(charts[name].to_dict())
    assert all(f'"title": "{title}"' in text for title in titles)


def test_the_points_of_the_latency_figure(dense: Reader) -> None:
    """There is a point for each newest row of the latency table, in milliseconds, and no other."""
    latency = dense(LATENCY)
    points = of(latency_against_n(latency, dense(BOUNDARIES), 0.2), "point")
    newest = latency.filter("newest")
    assert {p["row_id"] for p in points} == set(newest["row_id"])
    assert len(points) == newest.height == 2 * len(GRID)
    by_id = {row["row_id"]: row for row in newest.to_dicts()}
    for point in points:
        assert point["latency_ms"] == pytest.approx(by_id[point["row_id"]]["latency_us"] / 1000)
        assert point["panel"] == f"b = {by_id[point['row_id']]['batch']}"


def test_the_bands_and_boundaries_of_the_latency_figure(dense: Reader) -> None:
    """Each panel has one band from T(1) to (1 + epsilon) T(1), and the boundary at that epsilon."""
    latency = dense(LATENCY)
    chart = latency_against_n(latency, dense(BOUNDARIES), 0.2)
    bands = {band["panel"]: band for band in of(chart, "band")}
    assert set(bands) == {"b = 1", "b = 2"}
    assert len(of(chart, "band")) == 2
    for band in bands.values():
        assert band["limit_ms"] == pytest.approx(1.2 * band["base_ms"])
        assert (band["n"], band["n2"]) == (GRID[0], GRID[-1])
    marks = of(chart, "boundary")
    found = dense(BOUNDARIES).filter("newest", pl.col("epsilon") == 0.2)
    assert {(m["row_id"], m["n_max"]) for m in marks} == set(found.select("row_id", "n_max").rows())


def test_the_points_of_the_boundary_figure(dense: Reader) -> None:
    """There is a point for each newest boundary at the tolerance, measured and published apart."""
    both = dense(BOUNDARIES, "cpu", "public")
    chart = nmax_against_batch(both, dense(PREDICTIONS, "cpu", "public"), 0.2)
    at = both.filter("newest", pl.col("epsilon") == 0.2)
    points = of(chart, "point")
    assert {(p["row_id"], p["n_max"]) for p in points} == set(at.select("row_id", "n_max").rows())
    assert len(points) == at.height == 2 + 6
    panels = {(p["panel"], p["origin"]) for p in points}
    assert panels == {("cpu (measured)", "measured"), ("h20 (published)", "published")}


def test_the_laws_of_the_boundary_figure(dense: Reader) -> None:
    """Each prediction is on a line, laws that say the same share one, and refusals have none."""
    laws = dense(PREDICTIONS, "cpu", "public")
    chart = nmax_against_batch(dense(BOUNDARIES, "cpu", "public"), laws, 0.2)
    lines = of(chart, "law")
    expected = laws.drop_nulls("n_max").select("platform", "basis", "batch").unique()
    assert len(lines) == expected.height == 2 * 2 + 6
    assert {line["law"] for line in lines} == {
        "idle compute = principle, datasheet phi and beta",
        "idle compute = principle, probed, beta by streaming",
        "idle compute = principle, probed, beta by weight traffic",
    }
    h20 = {line["batch"]: line["n_max"] for line in lines if line["panel"] == "h20 (published)"}
    assert h20 == {1: 37.0, 2: 18.5, 4: 9.25, 8: 4.625, 16: 2.3125, 32: 1.15625}


def test_the_cells_of_the_sensitivity_map(dense: Reader) -> None:
    """There is a cell for each newest boundary at each tolerance, and no other."""
    both = dense(BOUNDARIES, "cpu", "public")
    cells = rows(sensitivity_map(both))
    newest = both.filter("newest")
    assert {c["row_id"] for c in cells} == set(newest["row_id"])
    assert len(cells) == newest.height == (2 + 6) * len(TOLERANCES)


def wider(frame: pl.DataFrame, **changes: object) -> pl.DataFrame:
    """Return a frame followed by its rows once more, as those of another setting."""
    other = frame.with_columns(
        *(pl.lit(value, dtype=frame.schema[name]).alias(name) for name, value in changes.items()),
        pl.format("{}-other", "setting_key").alias("setting_key"),
        pl.format("{}-other", "row_id").alias("row_id"),
    )
    return pl.concat([frame, other])


def test_curves_that_differ_are_drawn_apart(dense: Reader) -> None:
    """Two settings of one batch size are two lines with a band each, not one that zigzags."""
    latency = wider(dense(LATENCY).filter("newest"), d_ff=9216)
    found = wider(dense(BOUNDARIES).filter("newest"), d_ff=9216)
    chart = latency_against_n(latency, found, 0.2)
    points = of(chart, "point")
    drawn = {(p["panel"], p.get("setting_key"), p["n"]) for p in points}
    assert len(drawn) == len(points) == 4 * len(GRID)
    assert len(of(chart, "band")) == 4


def test_laws_that_differ_are_drawn_apart(dense: Reader) -> None:
    """Predictions for two dtypes of one batch size are two lines, not one that zigzags."""
    laws = dense(PREDICTIONS, "cpu", "public")
    both = wider(laws, dtype="float16").with_columns(
        pl.when(pl.col("dtype") == "float16").then(pl.col("n_max") * 2).otherwise(pl.col("n_max"))
    )
    lines = of(nmax_against_batch(dense(BOUNDARIES, "cpu", "public"), both, 0.2), "law")
    assert len({(line["panel"], line["law"], line["batch"]) for line in lines}) == len(lines)


def test_cells_do_not_cover_each_other(dense: Reader) -> None:
    """Each cell of the sensitivity map has a place of its own, also for two settings of a batch."""
    cells = rows(sensitivity_map(wider(dense(BOUNDARIES).filter("newest"), d_ff=64)))
    places = {(c["panel"], c.get("setting"), c["batch"], c["epsilon"]) for c in cells}
    assert len(places) == len(cells) == 2 * 2 * len(TOLERANCES)


def test_a_law_is_named_once(dense: Reader) -> None:
    """Settings that share a prediction, as of two widths, do not repeat the law in its name."""
    laws = wider(dense(PREDICTIONS, "cpu", "public"), d_ff=64)
    lines = of(nmax_against_batch(dense(BOUNDARIES, "cpu", "public"), laws, 0.2), "law")
    assert all(line["law"].count("principle") == 1 for line in lines)


@pytest.mark.parametrize("name", ["latency", "nmax", "sensitivity"])
def test_a_figure_is_the_same_each_time(
    charts: dict[str, alt.FacetChart], dense: Reader, name: str
) -> None:
    """A figure of the same rows is the same specification each time."""
    latency, both = dense(LATENCY), dense(BOUNDARIES, "cpu", "public")
    laws = dense(PREDICTIONS, "cpu", "public")
    draw: dict[str, Callable[[], alt.FacetChart]] = {
        "latency": lambda: latency_against_n(latency, dense(BOUNDARIES), 0.2),
        "nmax": lambda: nmax_against_batch(both, laws, 0.2),
        "sensitivity": lambda: sensitivity_map(both),
    }
    assert json.dumps(draw[name]().to_dict()) == json.dumps(charts[name].to_dict())
