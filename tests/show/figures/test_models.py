"""N_max of whole models: measured and predicted side by side."""

from collections import defaultdict
from typing import Any

import altair as alt
import polars as pl
import pytest
from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.listing import MODELS, Frames
from nearfree.show.figures.models import (
    DENSE,
    MOE,
    limiter_map,
    limiters,
    model_drawings,
    nmax_of_models,
)
from nearfree.show.figures.panels import with_model_panels

from show.figures.marks import again, marks, wider

pytestmark = pytest.mark.slow

Mark = dict[str, Any]
BOTH = pytest.mark.parametrize("module", [DENSE, MOE], ids=lambda module: module.own)


def of(models: Frames, module: ModuleKind) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the boundaries that a figure shows, and the predictions of models."""
    dense = pl.col("top_k").is_null()
    at = models["boundaries"].filter(dense if module is DENSE else ~dense, epsilon=0.2)
    return at, models["composition"].filter(epsilon=0.2)


def drawn(models: Frames, module: ModuleKind) -> alt.FacetChart:
    """Return the figure over one variable."""
    return nmax_of_models(*of(models, module), 0.2, module)


def points(models: Frames, module: ModuleKind) -> list[Mark]:
    """Return its points."""
    return marks(drawn(models, module), "point")


@BOTH
def test_every_boundary_is_a_point_with_its_interval(models: Frames, module: ModuleKind) -> None:
    """Each measured N_max is one point with both ends of its interval."""
    at, _ = of(models, module)
    shown = [mark for mark in points(models, module) if mark["series"] == "measured"]
    expected = at.select("row_id", "n_max", "n_low", "n_high").rows()
    assert sorted((m["row_id"], m["y"], m["low"], m["high"]) for m in shown) == sorted(expected)


@BOTH
def test_every_answer_is_a_point_and_a_refusal_is_none(models: Frames, module: ModuleKind) -> None:
    """Each prediction of a shown setting is one point; a refusal has none."""
    at, predictions = of(models, module)
    asked = predictions.filter(pl.col("setting_key").is_in(at["setting_key"].implode()))
    answered = asked.drop_nulls("predicted")
    assert answered.height < asked.height
    shown = [mark for mark in points(models, module) if mark["series"] != "measured"]
    expected = answered.select("row_id", "predicted", "predictor").rows()
    assert sorted((m["row_id"], m["y"], m["series"]) for m in shown) == sorted(expected)


@BOTH
def test_series_of_one_setting_stand_side_by_side(models: Frames, module: ModuleKind) -> None:
    """Series of one value have different places, all within the value's band."""
    chart = drawn(models, module)
    bands = {(band["panel"], band["x"]): band["x2"] for band in marks(chart, "band")}
    places = defaultdict(set)
    for mark in marks(chart, "point"):
        places[mark["panel"], mark["own"]].add((mark["series"], mark["x"]))
    assert len(bands) == len(places)
    for (panel, own), place in places.items():
        assert len({x for _, x in place}) == len({series for series, _ in place}) == len(place)
        (band,) = [(x, x2) for (name, x), x2 in bands.items() if name == panel and x < own < x2]
        assert all(band[0] < x < band[1] for _, x in place)


@BOTH
def test_the_band_is_where_a_prediction_is_a_hit(models: Frames, module: ModuleKind) -> None:
    """A prediction is inside its band if the table calls it a hit."""
    chart = drawn(models, module)
    bands = marks(chart, "band")
    for mark in marks(chart, "point"):
        (band,) = [
            b for b in bands if b["panel"] == mark["panel"] and b["x"] < mark["own"] < b["x2"]
        ]
        if mark["series"] != "measured":
            assert mark["hit"] == (band["low"] <= mark["y"] < band["high"])


def test_a_grid_that_ends_has_an_arrow(models: Frames) -> None:
    """If N_max is the last N of the grid, the band is open and the mark says so."""
    at, predictions = of(models, DENSE)
    ended = at.with_columns(pl.lit(None, dtype=pl.Int64).alias("next_n"))
    shown = marks(nmax_of_models(ended, predictions, 0.2, DENSE))
    assert all(m["at_end"] for m in shown if m.get("series") == "measured")
    bands = [m for m in shown if m["kind"] == "band"]
    assert all(b["high"] > max(m["y"] for m in shown if m["kind"] == "point") for b in bands)


def test_a_panel_is_of_a_model_routing_and_context(models: Frames) -> None:
    """A panel names model, routing and context, over the remaining variable."""
    at = with_model_panels(of(models, MOE)[0], MOE)
    panels_of = at.group_by("model", "routing", "context").agg(pl.col("panel").unique())
    for model, routing, context, panels in panels_of.rows():
        assert panels == [f"{model}: {routing}, L = {context}"]


def test_a_panel_says_what_else_differs(models: Frames) -> None:
    """Settings of one model that differ otherwise are in different panels."""
    at, _ = of(models, DENSE)
    for name, old, new in (("mask", "causal", "block"), ("model_digest", "0123456789ab", "f" * 12)):
        panels = with_model_panels(wider(at, **{name: new}), DENSE)["panel"]
        assert {panel.rpartition(", ")[2] for panel in panels} == {old, new}


def test_without_predictions_the_measured_ones_are_drawn(models: Frames) -> None:
    """A model without predictions is drawn with its measured boundaries."""
    at, predictions = of(models, DENSE)
    shown = marks(nmax_of_models(at, predictions.clear(), 0.2, DENSE), "point")
    assert {mark["series"] for mark in shown} == {"measured"}
    assert len(shown) == at.height


NAMES = ("ling_2_0_mini_cpu", "llada_2_1_mini_cpu", "qwen3_8b_cpu", "wedlm_8b_cpu")


def names(rows: Frames) -> list[str]:
    """Return the names of some models' figures without their common prefix."""
    return [figure.name.removeprefix("model_") for figure, _ in model_drawings(rows, 0.2)]


def only(rows: Frames, model: str) -> Frames:
    """Return the rows of one model."""
    return {name: frame.filter(model=model) for name, frame in rows.items()}


def test_every_model_has_its_figures(models: Frames) -> None:
    """Dense and MoE models have separate figures of N_max; each has latency and shares."""
    figure_names = [
        f"{what}_{name}" for name in NAMES for what in ("latency_against_n", "time_shares")
    ]
    assert names(models) == ["nmax_against_batch", "nmax_against_top_k", "limiters", *figure_names]


def test_figures_of_models_go_to_their_own_part(models: Frames) -> None:
    """Figures of models have their own section in the report and their own file names."""
    figures = [figure for figure, _ in model_drawings(models, 0.2)]
    assert {figure.about for figure in figures} == {MODELS}
    assert all(figure.name.startswith("model_") and figure.caption for figure in figures)


def test_a_figure_lists_the_rows_behind_its_marks(models: Frames) -> None:
    """A figure lists each row of its marks once, and no other."""
    for figure, chart in model_drawings(models, 0.2):
        drawn = {mark["row_id"] for mark in marks(chart)} - {None}
        assert set(figure.rows) == drawn, figure.name
        assert len(figure.rows) == len(drawn)


def test_without_models_nothing_is_drawn(models: Frames) -> None:
    """Tables without models give no figure."""
    empty = {name: frame.clear() for name, frame in models.items()}
    assert not list(model_drawings(empty, 0.2))


def test_a_boundary_that_was_only_printed_is_not_drawn(models: Frames) -> None:
    """A model without measured latency has no figure."""
    assert not names({**models, "latency": models["latency"].clear()})


@pytest.mark.parametrize(
    ("table", "gone"),
    [("time_shares", {"time_shares_qwen3_8b_cpu"}), ("composition", {"limiters"})],
)
def test_what_was_not_made_is_not_drawn(models: Frames, table: str, gone: set[str]) -> None:
    """Without shares or predictions, the other figures are drawn."""
    whole = only(models, "qwen3_8b_cpu")
    less = {**whole, table: whole[table].clear()}
    assert set(names(whole)) - set(names(less)) == gone


def test_older_takes_are_left_out(models: Frames) -> None:
    """Rows of a take that a newer one replaced are in no figure."""
    older = {
        name: frame.with_columns(pl.lit(value=False).alias("newest"))
        for name, frame in models.items()
        if "newest" in frame.columns
    }
    assert not names({**models, **older})


def test_a_panel_a_setting(models: Frames) -> None:
    """Each curve has its own panel in the figures of latency and of shares."""
    for model in NAMES:
        mine = only(models, model)
        charts = {figure.name: chart for figure, chart in model_drawings(mine, 0.2)}
        asked = mine["latency"]["setting_key"].n_unique()
        for what, kind in (("latency_against_n", "point"), ("time_shares", "bar")):
            drawn = marks(charts[f"model_{what}_{model}"], kind)
            pairs = {(mark["setting_key"], mark["panel"]) for mark in drawn}
            assert len(pairs) == len({panel for _, panel in pairs}) == asked


def test_the_measured_limiter_is_told_once_a_setting(scored: pl.DataFrame) -> None:
    """Each setting has one cell of the measured limiter, for any number of predictors."""
    measured = limiters(scored).filter(who="measured")
    expected = scored.select("setting_key", "measured_limiter").unique()
    assert sorted(measured.select("setting_key", "limiter").rows()) == sorted(expected.rows())


def test_each_named_module_has_a_cell(scored: pl.DataFrame) -> None:
    """Each predictor that names a module has a cell; one that refuses has none."""
    cells = limiters(scored).filter(pl.col("who") != "measured")
    named = scored.drop_nulls("limiter")
    assert named.height < scored.height
    assert sorted(cells.select("row_id", "limiter").rows()) == sorted(
        named.select("row_id", "limiter").rows()
    )
    assert cells.select("setting_key", "who").is_unique().all()


def test_bases_are_told_where_there_are_several(scored: pl.DataFrame) -> None:
    """A predictor with two bases of facts has a column for each."""
    who = set(limiters(scored)["who"])
    assert {"principle_counted, probed stream", "principle_counted, probed gemm"} <= who
    assert {"idle_compute", "modules_sum", "modules_minimum"} <= who


def test_every_cell_is_drawn(scored: pl.DataFrame) -> None:
    """The map has one panel per model, with the measured column first."""
    named = limiters(scored)
    chart = limiter_map(named, 0.2)
    assert len(marks(chart)) == named.height
    spec = chart.to_dict()
    assert spec["facet"]["sort"] == sorted(set(scored["model"]))
    assert spec["spec"]["layer"][0]["encoding"]["x"]["sort"][0] == "measured"


def test_studies_of_one_model_stand_apart(scored: pl.DataFrame) -> None:
    """Two studies of one model have two panels, whose cells do not overlap."""
    named = limiters(again(scored))
    assert named.select("panel", "setting", "who").is_unique().all()
    assert named["panel"].n_unique() == 2 * scored["model"].n_unique()


def test_settings_stand_in_the_order_of_their_numbers(scored: pl.DataFrame) -> None:
    """Contexts increase downwards for every model."""
    order = limiter_map(limiters(scored), 0.2).to_dict()["spec"]["layer"][0]["encoding"]["y"][
        "sort"
    ]
    contexts = [int(text.removeprefix("L = ").partition(",")[0]) for text in order]
    assert contexts == sorted(contexts)
    assert len(set(contexts)) > 2
