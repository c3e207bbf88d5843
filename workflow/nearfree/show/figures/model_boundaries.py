"""N_max of whole models, measured and predicted (paper, figures of models)."""

import altair as alt
import polars as pl
from msgspec import structs

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.model import MODEL
from nearfree.show.figures.panels import in_rows, with_model_panels
from nearfree.show.figures.theme import (
    BAND,
    PREDICTORS,
    SPACED,
    Look,
    looks,
    order_of,
    styled,
    tooltip,
)

CURVE = ["platform", "stream", "setting_key"]
"""The columns that name a measured setting."""
DENSE = structs.replace(MODEL, own="batch")
MOE = structs.replace(MODEL, own="top_k")
"""The variable that figures of dense models and of MoE models are over."""
_MEASURED = "measured"
_HALF = 0.44
"""Half the width of the marks of one value, in octaves."""
_ROOM = 0.6
"""The margin left of the first value and right of the last, in octaves."""
_SHAPES = {
    _MEASURED: "circle",
    "idle_compute": "diamond",
    "principle": "triangle-up",
    "principle_resolved": "square",
    "work_model": "triangle-down",
    "modules_sum": "cross",
    "modules_minimum": "triangle-right",
    "principle_counted": "triangle-left",
}
_FEW = 24
"""Marks side by side in a panel that can be large."""


def nmax_of_models(
    boundaries: pl.DataFrame, composition: pl.DataFrame, epsilon: float, module: ModuleKind
) -> alt.FacetChart:
    """Return measured N_max of models and the predictions of it, a panel a model, routing and L.

    Parameters
    ----------
    boundaries
        Newest measured rows of that table of models at a tolerance.
    composition
        Rows of that table at the same tolerance; what is refused is not drawn.
    epsilon
        That tolerance.
    module
        The variable inside a panel: DENSE or MOE.
    """
    at = with_model_panels(boundaries, module).with_columns(pl.col(module.own).alias("own"))
    predictions = composition.drop_nulls("predicted").join(
        at.select(*CURVE, "panel", "own"), on=CURVE
    )
    marks = pl.concat([_measured(at), _predicted(predictions)], how="diagonal_relaxed")
    reached = [*marks["y"], *marks["high"].drop_nulls(), *at["next_n"].drop_nulls()]
    low, top = min(marks["y"]) / 1.6, 1.6 * max(reached)
    series = [_MEASURED, *order_of(predictions["predictor"])]
    x = alt.X(
        "x:Q",
        title=f"{module.variable} {module.letter}",
        scale=alt.Scale(type="log", base=2, nice=False, domain=_around(at["own"])),
        axis=alt.Axis(values=sorted(at["own"].unique()), format="d", grid=False),
    )
    scale = alt.Scale(type="log", base=2, domain=[low, top], nice=False)
    ticks = [2**k for k in range(16) if low < 2**k < top]
    axis = alt.Axis(values=ticks, format="~g", labelOverlap="greedy")
    y = alt.Y("y:Q", title="N_max, positions", scale=scale, axis=axis)
    size = 62 if at["own"].n_unique() * len(series) <= _FEW else 34
    look = _look(series)
    colour = look["color"]
    chart = alt.Chart()
    points = chart.transform_filter("datum.kind == 'point'")
    layers = alt.layer(
        chart.transform_filter("datum.kind == 'band'")
        .mark_rect(color=BAND, opacity=0.2)
        .encode(x=x, x2="x2:Q", y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        points.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.8)
        .encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour),
        points.mark_point(size=size, filled=True, opacity=1, strokeWidth=1.5).encode(
            x=x, y=y, tooltip=_tooltip(module), **look
        ),
        points.transform_filter("datum.at_end")
        .mark_text(text="\u2191", dy=-13, fontSize=13)
        .encode(x=x, y=y),
        data=pl.concat([_side_by_side(marks, series), _bands(at, top)], how="diagonal_relaxed"),
    )
    return styled(
        in_rows(layers, at),
        f"N_max of whole models on {at['platform'][0]}, tolerance {epsilon:.0%}",
        "Bars: intervals, 95 % of what was measured. Green: from N_max to the next N of the grid, "
        "where a prediction is a hit. Arrow: the grid ends there.",
    )


def _around(values: pl.Series) -> list[float]:
    """Return a domain that holds the marks of each value."""
    return [min(values) / 2**_ROOM, max(values) * 2**_ROOM]


def _measured(at: pl.DataFrame) -> pl.DataFrame:
    return at.select(
        *("panel", "own", "verdict", "row_id"),
        pl.col("n_max").cast(pl.Float64).alias("y"),
        pl.col("n_low").cast(pl.Float64).alias("low"),
        pl.col("n_high").cast(pl.Float64).alias("high"),
        pl.col("next_n").is_null().alias("at_end"),
        pl.lit(_MEASURED).alias("series"),
        pl.lit("point").alias("kind"),
    )


def _predicted(predictions: pl.DataFrame) -> pl.DataFrame:
    return predictions.select(
        *("panel", "own", "basis", "limiter", "hit", "row_id", "low", "high"),
        pl.col("predicted").alias("y"),
        pl.col("predictor").alias("series"),
        pl.lit("point").alias("kind"),
    ).sort("panel", "own", "series", "basis")


def _side_by_side(marks: pl.DataFrame, series: list[str]) -> pl.DataFrame:
    """Return marks with `x`: those of one setting side by side, in the order of their series."""
    places = {name: (place + 0.5) / len(series) - 0.5 for place, name in enumerate(series)}
    octaves = 1.8 * _HALF * pl.col("series").replace_strict(places, return_dtype=pl.Float64)
    return marks.with_columns((pl.col("own") * 2**octaves).alias("x"))


def _bands(at: pl.DataFrame, top: float) -> pl.DataFrame:
    return at.select(
        "panel",
        (pl.col("own") / 2**_HALF).alias("x"),
        (pl.col("own") * 2**_HALF).alias("x2"),
        pl.col("n_max").cast(pl.Float64).alias("low"),
        pl.col("next_n").cast(pl.Float64).fill_null(top).alias("high"),
        pl.lit("band").alias("kind"),
    )


def _look(series: list[str]) -> Look:
    """Return colour and shape of the measured series and of the predictors, under one legend."""
    known = {name: (PREDICTORS.get(name, "black"), _SHAPES.get(name, "stroke")) for name in series}
    channels = {"color": alt.Color, "shape": alt.Shape}
    return looks(channels, "series:N", known, title=None, columns=4, labelExpr=SPACED)


def _tooltip(module: ModuleKind) -> list[alt.Tooltip]:
    return tooltip(
        ("own:O", module.letter),
        ("series:N", "by"),
        ("basis:N", "facts"),
        ("y:Q", "N_max", ".3~f"),
        "verdict:N",
        "limiter:N",
        "hit:N",
    )
