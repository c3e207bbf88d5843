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
"""What a line of text above a curve takes of its height."""


def latency_against_n(
    latency: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float, module: ModuleKind
) -> alt.FacetChart:
    """Return T(N) of every newest measured curve, a panel a setting.

    Parameters
    ----------
    latency, boundaries
        Rows of those tables for one platform and module.
    """
    points = with_panels(latency.filter("newest"), module).with_columns(
        (pl.col("latency_us") / 1000).alias("latency_ms"),
        (pl.col("latency_low_us") / 1000).alias("low_ms"),
        (pl.col("latency_high_us") / 1000).alias("high_ms"),
    )
    x, y = positions(points), alt.Y("latency_ms:Q", title="T(N), ms", scale=alt.Scale(zero=True))
    shown = tooltip(
        "n:Q",
        ("latency_ms:Q", "T(N), ms", ".3f"),
        ("ratio:Q", "T(N)/T(baseline)", ".3f"),
        ("rounds:Q", "rounds"),
    )
    of_points = of_kind("point")
    of_bounds = of_kind("boundary")
    layers = alt.layer(
        of_bounds.mark_rect(color=BAND, opacity=0.18).encode(
            x=x, x2="n2:Q", y=alt.Y("base_ms:Q"), y2="limit_ms:Q"
        ),
        of_points.mark_line(color=MEASURED).encode(x=x, y=y),
        of_points.mark_rule(color=MEASURED, opacity=0.6).encode(
            x=x, y=alt.Y("low_ms:Q"), y2="high_ms:Q"
        ),
        of_points.mark_point(color=MEASURED, filled=True, size=32, opacity=1).encode(
            x=x, y=y, tooltip=shown
        ),
        of_bounds.mark_point(opacity=0).encode(x=alt.X("n_max:Q"), y=alt.Y("top_ms:Q")),
        of_bounds.mark_rule(color="black", strokeDash=[4, 3]).encode(x=alt.X("n_max:Q")),
        label_beside(
            of_bounds,
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
    """Return the band and the boundary of each curve and each baseline it is read from."""
    base = points.select(
        *CURVE, "panel", "of", "variant", pl.col("n").alias("baseline"), "latency_ms"
    )
    ends = points.group_by(CURVE).agg(
        pl.col("n").max().alias("n2"),
        (pl.col("n").min() * pl.col("n").max()).alias("square"),
        pl.col("high_ms").max().alias("highest_ms"),
    )
    bounds = (
        readings(boundaries.filter("newest", pl.col("epsilon") == epsilon))
        .select(*CURVE, "baseline", "from_one", "n_max", "next_n", "row_id")
        .join(base, on=[*CURVE, "baseline"])
        .join(ends, on=CURVE)
        .sort("panel", "stream", "from_one")
    )
    least = pl.when(pl.col("n_max") == pl.col("n2")).then(pl.lit("≥ ")).otherwise(pl.lit(""))
    from_one = pl.format("from N = 1: {}{}", least, "n_max")
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
"""The end of the axis: above whole bars stands the label of N_max."""


def time_shares_against_n(
    shares: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float, module: ModuleKind
) -> alt.FacetChart:
    """Return stacked time shares by module over N, a panel a setting, with the boundary.

    Parameters
    ----------
    shares
        Newest rows of `time_shares` of one platform.
    boundaries
        Rows of that table of the same platform.
    module
        What the figure is of, with the variable that panels are laid out by.
    """
    bars = _stacked(with_panels(shares, module))
    names = bars.sort("place")["role"].unique(maintain_order=True).to_list()
    x = alt.X("n:O", title="positions N", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    scale = alt.Scale(domain=[0, _TOP], nice=False)
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="%")
    y = alt.Y("start:Q", title="share of the forward's time", scale=scale, axis=axis)
    shown = tooltip("role:N", "n:Q", "share:Q", "latency_us:Q", "model_us:Q", "rounds:Q")
    bounds = of_kind("boundary")
    after = alt.X("n:O", bandPosition=1)
    layers = alt.layer(
        of_kind("bar")
        .mark_bar(stroke="white", strokeWidth=0.4, width=alt.RelativeBandSize(0.92))
        .encode(x=x, y=y, y2="end:Q", color=roles("role:N", names, columns=5), tooltip=shown),
        bounds.mark_rule(color="black", strokeWidth=1.5, strokeDash=[4, 3]).encode(x=after),
        label_beside(bounds).encode(x=after, y=alt.value(3), text="label:N"),
        data=pl.concat([bars, _ends(bars, boundaries, epsilon)], how="diagonal_relaxed"),
    )
    return styled(
        in_grid(layers, bars).resolve_scale(x="independent"),
        f"Time shares, {module.title} on {bars['platform'][0]}",
        [
            "Measured: each module inside the forward, all its layers together, in its order.",
            f"Dashed: the last N within {epsilon:.0%} of T at the baseline.",
        ],
    )


def _stacked(named: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of each N's bar, one on the other, in the order of the forward."""
    panels = named["panel"].unique(maintain_order=True)
    end = pl.col("share").cum_sum().over(*CURVE, "n")
    return (
        named.sort(pl.col("panel").cast(pl.Enum(panels)), *CURVE, "n", "place")
        .with_columns(end.alias("end"))
        .select(
            *(*CURVE, "panel", "of", "variant", "n", "role", "place", "latency_us", "share"),
            *("model_us", "rounds", "row_id", "end"),
            (pl.col("end") - pl.col("share")).alias("start"),
            pl.lit("bar").alias("kind"),
        )
    )


def _ends(bars: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float) -> pl.DataFrame:
    """Return N_max of each panel's curve, and the side of it that has room for its label."""
    curves = bars.group_by(*CURVE, "panel", maintain_order=True).agg(pl.col("n").unique())
    at = boundaries.filter(pl.col("epsilon") == epsilon)
    ends = at.select(*CURVE, "n_max", "row_id", reached(pl.col("next_n").is_null()))
    return (
        curves.join(ends, on=CURVE, maintain_order="left")
        .explode("n")
        .group_by("panel", "n_max", "row_id", "label", maintain_order=True)
        .agg(((pl.col("n") <= pl.col("n_max")).mean() > 0.5).alias("late"))
        .select(
            *("panel", "row_id", "label", "late"),
            pl.col("n_max").alias("n"),
            pl.lit("boundary").alias("kind"),
        )
    )
