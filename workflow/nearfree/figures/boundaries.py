"""N_max against batch, with theory (paper, figures of app. D, second panel)."""

import altair as alt
import polars as pl

from nearfree.figures.theme import MEASURED, PALETTE, PANEL, PUBLISHED, dressed

_BASIS = {
    "datasheet": "datasheet phi and beta",
    "probed_stream": "probed, beta by streaming",
    "probed_gemm": "probed, beta by weight traffic",
}


def _laws(predictions: pl.DataFrame) -> pl.DataFrame:
    """Return one line a law, with laws that agree at every point under one name."""
    answered = predictions.drop_nulls("n_max").sort("predictor", "row_id")
    same = ["platform", "dtype", "batch", "basis", "n_max"]
    points = answered.group_by(same, maintain_order=True).agg(
        pl.col("predictor").unique(maintain_order=True), pl.col("row_id").first()
    )
    name = pl.format(
        "{}, {}{}",
        pl.col("predictor").list.join(" = ").str.replace_all("_", " "),
        pl.col("basis").replace(_BASIS),
        pl.when(pl.col("dtype").n_unique().over("platform") > 1)
        .then(pl.format(", {}", "dtype"))
        .otherwise(pl.lit("")),
    )
    return points.with_columns(name.alias("law"))


def nmax_against_batch(
    boundaries: pl.DataFrame, predictions: pl.DataFrame, epsilon: float
) -> alt.FacetChart:
    """Return measured and published N_max with their predictions, a panel a platform.

    Parameters
    ----------
    boundaries, predictions
        Rows of those tables, of one module, over one or more platforms.
    """
    at = boundaries.filter("newest", pl.col("epsilon") == epsilon).with_columns(
        pl.format("{} ({})", "platform", "origin").alias("panel")
    )
    panels = at.select("platform", "panel").unique(maintain_order=True)
    lines = _laws(predictions).join(panels, on="platform").sort("panel", "law", "batch")
    points = at.select(
        "panel", "batch", "n_max", "n_low", "n_high", "verdict", "origin", "row_id"
    ).sort("panel", "batch")
    x = alt.X("batch:O", title="batch b", axis=alt.Axis(labelAngle=0))
    y = alt.Y(
        "n_max:Q",
        title="N_max, positions",
        scale=alt.Scale(type="log", base=2, nice=True, domainMin=0.5),
    )
    chart = alt.Chart()
    data = pl.concat(
        [
            points.with_columns(pl.lit("point").alias("kind")),
            lines.select("panel", "batch", "law", "n_max", "row_id").with_columns(
                pl.lit("law").alias("kind"), pl.col("n_max").cast(pl.Float64)
            ),
        ],
        how="diagonal_relaxed",
    )
    laws = sorted(lines["law"].unique())
    tooltip = [
        alt.Tooltip("batch:O", title="b"),
        alt.Tooltip("n_max:Q", title="N_max", format=".2f"),
        alt.Tooltip("row_id:N", title="row"),
    ]
    layers = alt.layer(
        chart.mark_line(point=alt.OverlayMarkDef(size=18))
        .transform_filter("datum.kind == 'law'")
        .encode(
            x=x,
            y=y,
            tooltip=tooltip,
            color=alt.Color(
                "law:N",
                title="prediction",
                scale=alt.Scale(domain=laws, range=list(PALETTE[2 : 2 + len(laws)])),
                legend=alt.Legend(orient="bottom", columns=1, symbolType="stroke"),
            ),
        ),
        chart.mark_rule(strokeWidth=2, color=MEASURED)
        .transform_filter("datum.kind == 'point' && isValid(datum.n_low)")
        .encode(x=x, y=alt.Y("n_low:Q"), y2="n_high:Q"),
        chart.mark_point(filled=True, size=80, opacity=1)
        .transform_filter("datum.kind == 'point'")
        .encode(
            x=x,
            y=y,
            tooltip=tooltip,
            shape=alt.Shape(
                "origin:N",
                title="boundary",
                scale=alt.Scale(domain=["measured", "published"], range=["circle", "diamond"]),
                legend=alt.Legend(orient="bottom"),
            ),
            fill=alt.Fill(
                "origin:N",
                scale=alt.Scale(domain=["measured", "published"], range=[MEASURED, PUBLISHED]),
                legend=alt.Legend(orient="bottom", title="boundary"),
            ),
        ),
        data=data,
    ).properties(**PANEL)
    drawn = layers.facet(facet=alt.Facet("panel:N", title=None), columns=2).resolve_scale(
        x="independent"
    )
    return dressed(
        drawn,
        f"N_max against batch, dense FFN, tolerance {epsilon:.0%}",
        "Bars: the boundary's 95 % interval, for measured curves. Lines: predictions.",
    )
