"""Figures of engines: ratios with their band, marks where rules change the passes, time shares."""

from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from derive.tables.logs import make_tables, write_probe, write_study
from engine_takes import GRID, RELEASE, SETTING, write_engine, write_rules
from msgspec import structs
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.engine_steps import ENGINE_STEPS
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.log.names import Layout
from nearfree.show.figures.engines import (
    FEWER,
    MORE,
    OTHER,
    changes,
    engine_drawings,
    ratio_against_n,
)
from nearfree.show.figures.listing import ENGINES, Frames
from nearfree.show.figures.models import model_drawings
from once import made_once

from show.figures.marks import again, marks

SETTINGS = [
    structs.replace(SETTING, batch=batch, threads=threads, repack=repack)
    for batch, threads, repack in ((1, 1, True), (1, 2, True), (4, 1, True), (1, 1, False))
]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a root with four settings of an engine beside a study of a module."""

    def make(folder: Path) -> None:
        made = Layout(folder)
        write_probe(made)
        write_study(made)
        write_rules(made)
        write_engine(made, *SETTINGS)
        make_tables(made, "cpu")

    return Layout(made_once(tmp_path_factory, "engine_figures", make))


@pytest.fixture(scope="module")
def rows(layout: Layout) -> Frames:
    """Return the tables of that platform."""

    def of(table: Table) -> pl.DataFrame:
        return read_table(layout, "cpu", table)

    return {table.name: of(table) for table in (LATENCY, BOUNDARIES, TIME_SHARES, ENGINE_STEPS)}


@pytest.fixture(scope="module")
def drawn(rows: Frames) -> list[dict[str, object]]:
    """Return the marks of the engine's ratios."""
    of_engine = [
        frame.filter("newest", module="engine")
        for frame in (rows["latency"], rows["boundaries"].filter(epsilon=0.2), rows["engine_steps"])
    ]
    return marks(ratio_against_n(*of_engine, 0.2))


def of(drawn: list[dict[str, object]], kind: str, panel: str = "") -> list[dict[str, object]]:
    """Return the marks of a kind, in one panel where one is named."""
    return [
        mark for mark in drawn if mark["kind"] == kind and mark["panel"] in (panel or mark["panel"])
    ]


def test_a_platform_has_a_figure_of_ratios_and_one_of_shares(rows: Frames) -> None:
    """Each engine and model has both figures in the engines' section; modules have none."""
    figures = [figure for figure, _ in engine_drawings(rows, 0.2)]
    assert [figure.family for figure in figures] == ["ratio_against_n", "time_shares_against_n"]
    assert {figure.about for figure in figures} == {ENGINES}
    assert all("tiny" in figure.name and "llama_cpp" in figure.name for figure in figures)
    without = {**rows, "latency": rows["latency"].filter(pl.col("module") != "engine")}
    assert not list(engine_drawings(without, 0.2))


def test_a_panel_names_all_of_a_setting(drawn: list[dict[str, object]]) -> None:
    """A panel's title has release, file type, repacking, batch, context and threads."""
    names = {mark["panel"] for mark in of(drawn, "point")}
    assert names == {
        f"{RELEASE}, q8_0, {order}: b = {batch}, L = 64, threads = {threads}"
        for order, batch, threads in (
            ("repacked", 1, 1), ("repacked", 1, 2), ("repacked", 4, 1), ("not repacked", 1, 1)
        )
    }  # fmt: skip


def test_two_studies_of_one_setting_have_two_panels(rows: Frames) -> None:
    """Curves of two studies are in two panels, which name the study."""
    latency = again(rows["latency"].filter("newest", module="engine", batch=4))
    ends, steps = rows["boundaries"].clear(), rows["engine_steps"].clear()
    drawn = marks(ratio_against_n(latency, ends, steps, 0.2))
    assert len({mark["panel"] for mark in drawn}) == 2
    assert len(drawn) == 2 * len(GRID)


def test_points_are_ratios_with_their_intervals(
    rows: Frames, drawn: list[dict[str, object]]
) -> None:
    """Each row of the latency table is a point with its paired ratio and interval."""
    known = {row["row_id"]: row for row in rows["latency"].filter(module="engine").to_dicts()}
    points = of(drawn, "point")
    assert {point["row_id"] for point in points} == set(known)
    for point in points:
        row = known[point["row_id"]]
        assert point["ratio"] == row["ratio"]
        assert (point["low"], point["high"]) == (row["ratio_low"], row["ratio_high"])


def test_the_band_ends_at_the_tolerance(drawn: list[dict[str, object]]) -> None:
    """Each panel has one line at 1 + epsilon over its grid, and marks N_max."""
    ends = of(drawn, "boundary")
    assert len(ends) == len(SETTINGS)
    for end in ends:
        assert (end["one"], end["limit"]) == (1.0, 1.2)
        assert (end["n"], end["n2"]) == (GRID[0], GRID[-1])
        assert end["label"] == f"N_max = {end['n_max']}"


def test_a_boundary_at_the_end_of_the_grid_is_a_lower_end(rows: Frames) -> None:
    """If no N after N_max was measured, both figures show N_max as a lower bound."""
    ends = rows["boundaries"].with_columns(pl.lit(None, dtype=pl.Int64).alias("next_n"))
    charts = [chart for _, chart in engine_drawings({**rows, "boundaries": ends}, 0.2)]
    assert len(charts) == 2
    for chart in charts:
        labels = {mark["label"] for mark in marks(chart, "boundary")}
        assert labels
        assert all(label.startswith("N_max ≥ ") for label in labels)


def test_marks_stand_where_the_passes_change(drawn: list[dict[str, object]]) -> None:
    """With blocks of four rows a pass is added at N = 5, 9 and 13, or another kernel runs."""
    first = f"{RELEASE}, q8_0, repacked: b = 1, L = 64, threads = 1"
    blocks = [mark for mark in of(drawn, "step", first) if mark["type"] == "q8_0"]
    assert [mark["n"] for mark in blocks if mark["change"] == MORE] == [5, 9, 13]
    assert {mark["change"] for mark in blocks} == {MORE, OTHER}
    assert all(str(mark["place"]).startswith("ggml/src/kernels.c:") for mark in blocks)


def test_marks_of_each_type_have_a_line_below_the_curve(drawn: list[dict[str, object]]) -> None:
    """Each type's marks have their own height and name, outside the band."""
    heights = {mark["type"]: mark["height"] for mark in of(drawn, "type")}
    assert set(heights) == {"q4_1", "q8_0"}
    assert all(mark["height"] == heights[mark["type"]] for mark in of(drawn, "step"))
    lines = sorted(heights.values())
    assert all(high / low > 1.05 for low, high in pairwise([*lines, 1.0]))


def test_a_mark_is_a_change_between_two_positions(rows: Frames) -> None:
    """With four requests a mark stands for all changes between N and N + 1."""
    four = changes(rows["engine_steps"].filter(batch=4, type="q4_1")).sort("n")
    assert four["n"].to_list() == [*range(2, GRID[-1] + 1)]
    assert four.select("passes_before", "passes").rows()[0] == (4, 8)
    assert set(four["change"]) == {MORE}


def test_fewer_passes_are_told(rows: Frames) -> None:
    """A rule that batches rows shows fewer passes."""
    fewer = (
        rows["engine_steps"]
        .filter(batch=1, threads=1, type="q4_1", rows=4)
        .with_columns(pl.lit(1, dtype=pl.Int64).alias("passes"))
    )
    assert changes(fewer)["change"].unique().to_list() == [FEWER]


def test_without_rules_the_curve_stands_alone(rows: Frames) -> None:
    """Without a rule of the passes there are no marks, and the subtitle names none."""
    latency = rows["latency"].filter("newest", module="engine")
    refused = rows["engine_steps"].head(1).with_columns(pl.lit(None, dtype=pl.Int64).alias("rows"))
    chart = ratio_against_n(latency, rows["boundaries"].filter(epsilon=0.2), refused, 0.2)
    assert {mark["kind"] for mark in marks(chart)} == {"point", "boundary"}
    assert not any("rule" in line for line in chart.to_dict()["title"]["subtitle"])


def test_figures_of_models_hold_no_engine(rows: Frames) -> None:
    """An engine's forward is not in figures of models of the same name."""
    models = {**rows, "composition": COMPOSITION.build(COMPOSITION.frame([]), [])}
    ours = rows["latency"].filter(module="engine").with_columns(pl.lit("model").alias("module"))
    with_ours = {**models, "latency": pl.concat([rows["latency"], ours])}
    assert all("time_shares" not in figure.name for figure, _ in model_drawings(with_ours, 0.2))
