"""The figure of padded steps: rows and T(N) of the table, and no figure without it."""

from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
from derive.sheeted import ANSWERER, CONFIG, sheet_table
from nearfree.config.files import Config
from nearfree.derive.outlook.outlook import FORECAST, outlook
from nearfree.show.figures.graphs import ROWS, TIME, graph_drawings
from nearfree.show.figures.stage import specification


@cache
def forecast() -> pl.DataFrame:
    """Return `forecast` of the shipped deployments with graphs."""
    entries = {name: each for name, each in CONFIG.deployments.items() if each.graphs != "none"}
    some = SimpleNamespace(
        deployments=entries, site=CONFIG.site, platforms=CONFIG.platforms, folder=CONFIG.folder,
        releases=CONFIG.releases,
    )  # fmt: skip
    found = outlook(cast("Config", some), ANSWERER, sheet_table()).forecast
    return FORECAST.build(found, found["from_ids"].explode().unique().to_list())


def points(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the data of the one figure."""
    ((_, chart),) = graph_drawings(rows)
    (data,) = specification(chart)["datasets"].values()
    return list(data)


def test_every_step_has_what_padding_adds() -> None:
    """Each step has a mark for its rows and one for T(N), for both engines."""
    rows = forecast()
    steps = rows.group_by("deployment", "batch", "n").agg(
        pl.col("latency_us").sum(), pl.col("tokens", "rows", "unpadded_us").first()
    )
    added = {
        ROWS: (steps["rows"] / steps["tokens"] - 1).sort().to_list(),
        TIME: (steps["latency_us"] / steps["unpadded_us"] - 1).sort().to_list(),
    }
    drawn = points(rows)
    for name, expected in added.items():
        values = sorted(mark["added"] for mark in drawn if mark["of"] == name)
        assert [round(value, 9) for value in values] == [round(value, 9) for value in expected]
    assert any(mark["added"] > 0.1 for mark in drawn if mark["of"] == ROWS)
    engines = {mark["panel"].split(" ")[0] for mark in drawn}
    assert engines == {"vllm", "sglang"}


def test_each_deployment_has_a_panel_of_its_own() -> None:
    """Steps of another context, routing or kernel are not in one line."""
    rows = forecast()
    other = {
        "L = 777": pl.lit(777, rows.schema["context"]).alias("context"),
        "skewed": pl.lit("skewed").alias("routing"),
        "another 1.0": pl.lit("another 1.0").alias("attention"),
    }
    for said, changed in other.items():
        both = pl.concat([rows, rows.with_columns(changed, pl.col("latency_us") * 2)])
        drawn = points(both)
        places = [(mark["panel"], mark["of"], mark["n"]) for mark in drawn]
        assert len({*places}) == len(places) == 2 * len(points(rows))
        assert any(said in panel for panel, _, _ in places)


def test_the_table_says_whose_graphs() -> None:
    """Rows are at least the tokens; a step above the largest graph has its own rows."""
    rows = forecast()
    assert (rows["rows"] >= rows["tokens"]).all()
    assert (
        rows.filter(n=512, graphs="vllm 0.33.0")
        .select((pl.col("rows") == pl.col("tokens")).all())
        .item()
    )


def test_without_graphs_there_is_no_figure() -> None:
    """Deployments without graphs give no figure."""
    none = forecast().with_columns(pl.lit(None, pl.String).alias("graphs"))
    assert list(graph_drawings(none)) == []
