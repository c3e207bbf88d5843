"""N_max of whole models: measured and predicted side by side."""

from collections import defaultdict
from typing import Any

import altair as alt
import polars as pl
import pytest
from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.model_boundaries import DENSE, MOE, nmax_of_models
from nearfree.show.figures.models import ModelRows
from nearfree.show.figures.panels import with_model_panels

from show.figures.marks import marks, wider

Mark = dict[str, Any]
BOTH = pytest.mark.parametrize("module", [DENSE, MOE], ids=lambda module: module.own)


def of(models: ModelRows, module: ModuleKind) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the boundaries that a figure shows, and what is predicted of models."""
    dense = pl.col("top_k").is_null()
    at = models.boundaries.filter(dense if module is DENSE else ~dense, epsilon=0.2)
    return at, models.composition.filter(epsilon=0.2)


def drawn(models: ModelRows, module: ModuleKind) -> alt.FacetChart:
    """Return the figure over one variable."""
    return nmax_of_models(*of(models, module), 0.2, module)


def points(models: ModelRows, module: ModuleKind) -> list[Mark]:
    """Return its points."""
    return marks(drawn(models, module), "point")


@BOTH
def test_every_boundary_is_a_point_with_its_interval(models: ModelRows, module: ModuleKind) -> None:
    """Each measured N_max is drawn once, with both ends of its interval."""
    at, _ = of(models, module)
    shown = [mark for mark in points(models, module) if mark["series"] == "measured"]
    expected = at.select("row_id", "n_max", "n_low", "n_high").rows()
    assert sorted((m["row_id"], m["y"], m["low"], m["high"]) for m in shown) == sorted(expected)


@BOTH
def test_every_answer_is_a_point_and_a_refusal_is_none(
    models: ModelRows, module: ModuleKind
) -> None:
    """Each prediction of a shown setting is drawn once; what was refused is not."""
    at, said = of(models, module)
    asked = said.filter(pl.col("setting_key").is_in(at["setting_key"].implode()))
    answered = asked.drop_nulls("predicted")
    assert answered.height < asked.height
    shown = [mark for mark in points(models, module) if mark["series"] != "measured"]
    expected = answered.select("row_id", "predicted", "predictor").rows()
    assert sorted((m["row_id"], m["y"], m["series"]) for m in shown) == sorted(expected)


@BOTH
def test_series_of_one_setting_stand_side_by_side(models: ModelRows, module: ModuleKind) -> None:
    """No two series of a value share a place, and all of them stay on the value's own band."""
    chart = drawn(models, module)
    bands = {(band["panel"], band["x"]): band["x2"] for band in marks(chart, "band")}
    places = defaultdict(set)
    for mark in marks(chart, "point"):
        places[mark["panel"], mark["own"]].add((mark["series"], mark["x"]))
    assert len(bands) == len(places)
    for (panel, own), each in places.items():
        assert len({x for _, x in each}) == len({series for series, _ in each}) == len(each)
        (band,) = [(x, x2) for (name, x), x2 in bands.items() if name == panel and x < own < x2]
        assert all(band[0] < x < band[1] for _, x in each)


@BOTH
def test_the_band_is_where_a_prediction_is_a_hit(models: ModelRows, module: ModuleKind) -> None:
    """A prediction lies on its band, below its upper end, where the table calls it a hit."""
    chart = drawn(models, module)
    bands = marks(chart, "band")
    for mark in marks(chart, "point"):
        (band,) = [
            b for b in bands if b["panel"] == mark["panel"] and b["x"] < mark["own"] < b["x2"]
        ]
        if mark["series"] != "measured":
            assert mark["hit"] == (band["low"] <= mark["y"] < band["high"])


def test_a_grid_that_ends_has_an_arrow(models: ModelRows) -> None:
    """Where N_max is the last N of the grid the band is open, and the mark tells so."""
    at, said = of(models, DENSE)
    ended = at.with_columns(pl.lit(None, dtype=pl.Int64).alias("next_n"))
    shown = marks(nmax_of_models(ended, said, 0.2, DENSE))
    assert all(m["at_end"] for m in shown if m.get("series") == "measured")
    bands = [m for m in shown if m["kind"] == "band"]
    assert all(b["high"] > max(m["y"] for m in shown if m["kind"] == "point") for b in bands)


def test_a_panel_is_of_a_model_routing_and_context(models: ModelRows) -> None:
    """A panel names all three, and shows the values of the own variable inside it."""
    at = with_model_panels(of(models, MOE)[0], MOE)
    told = at.group_by("model", "routing", "context").agg(pl.col("panel").unique())
    for model, routing, context, panels in told.rows():
        assert panels == [f"{model}: {routing}, L = {context}"]


def test_a_panel_says_what_else_differs(models: ModelRows) -> None:
    """Settings of one model that differ in more are not drawn over each other."""
    at, _ = of(models, DENSE)
    for name, old, new in (("mask", "causal", "block"), ("model_digest", "0123456789ab", "f" * 12)):
        panels = with_model_panels(wider(at, **{name: new}), DENSE)["panel"]
        assert {panel.rpartition(", ")[2] for panel in panels} == {old, new}


def test_without_predictions_the_measured_ones_are_drawn(models: ModelRows) -> None:
    """A model of which nothing is predicted is shown by what was measured."""
    at, said = of(models, DENSE)
    shown = marks(nmax_of_models(at, said.clear(), 0.2, DENSE), "point")
    assert {mark["series"] for mark in shown} == {"measured"}
    assert len(shown) == at.height
