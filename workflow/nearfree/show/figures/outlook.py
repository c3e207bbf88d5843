"""N_max of whole models by every predictor of the table `lookup`, over batch and over context."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import altair as alt
import polars as pl

from nearfree.core.setting import FIELDS
from nearfree.derive.predict.forecast.forecast import headline
from nearfree.derive.predict.forecast.total import PREDICTOR
from nearfree.show.figures.families import Drawing
from nearfree.show.figures.outlook_modules import latency_by_module
from nearfree.show.figures.outlook_panels import (
    columns_of,
    figures_of,
    middle,
    under,
    with_condition,
)
from nearfree.show.figures.panels import in_rows
from nearfree.show.figures.theme import PREDICTORS, THEORY, Look, dressed, predictors

_APART = 0.1
"""How far, in octaves, predictors of one setting are moved apart sideways."""
_COLUMNS = (
    "panel", "predictor", "at", "x", "y", "low", "high", "end", "baseline", "limiting_module",
    "limiting_term", "row_id",
)  # fmt: skip


def outlook_drawings(
    lookup: pl.DataFrame, forecast: pl.DataFrame, epsilon: float
) -> Iterator[Drawing]:
    """Yield every figure of whole models; nothing where nothing was predicted.

    Parameters
    ----------
    lookup, forecast
        Rows of those tables; those of `lookup` that are `drawn` count.
    epsilon
        The tolerance that is shown.
    """
    lookup = lookup.filter("drawn")
    yield from boundary_over_batch(lookup, epsilon)
    yield from boundary_over_context(lookup, epsilon)
    yield from latency_by_module(lookup, forecast, epsilon)


def boundary_over_batch(lookup: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of N_max against batch, each panel at its middle context.

    One is from N = 1; one from the paper's baseline, where balanced routing has woken every
    expert, of the models that have such a baseline. More where there are too many panels.

    Parameters
    ----------
    lookup
        Rows of that table.
    epsilon
        The tolerance that is shown.
    """
    return _over(boundary_over_batch, "batch", "context", lookup, epsilon)


def boundary_over_context(lookup: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of N_max against context, each panel at its middle batch.

    Parameters
    ----------
    lookup
        Rows of that table.
    epsilon
        The tolerance that is shown.
    """
    return _over(boundary_over_context, "context", "batch", lookup, epsilon)


def _over(
    draws: Callable[..., Any], own: str, fixed: str, lookup: pl.DataFrame, epsilon: float
) -> Iterator[Drawing]:
    asked = with_condition(headline(lookup.filter(pl.col("epsilon") == epsilon)))
    at = asked.filter(pl.col(fixed) == middle(fixed))
    setting = ("condition", "batch", "context")
    paper = at.filter(
        pl.col("baseline") == pl.col("baseline").max().over(setting),
        (pl.col("baseline") > 1).any().over("condition"),
    )
    for rows, suffix, start in (
        (at.filter(baseline=1), "", "from N = 1"),
        (paper, "_paper_baseline", "from the paper's baseline (every expert awake)"),
    ):
        panels = rows.with_columns(under(pl.format("{} = {}", pl.lit(FIELDS[fixed].letter), fixed)))
        for part in figures_of(f"boundary_over_{own}{suffix}", panels, shown=_answered()):
            said = f"N_max against {own}, {start}"
            yield (
                part.figure(draws, said, part.shown),
                _chart(part.shown, own, epsilon, part.of(said)),
            )


def _answered() -> pl.Expr:
    return pl.col("n_max").is_not_null() | pl.col("unbounded")


def _chart(shown: pl.DataFrame, own: str, epsilon: float, title: str) -> alt.FacetChart:
    points, top, bottom = _points(shown, own)
    ticks = sorted(shown[own].unique())
    across: Look = {
        "title": f"{own} {FIELDS[own].letter}",
        "scale": alt.Scale(type="log", base=2, domain=[ticks[0] / 1.5, ticks[-1] * 1.5]),
        "axis": alt.Axis(values=ticks, format="~g", labelOverlap="greedy"),
    }
    x = alt.X("x:Q", **across)
    octaves = range(math.floor(math.log2(bottom)), math.ceil(math.log2(top)) + 1)
    scale = alt.Scale(type="log", base=2, domain=[bottom, top], nice=False)
    axis = alt.Axis(values=[2.0**k for k in octaves], format="~g", labelOverlap="greedy")
    title_y = "predicted N_max"
    y = alt.Y("y:Q", title=title_y, scale=scale, axis=axis)
    interval = {"x": x, "y": alt.Y("low:Q", scale=scale, title=title_y), "y2": "high:Q"}
    colour, chart = predictors(points["predictor"]), alt.Chart()
    banded, own_colour = chart.transform_filter("isValid(datum.low)"), PREDICTORS[PREDICTOR]
    layers = alt.layer(
        banded.mark_area(color=own_colour, opacity=0.2).encode(**interval),
        banded.mark_rule(color=own_colour, strokeWidth=1.5, opacity=0.5).encode(**interval),
        chart.mark_line(strokeWidth=1.5, opacity=0.8).encode(x=x, y=y, color=colour),
        chart.mark_line(color=THEORY, strokeDash=[2, 3], strokeWidth=1).encode(
            x=alt.X("at:Q", **across),
            y=alt.Y("baseline:Q", scale=scale, title=title_y),
        ),
        chart.mark_point(size=36, filled=True, opacity=0.9).encode(
            x=x,
            y=y,
            color=colour,
            shape=alt.Shape(
                "end:N",
                scale=alt.Scale(domain=["bounded", "open"], range=["circle", "triangle-up"]),
                legend=None,
            ),
            tooltip=[
                alt.Tooltip("predictor:N"),
                alt.Tooltip("y:Q", title="N_max", format=".2f"),
                alt.Tooltip("baseline:Q"),
                alt.Tooltip("limiting_module:N", title="stopped by"),
                alt.Tooltip("limiting_term:N", title="term"),
                alt.Tooltip("row_id:N", title="row"),
            ],
        ),
        data=points,
    )
    return dressed(
        in_rows(layers, points, columns_of(shown)),
        f"{title}, tolerance {epsilon:.0%}",
        "Predicted, not measured. Band: the work model's interval. Dotted: baseline N. "
        "Triangle: no bound up to there, at the top edge none.",
    )


def _points(shown: pl.DataFrame, own: str) -> tuple[pl.DataFrame, float, float]:
    """Return a mark for each answer, and the ends of the axis of N_max."""
    ends = [*shown["n_max"].drop_nulls(), *shown["high"].drop_nulls(), *shown["baseline"]]
    bottom = min(1.0, *ends, *shown["low"].drop_nulls()) / 2**0.25
    top = 2.0 * max(ends)
    order = {name: place for place, name in enumerate(PREDICTORS)}
    shift = pl.col("predictor").replace_strict(order, return_dtype=pl.Float64) - 1.5
    open_ended = pl.col("unbounded") | pl.col("censored")
    points = shown.with_columns(
        pl.col(own).alias("at"),
        (pl.col(own) * 2 ** (_APART * shift)).alias("x"),
        pl.when("unbounded").then(top).otherwise("n_max").alias("y"),
        pl.when(pl.col("low").is_not_null()).then(pl.col("high").fill_null(top)).alias("high"),
        pl.when(open_ended).then(pl.lit("open")).otherwise(pl.lit("bounded")).alias("end"),
    )
    return points.select(_COLUMNS), top, bottom
