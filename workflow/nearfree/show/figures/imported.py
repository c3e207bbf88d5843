"""Figures of imported curves: shares, errors by version, and drift between versions."""

from collections.abc import Iterator

import altair as alt
import polars as pl

from nearfree.show.figures.listing import Drawing, drawing
from nearfree.show.figures.panels import in_rows, joined, panel
from nearfree.show.figures.predicted import SHARES, share_bars
from nearfree.show.figures.theme import predictors, styled, tooltip

_SHARES = {
    "answered_share": SHARES["answered"],
    "hit_share": SHARES["hit"],
    "within_1_31": SHARES["within_1_31"],
    "within_2": SHARES["within_2"],
    "interval_coverage": SHARES["covered"],
}
_ROUTED = joined("module", "routing", by=" ")


def imported_drawings(accuracy: pl.DataFrame, drift: pl.DataFrame) -> Iterator[Drawing]:
    """Yield the figures of the tables `accuracy` and `drift`.

    Parameters
    ----------
    accuracy, drift
        Rows of those tables.
    """
    scores = accuracy.filter(pl.col("settings") > 0)
    unseen = scores.filter(~pl.col("seen"), grouping="module")
    if not unseen.is_empty():
        title = "Shares of hits on imported curves, unseen GPUs"
        subtitle = (
            "Of all measured settings: what is refused is a miss. twin version: another "
            "version's curve, where there is one."
        )
        arguments = (_shares(unseen), title, subtitle)
        caption = "Imported curves: shares of hits on GPUs that nothing was calibrated on."
        yield drawing(share_bars, arguments, "imported_shares", caption, unseen)
    timed = scores.filter(pl.col("t_ratio_error").is_not_null(), grouping="version")
    if not timed.is_empty():
        caption = "Imported curves: median error of T(N) / T(baseline) by version of the backend."
        yield drawing(error_by_version, (timed,), "imported_error_by_version", caption, timed)
    for module in sorted(drift["module"].unique()):
        moved = drift.filter(module=module)
        name = f"imported_drift_{module}"
        caption = f"Imported curves: N_max of {module} with one version against another version's."
        yield drawing(drift_between_versions, (moved,), name, caption, moved)


def _shares(groups: pl.DataFrame) -> pl.DataFrame:
    return (
        groups.with_columns(
            panel(_ROUTED, pl.lit("unseen GPUs")),
            (pl.col("answered") / pl.col("settings")).alias("answered_share"),
        )
        .drop("answered")
        .rename(_SHARES)
        .unpivot(
            list(_SHARES.values()),
            index=["panel", "predictor", "settings"],
            variable_name="what",
            value_name="share",
        )
        .drop_nulls("share")
        .sort("panel", maintain_order=True)
    )


def error_by_version(timed: pl.DataFrame) -> alt.FacetChart:
    """Return the median error of T(N) by version, a panel a module, routing and platform.

    Parameters
    ----------
    timed
        Rows of `accuracy` by version that have a `t_ratio_error`.
    """
    points = timed.with_columns(
        panel(_ROUTED, "platform"),
        pl.format("{} {}", "backend", pl.col("backend_version").fill_null("?")).alias("version"),
    ).sort("panel", "version", "predictor")
    marks = alt.Chart().mark_point(size=60, filled=True, opacity=0.9).encode(
        x=alt.X("version:N", title=None, axis=alt.Axis(labelAngle=-40)),
        y=alt.Y("t_ratio_error:Q", title="median error of T(N)", axis=alt.Axis(format=".0%")),
        color=predictors(points["predictor"]),
        tooltip=tooltip("predictor:N", "version:N", "t_ratio_error:Q", "hit_share:Q", "settings:Q"),
    )  # fmt: skip
    columns = ("panel", "version", "predictor", "t_ratio_error", "hit_share", "settings", "row_id")
    return styled(
        in_rows(alt.layer(marks, data=points.select(columns)), points).resolve_scale(
            x="independent"
        ),
        "Error of T(N) / T(baseline) by version, imported curves",
        "Median over N up to 4 N_max and over measured settings. twin version: what another "
        "version's curve is off by.",
    )


def drift_between_versions(moved: pl.DataFrame) -> alt.FacetChart:
    """Return N_max with one version against another version's, a panel a platform and backend.

    Parameters
    ----------
    moved
        Rows of `drift` of one module.
    """
    panels = moved.with_columns(panel("platform", "backend"), pl.lit("pair").alias("kind")).sort(
        "panel", "other_n_max", "n_max"
    )
    pairs = panels.select("panel", "other_n_max", "n_max", "settings", "backend_version",
                          "other_backend", "other_version", "row_id", "kind")  # fmt: skip
    top = float(max(*pairs["n_max"], *pairs["other_n_max"]))
    line = pairs.select("panel").unique(maintain_order=True).join(
        pl.DataFrame({"other_n_max": [1, int(top)]}), how="cross"
    ).with_columns(pl.col("other_n_max").alias("n_max"), pl.lit("same").alias("kind"))  # fmt: skip
    scale = alt.Scale(type="log", base=2, domain=[1, max(top, 2.0)])
    axis = alt.Axis(format="~g", labelOverlap="greedy")
    x = alt.X("other_n_max:Q", title="N_max, other version", scale=scale, axis=axis)
    y = alt.Y("n_max:Q", title="N_max, this version", scale=scale, axis=axis)
    chart = alt.Chart()
    layers = alt.layer(
        chart.transform_filter("datum.kind == 'same'")
        .mark_line(color="black", strokeWidth=0.7)
        .encode(x=x, y=y),
        chart.transform_filter("datum.kind == 'pair'")
        .mark_point(filled=True, opacity=0.5)
        .encode(
            x=x,
            y=y,
            size=alt.Size("settings:Q", legend=alt.Legend(orient="bottom", title="settings")),
            tooltip=tooltip(
                ("backend_version:N", "this version"),
                "other_backend:N",
                "other_version:N",
                "n_max:Q",
                "other_n_max:Q",
                "settings:Q",
            ),
        ),
        data=pl.concat([pairs, line], how="diagonal_relaxed"),
    )
    return styled(
        in_rows(layers, pairs),
        f"Drift of N_max between versions, {moved['module'][0]}, imported curves",
        f"The same measured settings with two versions of a backend, tolerance "
        f"{moved['epsilon'][0]:.0%}; on the line nothing moved.",
    )
