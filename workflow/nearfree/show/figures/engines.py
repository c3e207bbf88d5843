"""Figures of real engines' forwards: T(N)/T(1) with the steps of source rules, and time shares."""

from collections.abc import Iterator
from math import log2

import altair as alt
import polars as pl
from msgspec import structs

from nearfree.core.label import label
from nearfree.core.modules.engine import ENGINE
from nearfree.show.figures.latency import time_shares_against_n
from nearfree.show.figures.listing import ENGINES, Drawing, Frames, drawing
from nearfree.show.figures.panels import CURVE, in_rows
from nearfree.show.figures.theme import (
    BAND,
    MEASURED,
    PUBLISHED,
    THEORY,
    keyed,
    label_beside,
    of_kind,
    positions,
    reached,
    styled,
    tooltip,
)

MORE, OTHER, FEWER = "more passes", "another kernel", "fewer passes"
_CHANGES = {MORE: PUBLISHED, OTHER: THEORY, FEWER: BAND}
_BUILD = ("release", "file_type", "repack")
_CALL = ("batch", "context", "threads")
SETTING = (*_BUILD, *_CALL)
"""The columns in which settings of one engine and model differ, in their order."""
_STRIP = 0.065
"""Share of a panel's height for the marks of one type of weights."""
_FEW = 4
"""The largest ratio for which the axis has ticks between powers of two."""
_SPARE = 90
"""Pixels of padding at the right of a single panel."""
_ABOVE = 1.15
"""Upper end of the axis, as a multiple of the largest ratio."""


def engine_drawings(frames: Frames, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of each engine and model; nothing where the platform measured none.

    Parameters
    ----------
    frames
        A platform's tables by name: latency, boundaries, time_shares and engine_steps.
    """
    engine_rows = (pl.col("module") == ENGINE.name) & pl.col("newest")
    latency = frames["latency"].filter(engine_rows)
    for engine, model in latency.select("backend", "model").unique().sort(pl.all()).rows():
        selected = engine_rows & (pl.col("backend") == engine) & (pl.col("model") == model)
        curves, steps = latency.filter(selected), frames["engine_steps"].filter(selected)
        at_tolerance = frames["boundaries"].filter(selected, pl.col("epsilon") == epsilon)
        subject = f"{model} in {engine}"
        yield drawing(
            ratio_against_n,
            (curves, at_tolerance, steps, epsilon),
            f"engine_ratio_against_n_{engine}_{model}",
            f"{subject}: T(N)/T(1) of every setting, and N at which rules change the passes.",
            curves,
            at_tolerance,
            steps,
            about=ENGINES,
        )
        shares = frames["time_shares"].filter(selected)
        if not shares.is_empty():
            shown_boundaries = at_tolerance.join(shares, on=CURVE, how="semi")
            yield drawing(
                time_shares_against_n,
                (shares, shown_boundaries, epsilon, structs.replace(ENGINE, title=subject)),
                f"engine_time_shares_{engine}_{model}",
                f"{subject}: each module's share of a forward's time, against N.",
                shares,
                shown_boundaries,
                about=ENGINES,
            )


def ratio_against_n(
    latency: pl.DataFrame, boundaries: pl.DataFrame, steps: pl.DataFrame, epsilon: float
) -> alt.FacetChart:
    """Return T(N)/T(baseline) of an engine with one model, one panel per setting.

    Below each curve there is a line of marks per type of weights, where a rule changes the passes
    over them.

    Parameters
    ----------
    latency, boundaries, steps
        Newest rows of these tables (`engine_steps`) of one platform, engine and model.
    """
    points = _panelled(latency)
    panels = points.select(*CURVE, "panel").unique()
    kinds = steps.drop_nulls("rows")["type"].unique().sort().to_list()
    top = _ABOVE * max(*points["ratio"], *points["ratio_high"].drop_nulls(), 1 + epsilon)
    strip = _STRIP * log2(top) / (1 - _STRIP * (len(kinds) + 1))
    heights = {kind: 2 ** -(strip * (position + 1)) for position, kind in enumerate(kinds)}
    low = 2 ** -(strip * (len(kinds) + 0.6)) if kinds else 0.8
    scale = alt.Scale(type="log", base=2, domain=[low, top], nice=False)
    multiples = (1,) if top > _FEW else (1, 1.25, 1.5)
    ticks = [multiple * 2**k for k in range(16) for multiple in multiples if multiple * 2**k <= top]
    axis = alt.Axis(values=ticks, format="~g", labelOverlap="greedy")
    x, y = positions(points), alt.Y("ratio:Q", title="T(N)/T(1)", scale=scale, axis=axis)
    names = changes(steps)["change"].to_list()
    colours = {name: colour for name, colour in _CHANGES.items() if name in names}
    point_chart, bound_chart, step_chart = of_kind("point"), of_kind("boundary"), of_kind("step")
    point_hover = tooltip(
        "n:Q",
        ("ratio:Q", "T(N)/T(1)", ".3f"),
        ("low:Q", "from", ".3f"),
        ("high:Q", "to", ".3f"),
        ("latency_ms:Q", "T(N), ms", ".3f"),
    )
    step_hover = tooltip(
        ("type:N", "weights"),
        ("rows:Q", "rows b N"),
        ("passes_before:Q", "passes before"),
        ("passes:Q", "passes now"),
        ("path:N", "way"),
        ("rule:N", "rule"),
        ("place:N", "source"),
    )
    layers = alt.layer(
        bound_chart.mark_rect(color=BAND, opacity=0.18).encode(
            x=alt.X("n:Q"), x2="n2:Q", y=alt.Y("one:Q", scale=scale), y2="limit:Q"
        ),
        bound_chart.mark_rule(color=BAND, strokeWidth=1.5).encode(
            x=alt.X("n:Q"), x2="n2:Q", y=alt.Y("limit:Q", scale=scale)
        ),
        step_chart.mark_tick(orient="vertical", size=8, thickness=1.5).encode(
            x=x,
            y=alt.Y("height:Q", scale=scale),
            color=keyed(alt.Color, "change:N", colours, title=None, columns=3),
            tooltip=step_hover,
        ),
        of_kind("type")
        .mark_text(align="left", dx=4, fontSize=10, color=THEORY)
        .encode(x=x, y=alt.Y("height:Q", scale=scale), text="type:N"),
        point_chart.mark_line(color=MEASURED).encode(x=x, y=y),
        point_chart.mark_rule(color=MEASURED, opacity=0.6, strokeWidth=1.5).encode(
            x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q"
        ),
        point_chart.mark_point(color=MEASURED, filled=True, size=30, opacity=1).encode(
            x=x, y=y, tooltip=point_hover
        ),
        bound_chart.mark_rule(color="black", strokeDash=[4, 3]).encode(x=alt.X("n_max:Q")),
        label_beside(bound_chart).encode(x=alt.X("n_max:Q"), y=alt.value(4), text="label:N"),
        data=pl.concat(
            [
                points.select(
                    *("panel", "n", "ratio", "latency_ms", "row_id"),
                    pl.col("ratio_low").alias("low"),
                    pl.col("ratio_high").alias("high"),
                    pl.lit("point").alias("kind"),
                ),
                _bounds(points, boundaries, epsilon),
                *_marks(steps.join(panels, on=CURVE), points, heights),
            ],
            how="diagonal_relaxed",
        ),
    )
    first = points.row(0, named=True)
    band = f"Green: up to 1 + {epsilon:g}."
    subtitle = [
        f"{first['model']}: medians of paired ratios, 95 % intervals. {band}",
        "Marks below: N at which a rule of the engine changes its passes over weights.",
    ]
    chart = styled(
        in_rows(layers, points),
        f"T(N)/T(1), {first['backend']} on {first['platform']}, "
        f"{', '.join(points['origin'].unique().sort())}",
        subtitle if kinds else subtitle[:1],
    )
    if points["panel"].n_unique() == 1:  # the title is wider than the panel
        chart.padding = {"left": 12, "top": 12, "bottom": 12, "right": _SPARE}
    return chart


def _panelled(latency: pl.DataFrame) -> pl.DataFrame:
    """Return rows with `panel`, the setting in two lines, sorted by setting.

    The panel has the study where several studies hold the same setting.
    """
    several_studies = pl.col("stream").n_unique().over("setting_key") > 1
    labelled = latency.with_columns(
        pl.when(several_studies).then("stream").otherwise(pl.lit("")).alias("study"),
        (pl.col("latency_us") / 1000).alias("latency_ms"),
    ).sort(*SETTING, "stream", "n")
    texts = [
        f"{label(row, (*_BUILD, 'study'))}: {label(row, _CALL)}"
        for row in labelled.select(*SETTING, "study").to_dicts()
    ]
    return labelled.with_columns(pl.Series("panel", texts, dtype=pl.String))


def _bounds(points: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float) -> pl.DataFrame:
    """Return the tolerance band and N_max of each curve; `late` puts the label at its left."""
    extents = points.group_by(*CURVE, "panel", maintain_order=True).agg(
        pl.col("n").min(), pl.col("n").max().alias("n2")
    )
    return extents.join(boundaries.select(*CURVE, "n_max", "next_n", "row_id"), on=CURVE).select(
        *("panel", "n", "n2", "n_max", "row_id"),
        pl.lit(1.0).alias("one"),
        pl.lit(1.0 + epsilon).alias("limit"),
        reached(pl.col("next_n").is_null()),
        (pl.col("n_max") ** 2 > pl.col("n") * pl.col("n2")).alias("late"),
        pl.lit("boundary").alias("kind"),
    )


def changes(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps from N - 1 to N, one per type of weights, with all changes in between.

    Steps at or below the rows of N = 1 are left out.
    """
    reachable = steps.drop_nulls("rows").filter(pl.col("n") > 1).sort("rows", "parts")
    difference = pl.col("passes") - pl.col("passes_before")
    change = pl.when(difference > 0).then(pl.lit(MORE)).when(difference < 0).then(pl.lit(FEWER))
    return (
        reachable.group_by(*CURVE, "type", "n", maintain_order=True)
        .agg(
            pl.col("passes_before").first(),
            pl.col("rows", "passes", "path", "rule", "file", "lines", "row_id").last(),
        )
        .with_columns(
            change.otherwise(pl.lit(OTHER)).alias("change"),
            pl.format("{}:{}", "file", "lines").alias("place"),
        )
    )


def _marks(
    steps: pl.DataFrame, points: pl.DataFrame, heights: dict[str, float]
) -> Iterator[pl.DataFrame]:
    """Yield the marks of each panel's types of weights, and the types' names at the left."""
    height = pl.col("type").replace_strict(heights, return_dtype=pl.Float64, default=None)
    panels = steps.select(*CURVE, "panel").unique()
    yield (
        changes(steps)
        .join(panels, on=CURVE)
        .select(
            *("panel", "type", "n", "rows", "passes_before", "passes", "path", "rule", "place"),
            *("change", "row_id"),
            height.alias("height"),
            pl.lit("step").alias("kind"),
        )
    )
    leftmost = points.group_by("panel", maintain_order=True).agg(pl.col("n").min())
    types = steps.drop_nulls("rows").select("panel", "type").unique(maintain_order=True)
    yield types.join(leftmost, on="panel").with_columns(
        height.alias("height"), pl.lit("type").alias("kind")
    )
