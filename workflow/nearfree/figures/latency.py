"""Latency against N with the tolerance band (paper, figures of app. D, first panel)."""

import altair as alt
import polars as pl

from nearfree.figures.theme import BAND, MEASURED, PANEL, dressed
from nearfree.tables.settings import labels


def latency_against_n(
    latency: pl.DataFrame, boundaries: pl.DataFrame, epsilon: float
) -> alt.FacetChart:
    """Return T(N) of every newest measured curve, a panel a batch size.

    Parameters
    ----------
    latency, boundaries
        Rows of those tables for one platform and module.
    epsilon
        The tolerance whose band and boundary are drawn.
    """
    points = latency.filter("newest").with_columns(
        (pl.col("latency_us") / 1000).alias("latency_ms"),
        (pl.col("latency_low_us") / 1000).alias("low_ms"),
        (pl.col("latency_high_us") / 1000).alias("high_ms"),
    )
    panels = _panels(points)
    base = points.filter(pl.col("n") == pl.col("baseline")).select(
        "setting_key",
        pl.col("latency_ms").alias("base_ms"),
        (pl.col("latency_ms") * (1 + epsilon)).alias("limit_ms"),
    )
    ends = points.group_by("setting_key", maintain_order=True).agg(
        pl.col("n").min().alias("n"), pl.col("n").max().alias("n2")
    )
    band = ends.join(base, on="setting_key", maintain_order="left")
    found = boundaries.filter("newest", pl.col("epsilon") == epsilon).select(
        "setting_key", "n_max", "row_id", pl.format("N_max = {}", "n_max").alias("label")
    )
    ticks = sorted(n for n in points["n"].unique() if n & (n - 1) == 0)
    x = alt.X(
        "n:Q",
        title="positions N",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=ticks, format="d"),
    )
    y = alt.Y("latency_ms:Q", title="T(N), ms", scale=alt.Scale(zero=True))
    tooltip = [
        alt.Tooltip("n:Q", title="N"),
        alt.Tooltip("latency_ms:Q", title="T(N), ms", format=".3f"),
        alt.Tooltip("ratio:Q", title="T(N)/T(1)", format=".3f"),
        alt.Tooltip("rounds:Q", title="rounds"),
        alt.Tooltip("row_id:N", title="row"),
    ]
    data = points.select(
        "setting_key", "n", "latency_ms", "low_ms", "high_ms", "ratio", "rounds", "row_id"
    )
    chart = alt.Chart()
    layers = alt.layer(
        chart.mark_rect(color=BAND, opacity=0.18)
        .transform_filter("datum.kind == 'band'")
        .encode(x=x, x2="n2:Q", y=alt.Y("base_ms:Q"), y2="limit_ms:Q"),
        chart.mark_line(color=MEASURED).transform_filter("datum.kind == 'point'").encode(x=x, y=y),
        chart.mark_rule(color=MEASURED, opacity=0.6)
        .transform_filter("datum.kind == 'point'")
        .encode(x=x, y=alt.Y("low_ms:Q"), y2="high_ms:Q"),
        chart.mark_point(color=MEASURED, filled=True, size=32, opacity=1)
        .transform_filter("datum.kind == 'point'")
        .encode(x=x, y=y, tooltip=tooltip),
        chart.mark_rule(color="black", strokeDash=[4, 3])
        .transform_filter("datum.kind == 'boundary'")
        .encode(x=alt.X("n_max:Q")),
        chart.mark_text(align="left", dx=5, dy=-4, fontSize=12, baseline="top")
        .transform_filter("datum.kind == 'boundary'")
        .encode(x=alt.X("n_max:Q"), y=alt.value(8), text="label:N"),
        data=pl.concat(
            [
                data.with_columns(pl.lit("point").alias("kind")),
                band.with_columns(pl.lit("band").alias("kind")),
                found.with_columns(pl.lit("boundary").alias("kind")),
            ],
            how="diagonal",
        ).join(panels, on="setting_key", maintain_order="left"),
    ).properties(**PANEL)
    drawn = layers.facet(
        facet=alt.Facet("panel:N", title=None, sort=panels["panel"].to_list()), columns=2
    )
    drawn = drawn.resolve_scale(y="independent")
    platform = points["platform"][0]
    return dressed(
        drawn,
        f"Latency against N, dense FFN on {platform}, measured",
        f"Bars: 95 % interval of the median. Band: within {epsilon:.0%} of T(1). "
        "Dashed: the last N inside it.",
    )


def _panels(points: pl.DataFrame) -> pl.DataFrame:
    """Return the panel of each setting: its batch size, and what else tells settings apart."""
    settings = points.unique("setting_key", keep="first", maintain_order=True)
    named = settings.with_columns(pl.format("b = {}", labels(settings, "batch")).alias("panel"))
    return named.sort("batch", "panel").select("setting_key", "panel")
