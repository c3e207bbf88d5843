"""The figure of N_max against a module's own variable: points, intervals and laws."""

import re
from pathlib import Path

import polars as pl
import pytest
from derive.tables.logs import TOLERANCES
from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.boundaries import nmax_against_own, sensitivity_map
from nearfree.show.figures.families import Rows
from nearfree.show.figures.stage import save, specification

from show.figures.marks import ATTENTION, DENSE, MOE, marks, wider


@pytest.mark.parametrize("module", [DENSE, MOE, ATTENTION], ids=lambda module: module.name)
def test_points_are_the_newest_boundaries(rows: Rows, module: ModuleKind) -> None:
    """Each newest boundary at the tolerance, measured or published, is a point."""
    own = rows.of(module.name)
    at = own.boundaries.filter("newest", pl.col("epsilon") == 0.2)
    points = marks(nmax_against_own(own.boundaries, own.predictions, 0.2, module), "point")
    first = [point for point in points if "from N" not in point["series"]]
    assert {(p["row_id"], p["own"], p["n_max"]) for p in first} == set(
        at.select("row_id", module.own, "n_max").rows()
    )
    assert len(first) == at.height
    assert {point["panel"].partition(":")[0] for point in points} == {
        "cpu (measured)",
        "h20 (published)",
    }


def test_variants_are_panels(moe: Rows) -> None:
    """Each routing and backend of each platform has a panel of its own."""
    points = marks(nmax_against_own(moe.boundaries, moe.predictions, 0.2, MOE), "point")
    panels = {point["panel"] for point in points}
    assert len(panels) == 4 + 4
    assert {"cpu (measured): skewed, torch_padded", "h20 (published): balanced, vllm_0_9_1"} <= (
        panels
    )


def test_a_reading_from_one_has_a_look_of_its_own(moe: Rows) -> None:
    """If the baseline is not 1, N_max from N = 1 is a second point with its own shape."""
    chart = nmax_against_own(moe.boundaries, moe.predictions, 0.2, MOE)
    second = [p for p in marks(chart, "point") if p["series"] == "measured, from N = 1"]
    at = moe.boundaries.filter("newest", pl.col("epsilon") == 0.2).drop_nulls("n_max_from_1")
    assert {(p["row_id"], p["n_max"], p["n_low"], p["n_high"]) for p in second} == set(
        at.select("row_id", "n_max_from_1", "n_low_from_1", "n_high_from_1").rows()
    )
    assert len(second) == at.height == 4


@pytest.mark.parametrize("origin", ["imported", "simulated"])
def test_other_origins_are_never_shown_as_measured(dense: Rows, origin: str) -> None:
    """Boundaries of another origin have their own panel, shape and legend entry."""
    boundaries = dense.boundaries.with_columns(
        pl.when(pl.col("origin") == "measured")
        .then(pl.lit(origin))
        .otherwise("origin")
        .alias("origin")
    )
    chart = nmax_against_own(boundaries, dense.predictions, 0.2, DENSE)
    points = marks(chart, "point")
    assert {point["series"] for point in points} == {origin, "published"}
    assert {point["panel"] for point in points} == {f"cpu ({origin})", "h20 (published)"}
    assert f"'{origin}'" in str(chart.to_dict()["spec"])


def test_the_end_of_a_grid_is_marked(moe: Rows) -> None:
    """A boundary at the last N of its grid has an arrow, since the true one may be larger."""
    points = marks(nmax_against_own(moe.boundaries, moe.predictions, 0.2, MOE), "point")
    at_end = {point["row_id"] for point in points if point["at_end"]}
    at = moe.boundaries.filter("newest", pl.col("epsilon") == 0.2, pl.col("next_n").is_null())
    assert at_end == set(at["row_id"])
    assert at_end


def test_laws_are_lines(dense: Rows) -> None:
    """Each prediction is on a line; predictors with equal values share one; refusals have none."""
    lines = marks(nmax_against_own(dense.boundaries, dense.predictions, 0.2, DENSE), "law")
    at = dense.predictions.filter(pl.col("epsilon") == 0.2)
    answered = at.drop_nulls("n_max").select("platform", "basis", "batch").unique()
    assert len(lines) == answered.height == 2 * 3 + 6
    assert {line["line"] for line in lines} == {
        "idle compute = principle = principle resolved, datasheet phi and beta",
        "idle compute = principle = principle resolved, probed, beta by streaming",
        "idle compute = principle = principle resolved, probed, beta by weight traffic",
    }
    h20 = {line["own"]: line["n_max"] for line in lines if line["panel"] == "h20 (published)"}
    assert h20 == {1: 37.0, 2: 18.5, 4: 9.25, 8: 4.625, 16: 2.3125, 32: 1.15625}


def test_laws_that_part_somewhere_are_two_lines(dense: Rows) -> None:
    """Predictors that agree at some batch sizes only are two whole lines."""
    capped = (pl.col("predictor") == "principle") & (pl.col("n_max") > 10)
    parted = dense.predictions.with_columns(
        pl.when(capped).then(10.0).otherwise("n_max").alias("n_max")
    )
    lines = marks(nmax_against_own(dense.boundaries, parted, 0.2, DENSE), "law")
    h20 = [line for line in lines if line["panel"] == "h20 (published)"]
    assert {line["law"] for line in h20} == {"idle compute = principle resolved", "principle"}
    assert len(h20) == 12
    assert max(line["n_max"] for line in h20 if line["law"] == "principle") == 10.0


def test_laws_of_other_settings_are_drawn_apart(dense: Rows) -> None:
    """Predictions for two widths at one batch size are in two panels."""
    laws = wider(dense.predictions, d_ff=64).with_columns(
        pl.when(pl.col("d_ff") == 64).then(2 * pl.col("n_max")).otherwise("n_max").alias("n_max")
    )
    boundaries = wider(dense.boundaries.filter("newest"), d_ff=64)
    lines = marks(nmax_against_own(boundaries, laws, 0.2, DENSE), "law")
    places = {(line["panel"], line["line"], line["own"]) for line in lines}
    assert len(places) == len(lines) == 2 * (2 * 3 + 6)


def test_without_predictions_there_is_no_legend_of_them(dense: Rows) -> None:
    """If every predictor refuses, the figure shows boundaries only."""
    chart = nmax_against_own(dense.boundaries, dense.predictions.clear(), 0.2, DENSE)
    assert not marks(chart, "law")
    assert "prediction" not in str(chart.to_dict()["spec"])


def test_a_law_without_facts_says_so(dense: Rows) -> None:
    """A predictor that needs no facts of the hardware has a line, too."""
    bare = dense.predictions.with_columns(
        pl.lit(None, dtype=pl.String).alias("basis"), pl.lit(64.0).alias("n_max")
    ).unique(["setting_key", "predictor", "epsilon"], keep="first", maintain_order=True)
    lines = marks(nmax_against_own(dense.boundaries, bare, 0.2, DENSE), "law")
    assert {line["line"] for line in lines} == {
        "idle compute = principle = principle resolved = work model, no facts of the platform"
    }


def test_no_name_of_a_line_is_cut(moe: Rows) -> None:
    """The legend shows each predictor's whole name in its line's colour."""
    spec = nmax_against_own(moe.boundaries, moe.predictions, 0.2, MOE).to_dict()
    assert spec["config"]["legend"]["labelLimit"] == 0
    assert spec["config"]["legend"]["symbolOpacity"] == 1


@pytest.mark.parametrize("module", [DENSE, MOE, ATTENTION], ids=lambda module: module.name)
def test_cells_are_the_newest_boundaries(rows: Rows, module: ModuleKind) -> None:
    """Each newest boundary at each tolerance has one cell."""
    boundaries = rows.of(module.name).boundaries
    cells = [c for c in marks(sensitivity_map(boundaries, module)) if "from N" not in c["panel"]]
    newest = boundaries.filter("newest")
    assert {(c["row_id"], c["own"], c["epsilon"], c["n_max"]) for c in cells} == set(
        newest.select("row_id", module.own, "epsilon", "n_max").rows()
    )
    assert len(cells) == newest.height


def test_a_cell_at_the_end_of_its_grid_says_so(moe: Rows) -> None:
    """An N_max at the end of its grid is shown as at least that; from N = 1 it is unknown."""
    cells = marks(sensitivity_map(moe.boundaries, MOE))
    ends = moe.boundaries.filter("newest", pl.col("next_n").is_null())["row_id"].to_list()
    first = [cell for cell in cells if "from N" not in cell["panel"]]
    assert {cell["row_id"] for cell in first if cell["label"].startswith("≥ ")} == {*ends}
    assert 0 < len(ends) < len(first)
    for cell in cells:
        assert cell["label"].removeprefix("≥ ") == str(cell["n_max"])
        assert cell in first or cell["label"].isdigit()


def test_numbers_in_cells_can_be_read(tmp_path: Path, moe: Rows) -> None:
    """Text on each cell colour has WCAG's contrast of level AA."""
    spread = moe.boundaries.with_columns(
        (2 ** (pl.int_range(pl.len()) % 33 / 4)).cast(pl.Int64).alias("n_max")
    )
    save(specification(sensitivity_map(spread, MOE)), tmp_path / "map")
    drawn = (tmp_path / "map.svg").read_text(encoding="utf-8")
    cells = re.findall(r'aria-roledescription="rect mark"[^>]*fill="rgb\((.*?)\)"', drawn)
    texts = re.findall(r'aria-roledescription="text mark"[^>]*fill="(black|white)"', drawn)
    assert len(cells) == len(texts) > 20
    assert {*texts} == {"black", "white"}
    for cell, text in zip(cells, texts, strict=True):
        parts = (int(part) / 255 for part in cell.split(","))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        shade = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert (1.05 / (shade + 0.05) if text == "white" else (shade + 0.05) / 0.05) >= 4.5


@pytest.mark.parametrize("module", [DENSE, MOE, ATTENTION], ids=lambda module: module.name)
def test_cells_do_not_cover_each_other(rows: Rows, module: ModuleKind) -> None:
    """Each cell has its own place, also if two settings have equal values."""
    boundaries = wider(rows.of(module.name).boundaries.filter("newest"), dtype="float16")
    cells = marks(sensitivity_map(boundaries, module))
    places = {(c["panel"], c["own"], c["epsilon"]) for c in cells}
    assert len(places) == len(cells)


def test_readings_from_one_are_panels_of_their_own(moe: Rows) -> None:
    """If the baseline is not 1, readings from N = 1 have their own panels."""
    cells = marks(sensitivity_map(moe.boundaries, MOE))
    second = [cell for cell in cells if cell["panel"].endswith(": from N = 1")]
    at = moe.boundaries.filter("newest").drop_nulls("n_max_from_1")
    assert {(c["row_id"], c["n_max"]) for c in second} == set(
        at.select("row_id", "n_max_from_1").rows()
    )
    assert len(second) == 2 * 2 * len(TOLERANCES)
    assert at.select(pl.col("routing").unique()).item() == "balanced"
