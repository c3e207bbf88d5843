"""Figures of measured whole models: N_max, limiters, latency and time shares."""

from collections.abc import Callable, Iterator
from typing import Any

import altair as alt
import polars as pl
from msgspec import structs

from nearfree.core.label import NESTED, label
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.model import MODEL
from nearfree.show.figures.latency import latency_against_n, time_shares_against_n
from nearfree.show.figures.listing import MODELS, Drawing, Frames, drawing
from nearfree.show.figures.panels import in_rows, panel, with_model_panels
from nearfree.show.figures.theme import (
    BAND,
    PREDICTORS,
    SPACED,
    Look,
    in_order,
    looks,
    of_kind,
    order_of,
    rank,
    roles,
    styled,
    tooltip,
)


def limiter_map(rows: pl.DataFrame, epsilon: float) -> alt.FacetChart:
    """Return the limiting module of each setting, measured and by predictor, one panel per model.

    Parameters
    ----------
    rows
        The rows of `limiters`, at least one.
    """
    names = rows.sort("place")["who"].unique(maintain_order=True).to_list()
    modules = in_order(rows["limiter"].drop_nulls().unique().to_list())
    settings = rows.sort(*NESTED)["setting"].unique(maintain_order=True).to_list()
    layers = alt.layer(
        alt.Chart()
        .mark_rect(stroke="white", strokeWidth=3)
        .encode(
            x=alt.X(
                "who:N",
                title=None,
                sort=names,
                axis=alt.Axis(labelAngle=-35, labelLimit=200, grid=False, labelExpr=SPACED),
            ),
            y=alt.Y(
                "setting:N", title=None, sort=settings, axis=alt.Axis(labelLimit=260, grid=False)
            ),
            color=roles("limiter:N", modules),
            tooltip=tooltip("setting:N", ("who:N", "by"), ("limiter:N", "module")),
        ),
        data=rows,
    )
    return styled(
        in_rows(layers, rows, columns=2).resolve_scale(y="independent"),
        f"Limiting module of whole models on {rows['platform'][0]}, tolerance {epsilon:.0%}",
        "Measured: the module whose time grows most, inside the forward, from the baseline to the "
        "N after N_max. Others: the module that each predictor names; empty where it refuses.",
    )


def limiters(composition: pl.DataFrame) -> pl.DataFrame:
    """Return the limiters of each setting: panel, setting, who, place, limiter, row_id.

    `who` is the measurement or a predictor, with its basis of facts if it has several. A panel
    shows a model, or a study if a model has several. Settings are sorted by context.

    Parameters
    ----------
    composition
        Rows of this table of one platform at one tolerance.
    """
    several_bases = pl.col("basis").n_unique().over("predictor") > 1
    facts = pl.col("basis").fill_null("no facts").str.replace_all("_", " ")
    predicted = composition.select(
        *_SETTING,
        pl.when(several_bases)
        .then(pl.format("{}, {}", "predictor", facts))
        .otherwise("predictor")
        .alias("who"),
        (rank() + 1).alias("place"),
        *("limiter", "row_id"),
    )
    measured = composition.unique(["stream", "setting_key"], keep="first", maintain_order=True)
    measured_rows = measured.select(
        *_SETTING,
        pl.lit(_MEASURED).alias("who"),
        pl.lit(0, dtype=pl.Int64).alias("place"),
        pl.col("measured_limiter").alias("limiter"),
        "row_id",
    )
    several_studies = pl.col("stream").n_unique().over("model") > 1
    named = pl.concat([measured_rows, predicted]).drop_nulls("limiter")
    texts = [label(row, NESTED) for row in named.select(NESTED).to_dicts()]
    return named.with_columns(
        pl.Series("setting", texts, dtype=pl.String),
        panel("model", pl.when(several_studies).then("stream")),
    ).sort("model", "stream", *NESTED, "setting_key", "place", "who")


_SETTING = ("platform", "model", "stream", "setting_key", *NESTED)


CURVE = ["platform", "stream", "setting_key"]
"""The columns that identify a measured setting."""
DENSE = structs.replace(MODEL, own="batch")
MOE = structs.replace(MODEL, own="top_k")
"""The module MODEL with the variable of figures of dense models, and of MoE models."""
_MEASURED = "measured"
_HALF = 0.44
"""Half the width of the marks of one value, in octaves."""
_ROOM = 0.6
"""The margin left of the first value and right of the last, in octaves."""
_FEW = 24
"""The most marks side by side in a panel for which large marks fit."""


def nmax_of_models(
    boundaries: pl.DataFrame, composition: pl.DataFrame, epsilon: float, module: ModuleKind
) -> alt.FacetChart:
    """Return measured and predicted N_max of models, one panel per model, routing and L.

    Parameters
    ----------
    boundaries
        Newest measured boundaries of models at a tolerance.
    composition
        Rows of this table at the same tolerance; refusals are not drawn.
    module
        DENSE or MOE, which sets the variable inside a panel.
    """
    settings = with_model_panels(boundaries, module).with_columns(pl.col(module.own).alias("own"))
    predictions = composition.drop_nulls("predicted").join(
        settings.select(*CURVE, "panel", "own"), on=CURVE
    )
    marks = pl.concat([_measured(settings), _predicted(predictions)], how="diagonal_relaxed")
    largest = [*marks["y"], *marks["high"].drop_nulls(), *settings["next_n"].drop_nulls()]
    low, top = min(marks["y"]) / 1.6, 1.6 * max(largest)
    series = [_MEASURED, *order_of(predictions["predictor"])]
    values = sorted(settings["own"].unique())
    around = [values[0] / 2**_ROOM, values[-1] * 2**_ROOM]
    x = alt.X(
        "x:Q",
        title=f"{module.variable} {module.letter}",
        scale=alt.Scale(type="log", base=2, nice=False, domain=around),
        axis=alt.Axis(values=values, format="d", grid=False),
    )
    scale = alt.Scale(type="log", base=2, domain=[low, top], nice=False)
    ticks = [2**k for k in range(16) if low < 2**k < top]
    axis = alt.Axis(values=ticks, format="~g", labelOverlap="greedy")
    y = alt.Y("y:Q", title="N_max, positions", scale=scale, axis=axis)
    size = 62 if len(values) * len(series) <= _FEW else 34
    channels = _look(series)
    colour = channels["color"]
    point_chart = of_kind("point")
    layers = alt.layer(
        of_kind("band")
        .mark_rect(color=BAND, opacity=0.2)
        .encode(x=x, x2="x2:Q", y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        point_chart.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.8)
        .encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour),
        point_chart.mark_point(size=size, filled=True, opacity=1, strokeWidth=1.5).encode(
            x=x, y=y, tooltip=_tooltip(module), **channels
        ),
        point_chart.transform_filter("datum.at_end")
        .mark_text(text="\u2191", dy=-13, fontSize=13)
        .encode(x=x, y=y),
        data=pl.concat(
            [_side_by_side(marks, series), _bands(settings, top)], how="diagonal_relaxed"
        ),
    )
    return styled(
        in_rows(layers, settings),
        f"N_max of whole models on {settings['platform'][0]}, tolerance {epsilon:.0%}",
        "Bars: intervals, 95 % for measured N_max. Green: from N_max to the next N of the grid, "
        "where a prediction is a hit. Arrow: the grid ends there.",
    )


def _measured(settings: pl.DataFrame) -> pl.DataFrame:
    return settings.select(
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
    """Return marks with `x`: marks of one setting are side by side, in the order of series."""
    offsets = {name: (position + 0.5) / len(series) - 0.5 for position, name in enumerate(series)}
    octaves = 1.8 * _HALF * pl.col("series").replace_strict(offsets, return_dtype=pl.Float64)
    return marks.with_columns((pl.col("own") * 2**octaves).alias("x"))


def _bands(settings: pl.DataFrame, top: float) -> pl.DataFrame:
    return settings.select(
        "panel",
        (pl.col("own") / 2**_HALF).alias("x"),
        (pl.col("own") * 2**_HALF).alias("x2"),
        pl.col("n_max").cast(pl.Float64).alias("low"),
        pl.col("next_n").cast(pl.Float64).fill_null(top).alias("high"),
        pl.lit("band").alias("kind"),
    )


def _look(series: list[str]) -> Look:
    """Return colour and shape of the measured series and of the predictors, with one legend."""
    looks_by_series = {name: PREDICTORS.get(name, ("black", "circle")) for name in series}
    channels = {"color": alt.Color, "shape": alt.Shape}
    return looks(channels, "series:N", looks_by_series, title=None, columns=4, labelExpr=SPACED)


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


def model_drawings(frames: Frames, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of models, none where the platform measured none.

    Parameters
    ----------
    frames
        A platform's tables by name: latency, boundaries, time_shares and composition.
    """
    whole_models = (pl.col("module") == "model") & pl.col("newest")
    latency = frames["latency"].filter(whole_models)
    boundaries, predictions = (
        frame.filter(pl.col("epsilon") == epsilon).join(latency, on=CURVE, how="semi")
        for frame in (frames["boundaries"].filter(whole_models), frames["composition"])
    )
    answered = predictions.drop_nulls("predicted")
    has_experts = pl.col("top_k").is_not_null()
    for module, settings in ((DENSE, ~has_experts), (MOE, has_experts)):
        ends = boundaries.filter(settings)
        if not ends.is_empty():
            drawn = answered.join(ends, on=CURVE, how="semi")
            caption = f"N_max against {module.letter}: measured and predicted."
            arguments: tuple[object, ...] = (ends, drawn, epsilon, module)
            name = f"nmax_against_{module.own}"
            yield _drawing(nmax_of_models, arguments, name, caption, ends, drawn)
    limiter_rows = limiters(predictions)
    if not limiter_rows.is_empty():
        caption = "the limiting module, measured and by predictor."
        limiter_sources = predictions.filter(
            pl.col("row_id").is_in(limiter_rows["row_id"].implode())
        )
        yield _drawing(limiter_map, (limiter_rows, epsilon), "limiters", caption, limiter_sources)
    shares = frames["time_shares"].filter(whole_models)
    for model in latency["model"].unique().sort():
        module = structs.replace(MODEL, title=model)
        same_model = pl.col("model") == model
        curves, ends = latency.filter(same_model), boundaries.filter(same_model)
        caption = "T(N) of every setting, with the tolerance band and the boundary."
        arguments = (curves, ends, epsilon, module)
        name = f"latency_against_n_{model}"
        yield _drawing(latency_against_n, arguments, name, caption, curves, ends, subject=model)
        model_shares = shares.filter(same_model)
        if not model_shares.is_empty():
            caption = "each module's share of a forward's time, against N."
            ends = ends.join(model_shares, on=CURVE, how="semi")
            arguments = (model_shares, ends, epsilon, module)
            name = f"time_shares_{model}"
            yield _drawing(
                time_shares_against_n, arguments, name, caption, model_shares, ends, subject=model
            )


def _drawing(
    draw: Callable[..., Any],
    arguments: tuple[object, ...],
    name: str,
    caption: str,
    *rows: pl.DataFrame,
    subject: str = "Whole models",
) -> Drawing:
    caption = f"{subject}: {caption}"
    return drawing(draw, arguments, f"model_{name}", caption, *rows, about=MODELS)
