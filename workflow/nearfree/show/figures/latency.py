"""Latency against N with the tolerance band, and the share of each module (paper, app. D to F)."""

import altair as alt
import polars as pl

from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.boundaries import readings
from nearfree.show.figures.panels import CURVE, in_grid, with_panels
from nearfree.show.figures.theme import (
    BAND,
    MEASURED,
    label_beside,
    of_kind,
    positions,
    reached,
    roles,
    styled,
    tooltip,
)

_LINE_PX = 15
_ROOM = 0.16
"""Height of a line of text above a curve, as a share of the curve's."""


def latency_against_n(
    latency: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float, module: ModuleKind
) -> alt.FacetChart:
    """Return T(N) of every newest measured curve, one panel per setting.

    Parameters
    ----------
    latency, boundaries
        Rows of these tables for one platform and module.
    """
    points = with_panels(latency.filter("newest"), module).with_columns(
        (pl.col("latency_us") / 1000).alias("latency_ms"),
        (pl.col("latency_low_us") / 1000).alias("low_ms"),
        (pl.col("latency_high_us") / 1000).alias("high_ms"),
    )
    x, y = positions(points), alt.Y("latency_ms:Q", title="T(N), ms", scale=alt.Scale(zero=True))
    hover = tooltip(
        "n:Q",
        ("latency_ms:Q", "T(N), ms", ".3f"),
        ("ratio:Q", "T(N)/T(baseline)", ".3f"),
        ("rounds:Q", "rounds"),
    )
    point_chart = of_kind("point")
    bound_chart = of_kind("boundary")
    layers = alt.layer(
        bound_chart.mark_rect(color=BAND, opacity=0.18).encode(
            x=x, x2="n2:Q", y=alt.Y("base_ms:Q"), y2="limit_ms:Q"
        ),
        point_chart.mark_line(color=MEASURED).encode(x=x, y=y),
        point_chart.mark_rule(color=MEASURED, opacity=0.6).encode(
            x=x, y=alt.Y("low_ms:Q"), y2="high_ms:Q"
        ),
        point_chart.mark_point(color=MEASURED, filled=True, size=32, opacity=1).encode(
            x=x, y=y, tooltip=hover
        ),
        bound_chart.mark_point(opacity=0).encode(x=alt.X("n_max:Q"), y=alt.Y("top_ms:Q")),
        bound_chart.mark_rule(color="black", strokeDash=[4, 3]).encode(x=alt.X("n_max:Q")),
        label_beside(
            bound_chart,
            dx=alt.ExprRef("datum.late ? -5 : 5"),
            dy=alt.ExprRef("datum.line_px"),
            fontSize=12,
        ).encode(x=alt.X("n_max:Q"), y=alt.value(4), text="label:N"),
        data=pl.concat(
            [
                points.select(
                    *("stream", "setting_key", "panel", "of", "variant", "n", "latency_ms"),
                    *("low_ms", "high_ms", "ratio", "rounds", "row_id"),
                    pl.lit("point").alias("kind"),
                ),
                _bounds(points, boundaries, epsilon),
            ],
            how="diagonal",
        ),
    )
    origins = ", ".join(points["origin"].unique().sort())
    return styled(
        in_grid(layers, points).resolve_scale(y="independent"),
        f"Latency against N, {module.title} on {points['platform'][0]}, {origins}",
        f"Points: medians, with 95 % intervals. Band: within {epsilon:.0%} of T at its left end. "
        "Dashed: N_max, by ratios paired within rounds, so a median may lie outside.",
    )


def _bounds(points: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float) -> pl.DataFrame:
    """Return the band and the boundary of each curve, from each of its baselines."""
    baselines = points.select(
        *CURVE, "panel", "of", "variant", pl.col("n").alias("baseline"), "latency_ms"
    )
    extents = points.group_by(CURVE).agg(
        pl.col("n").max().alias("n2"),
        (pl.col("n").min() * pl.col("n").max()).alias("square"),
        pl.col("high_ms").max().alias("highest_ms"),
    )
    bounds = (
        readings(boundaries.filter("newest", pl.col("epsilon") == epsilon))
        .select(*CURVE, "baseline", "from_one", "n_max", "next_n", "row_id")
        .join(baselines, on=[*CURVE, "baseline"])
        .join(extents, on=CURVE)
        .sort("panel", "stream", "from_one")
    )
    sign = pl.when(pl.col("n_max") == pl.col("n2")).then(pl.lit("≥ ")).otherwise(pl.lit(""))
    from_one = pl.format("from N = 1: {}{}", sign, "n_max")
    return bounds.select(
        *("stream", "setting_key", "panel", "of", "variant", "n_max", "n2", "row_id"),
        pl.col("baseline").alias("n"),
        pl.col("latency_ms").alias("base_ms"),
        (pl.col("latency_ms") * (1 + epsilon)).alias("limit_ms"),
        pl.when("from_one")
        .then(from_one)
        .otherwise(reached(pl.col("next_n").is_null()))
        .alias("label"),
        (pl.col("highest_ms") * (1 + _ROOM * pl.len().over("panel"))).alias("top_ms"),
        (pl.col("n_max") ** 2 > pl.col("square")).alias("late"),
        (pl.int_range(pl.len()).over("panel") * _LINE_PX).alias("line_px"),
        pl.lit("boundary").alias("kind"),
    )


_TOP = 1.14
"""Upper end of the axis, with room for the label of N_max above the bars."""


def time_shares_against_n(
    shares: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float, module: ModuleKind
) -> alt.FacetChart:
    """Return stacked time shares by module over N, one panel per setting, with the boundary.

    Parameters
    ----------
    shares
        Newest rows of `time_shares` of one platform.
    boundaries
        Rows of the table `boundaries` of the same platform.
    module
        The module of the figure, whose variable orders the panels.
    """
    bars = _stacked(with_panels(shares, module))
    names = bars.sort("place")["role"].unique(maintain_order=True).to_list()
    x = alt.X("n:O", title="positions N", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    scale = alt.Scale(domain=[0, _TOP], nice=False)
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="%")
    y = alt.Y("start:Q", title="share of the forward's time", scale=scale, axis=axis)
    hover = tooltip("role:N", "n:Q", "share:Q", "latency_us:Q", "model_us:Q", "rounds:Q")
    bound_chart = of_kind("boundary")
    x_after = alt.X("n:O", bandPosition=1)
    layers = alt.layer(
        of_kind("bar")
        .mark_bar(stroke="white", strokeWidth=0.4, width=alt.RelativeBandSize(0.92))
        .encode(x=x, y=y, y2="end:Q", color=roles("role:N", names, columns=5), tooltip=hover),
        bound_chart.mark_rule(color="black", strokeWidth=1.5, strokeDash=[4, 3]).encode(x=x_after),
        label_beside(bound_chart).encode(x=x_after, y=alt.value(3), text="label:N"),
        data=pl.concat([bars, _ends(bars, boundaries, epsilon)], how="diagonal_relaxed"),
    )
    return styled(
        in_grid(layers, bars).resolve_scale(x="independent"),
        f"Time shares, {module.title} on {bars['platform'][0]}",
        [
            "Measured inside the forward: each module over all layers, in execution order.",
            f"Dashed: the last N within {epsilon:.0%} of T at the baseline.",
        ],
    )


def _stacked(panelled: pl.DataFrame) -> pl.DataFrame:
    """Return the stacked parts of each N's bar, in the order of the forward."""
    panels = panelled["panel"].unique(maintain_order=True)
    end = pl.col("share").cum_sum().over(*CURVE, "n")
    return (
        panelled.sort(pl.col("panel").cast(pl.Enum(panels)), *CURVE, "n", "place")
        .with_columns(end.alias("end"))
        .select(
            *(*CURVE, "panel", "of", "variant", "n", "role", "place", "latency_us", "share"),
            *("model_us", "rounds", "row_id", "end"),
            (pl.col("end") - pl.col("share")).alias("start"),
            pl.lit("bar").alias("kind"),
        )
    )


def _ends(bars: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float) -> pl.DataFrame:
    """Return N_max of each panel's curve; `late` puts its label at the left."""
    curves = bars.group_by(*CURVE, "panel", maintain_order=True).agg(pl.col("n").unique())
    at_tolerance = boundaries.filter(pl.col("epsilon") == epsilon)
    boundary_labels = at_tolerance.select(
        *CURVE, "n_max", "row_id", reached(pl.col("next_n").is_null())
    )
    return (
        curves.join(boundary_labels, on=CURVE, maintain_order="left")
        .explode("n")
        .group_by("panel", "n_max", "row_id", "label", maintain_order=True)
        .agg(((pl.col("n") <= pl.col("n_max")).mean() > 0.5).alias("late"))
        .select(
            *("panel", "row_id", "label", "late"),
            pl.col("n_max").alias("n"),
            pl.lit("boundary").alias("kind"),
        )
    )
