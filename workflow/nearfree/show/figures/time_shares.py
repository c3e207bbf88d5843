"""The share of a model's forward that each module takes, against N."""

import altair as alt
import polars as pl

from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.panels import CURVE, in_grid, with_panels
from nearfree.show.figures.theme import label_beside, of_kind, roles, styled, tooltip

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
    epsilon
        The tolerance whose boundaries are drawn.
    module
        What the figure is of, with the variable that panels are laid out by.
    """
    bars = _bars(with_panels(shares, module))
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
        data=pl.concat([bars, _bounds(bars, boundaries, epsilon)], how="diagonal_relaxed"),
    )
    return styled(
        in_grid(layers, bars).resolve_scale(x="independent"),
        f"Time shares against N, {module.title} on {bars['platform'][0]}",
        "Each module timed inside the forward, all its layers together; from the bottom in the "
        f"order of the forward. Dashed: the last N within {epsilon:.0%} of T at the baseline.",
    )


def _bars(named: pl.DataFrame) -> pl.DataFrame:
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


def _bounds(bars: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float) -> pl.DataFrame:
    """Return N_max of each panel's curve, and the side of it that has room for its label."""
    curves = bars.group_by(*CURVE, "panel", maintain_order=True).agg(pl.col("n").unique())
    ends = boundaries.filter(pl.col("epsilon") == epsilon).select(*CURVE, "n_max", "row_id")
    return (
        curves.join(ends, on=CURVE, maintain_order="left")
        .explode("n")
        .group_by("panel", "n_max", "row_id", maintain_order=True)
        .agg(((pl.col("n") <= pl.col("n_max")).mean() > 0.5).alias("late"))
        .select(
            *("panel", "row_id", "late"),
            pl.col("n_max").alias("n"),
            pl.format("N_max = {}", "n_max").alias("label"),
            pl.lit("boundary").alias("kind"),
        )
    )
