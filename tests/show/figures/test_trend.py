"""The figure of `trend`: every GPU with a year is there, with its name and its numbers."""

import math
import re
from itertools import combinations
from pathlib import Path

import polars as pl
import pytest
from derive.sheeted import ANSWERER, SHEETS, sheet_table
from nearfree.derive.outlook.trend import TREND, trend
from nearfree.show.figures.stage import save, specification
from nearfree.show.figures.trend import trend_drawings, trend_over_years

from show.figures.marks import marks

BOUNDARY = "dense boundary rho s / 2 b, b = {}, positions N"
WIDEST, LINE = 5.9, 10.0
"""Pixels of a character and of a line of a label, in a wide font."""


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    """Return the table of all datasheets."""
    table = sheet_table()
    return TREND.build(trend(SHEETS, table, ANSWERER), set(table["row_id"]))


def dense(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the dense boundary."""
    return rows.filter(term="rho s / 2 b")


def test_every_gpu_is_a_point_at_its_year(rows: pl.DataFrame) -> None:
    """Each boundary is a point at its year, in the panel of its batch."""
    drawn = {(p["panel"], p["platform"], p["series"], p["year"], p["y"])
             for p in marks(trend_over_years(rows), "gpu")}  # fmt: skip
    for row in dense(rows).to_dicts():
        panel = BOUNDARY.format(row["batch"])
        key = (row["platform"], row["dtype"], row["year"])
        assert (panel, *key, row["n_max"]) in drawn
        assert any(mark[1:] == (*key, row["balance_flop_per_byte"]) for mark in drawn)
    assert len(drawn) == dense(rows).height * 3 // 2


def test_every_gpu_is_named_or_counted_once_a_panel(rows: pl.DataFrame) -> None:
    """Labels of near points are joined; names beyond two are counted, and none is lost."""
    labels = marks(trend_over_years(rows), "label")
    panels = {label["panel"] for label in labels}
    every = {name.replace("_", " ") for name in dense(rows)["platform"].unique()}
    assert len(panels) == 3
    for panel in panels:
        texts = [label["label"].partition(" +") for label in labels if label["panel"] == panel]
        names = [name for text, *_ in texts for name in text.split(", ")]
        assert len(names) == len(set(names))
        assert set(names) <= every
        assert len(names) + sum(int(more or 0) for *_, more in texts) == len(every)
        assert max(text.count(", ") for text, *_ in texts) == 1
    assert len(labels) < len(panels) * len(every)


def test_no_name_reaches_another_one(rows: pl.DataFrame) -> None:
    """Labels overlap neither the next year nor the label below."""
    chart = trend_over_years(rows)
    spec = chart.to_dict()["spec"]
    x, y = (spec["layer"][-1]["encoding"][name]["scale"]["domain"] for name in ("x", "y"))
    labels = marks(chart, "label")
    for label in labels:
        assert 10 + WIDEST * len(label["label"]) < spec["width"] / (x[1] - x[0])
    octave = spec["height"] / math.log2(y[1] / y[0])
    for one, other in combinations(labels, 2):
        if (one["panel"], one["x"]) == (other["panel"], other["x"]):
            assert abs(math.log2(one["y"] / other["y"])) * octave > LINE


def test_tiles_stand_beside_the_boundary(rows: pl.DataFrame) -> None:
    """In panels of N, M_attn is a line for the paper and points for releases."""
    chart = trend_over_years(rows)
    boundary = {BOUNDARY.format(batch) for batch in (1, 8)}
    assert {(m["panel"], m["y"]) for m in marks(chart, "paper")} == {(p, 64) for p in boundary}
    resolved = rows.filter(pl.col("reference") != "paper").drop_nulls("n_max")
    drawn = {(m["panel"], m["series"], m["group"], m["year"], m["y"])
             for m in marks(chart, "tile")}  # fmt: skip
    assert drawn == {
        (BOUNDARY.format(r["batch"]), r["reference"], f"g = {r['query_group']}", r["year"],
         r["n_max"])
        for r in resolved.to_dicts()
    }  # fmt: skip


def test_a_platform_without_a_year_is_left_out_and_said(rows: pl.DataFrame) -> None:
    """A GPU without a known year has no point, and the subtitle names it."""
    year = pl.when(pl.col("platform") != "h20").then("year").alias("year")
    chart = trend_over_years(rows.with_columns(year))
    assert "h20" not in {point["platform"] for point in marks(chart, "gpu")}
    assert "left out: h20." in " ".join(chart.to_dict()["title"]["subtitle"])
    assert "left out" not in " ".join(trend_over_years(rows).to_dict()["title"]["subtitle"])


def test_each_panel_names_its_own_axis_and_holds_its_marks(rows: pl.DataFrame) -> None:
    """Each panel's axis has a title with its unit, and no mark lies on the edge."""
    chart = trend_over_years(rows)
    drawn = chart.to_dict()
    header = drawn["facet"]["row"]["header"]
    assert (header["labelOrient"], header["labelAngle"]) == ("left", -90)
    assert {p["panel"] for p in marks(chart, "gpu")} == {
        "balance point rho, FLOP/byte", *(BOUNDARY.format(batch) for batch in (1, 8))
    }  # fmt: skip
    low, high = next(layer["encoding"]["y"]["scale"]["domain"] for layer in drawn["spec"]["layer"])
    reached = [m["y"] for kind in ("gpu", "tile", "paper") for m in marks(chart, kind)]
    assert low < min(reached) <= max(reached) < high
    assert "g query heads to a key-value head" in " ".join(drawn["title"]["subtitle"])


def test_the_figure_lists_the_rows_that_it_shows(rows: pl.DataFrame) -> None:
    """Refusals have no mark and are not listed; without a year there is no figure."""
    ((figure, _),) = trend_drawings(rows)
    assert figure.name == "trend"
    assert set(figure.rows) == set(rows.drop_nulls("n_max")["row_id"])
    undated = rows.with_columns(pl.lit(None, pl.Int64).alias("year"))
    assert not list(trend_drawings(undated))


def test_without_rules_the_drawing_still_has_a_size(rows: pl.DataFrame, tmp_path: Path) -> None:
    """If no release resolves M_attn, its legend is left out, so that the drawing has a size."""
    paper = rows.filter(pl.col("reference") == "paper", pl.col("n_max").is_not_null())
    save(specification(trend_over_years(paper)), tmp_path / "trend")
    svg = (tmp_path / "trend.svg").read_text()
    width = re.search(r' width="([^"]+)"', svg)
    assert width
    assert 200 < float(width[1]) < 2000
    assert "e+308" not in svg
