"""Predictions against boundaries: N_max, shares of hits and errors, also on imported curves."""

from collections.abc import Iterator

import altair as alt
import polars as pl
from packaging.version import InvalidVersion, Version

from nearfree.show.figures.listing import Drawing, drawing
from nearfree.show.figures.panels import in_rows, joined, panel
from nearfree.show.figures.theme import (
    BAND,
    by_end,
    of_kind,
    order_of,
    predictors,
    rank,
    styled,
    tooltip,
)

SHARES = {
    "answered": "answered",
    "hit": "hit",
    "within_1_31": "within x1.31",
    "within_2": "within x2",
    "covered": "interval holds it",
}
"""The names of shares, by column."""
OF_INTERVALS = f'"{SHARES["covered"]}": of stated intervals.'
"""The denominator of the last share."""
_OCTAVES_SIDEWAYS = 0.12
"""Horizontal offset between predictors of one setting, in octaves."""
_DECADES = [2**k for k in range(16)]


def with_places(validation: pl.DataFrame, epsilon: float) -> pl.DataFrame:
    """Return the rows at a tolerance with `place`: platform, origin and basis of facts."""
    return (
        validation.filter(pl.col("epsilon") == epsilon)
        .with_columns(
            pl.format(
                "{} ({}), {}", "platform", "origin", pl.col("basis").fill_null("no facts")
            ).str.replace_all("_", " ").alias("place")
        )
        .sort("place", "module", "predictor", "setting_key")
    )  # fmt: skip


def origins_of(rows: pl.DataFrame) -> str:
    """Return the origins of the boundaries of some rows: measured, published, or both."""
    return " or ".join(rows["origin"].unique().sort())


def predicted_against_measured(validation: pl.DataFrame, epsilon: float) -> alt.FacetChart:
    """Return predicted against measured N_max, one panel per place and module."""
    placed = with_places(validation, epsilon).with_columns(
        panel("module", "place"), rank().alias("order")
    )
    position = pl.col("order").rank("dense").over("panel")
    predictor_count = pl.col("order").n_unique().over("panel")
    placed = placed.with_columns((position - (predictor_count + 1) / 2).alias("shift"))
    top = 2.0 * max(
        [*placed["n_max"], *placed["predicted"].drop_nulls(), *placed["high"].drop_nulls()]
    )
    answers = placed.filter("answered").select(
        *("panel", "predictor", "n_max", "low", "high", "hit", "setting_key", "row_id"),
        (pl.col("n_max") * 2 ** (_OCTAVES_SIDEWAYS * pl.col("shift"))).alias("x"),
        pl.when("unbounded").then(top).otherwise("predicted").alias("y"),
        pl.when("unbounded").then(pl.lit("unbounded")).otherwise(pl.lit("bounded")).alias("end"),
        pl.lit("prediction").alias("kind"),
    )
    band = placed.select(
        *("panel", pl.col("n_max").cast(pl.Float64).alias("x")),
        pl.col("n_max").cast(pl.Float64).alias("low"),
        pl.col("next_n").cast(pl.Float64).fill_null(2 * top).alias("high"),
        pl.lit("band").alias("kind"),
    ).unique(maintain_order=True)
    scale = alt.Scale(type="log", base=2, domain=[0.5, 2 * top], clamp=True)
    axis = alt.Axis(values=_DECADES, format="~g", labelOverlap="greedy")
    x = alt.X("x:Q", title=f"{origins_of(placed)} N_max", scale=scale, axis=axis)
    y = alt.Y("y:Q", title="predicted N_max", scale=scale, axis=axis)
    hover = tooltip(
        "predictor:N",
        "setting_key:N",
        ("n_max:Q", origins_of(placed)),
        ("y:Q", "predicted", ".2f"),
        "hit:N",
    )
    points = of_kind("prediction")
    colour = predictors(answers["predictor"])
    layers = alt.layer(
        of_kind("band")
        .mark_rule(strokeWidth=9, opacity=0.25, color=BAND)
        .encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        points.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.5, opacity=0.5)
        .encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour),
        points.mark_point(size=36, filled=True, opacity=0.8).encode(
            x=x,
            y=y,
            color=colour,
            shape=by_end("bounded", "unbounded"),
            tooltip=hover,
        ),
        data=pl.concat([answers, band], how="diagonal"),
    )
    return styled(
        in_rows(layers, placed),
        f"Predicted against {origins_of(placed)} N_max, tolerance {epsilon:.0%}",
        "Green: from N_max to the next N of the grid, where a prediction is a hit. Bars: the work "
        "model's interval. Triangle: unbounded. Predictors of one setting are offset sideways.",
    )


def shares_of(validation: pl.DataFrame, epsilon: float) -> pl.DataFrame:
    """Return the shares of rows of `validation`: panel, predictor, what, share, settings."""
    placed = with_places(validation, epsilon).with_columns(panel("module", "place"))
    return (
        placed.group_by("panel", "predictor", maintain_order=True)
        .agg(pl.len().alias("settings"), *(pl.col(name).mean() for name in SHARES))
        .pipe(_long, SHARES)
    )


def _long(groups: pl.DataFrame, shares: dict[str, str]) -> pl.DataFrame:
    """Return one row per known share, with its name as `what`."""
    index = ["panel", "predictor", "settings"]
    return (
        groups.rename(shares)
        .unpivot(list(shares.values()), index=index, variable_name="what", value_name="share")
        .drop_nulls("share")
    )


def share_bars(shares: pl.DataFrame, title: str, subtitle: str) -> alt.FacetChart:
    """Return bars of shares, one panel per module and place.

    Parameters
    ----------
    shares
        panel, predictor, what (values of SHARES), share, settings.
    """
    names = order_of(shares["predictor"])
    bars = alt.Chart().mark_bar().encode(
        x=alt.X("what:N", title=None, sort=list(SHARES.values()), axis=alt.Axis(labelAngle=-30)),
        xOffset=alt.XOffset("predictor:N", sort=names),
        y=alt.Y("share:Q", title="share of settings", scale=alt.Scale(domain=[0, 1])),
        color=predictors(shares["predictor"]),
        tooltip=[
            alt.Tooltip("predictor:N"),
            alt.Tooltip("what:N"),
            alt.Tooltip("share:Q", format=".3f"),
            alt.Tooltip("settings:Q"),
        ],
    )  # fmt: skip
    return styled(in_rows(alt.layer(bars, data=shares), shares), title, subtitle)


def error_by_backend(validation: pl.DataFrame, epsilon: float) -> alt.FacetChart:
    """Return the error of each prediction in doublings, one panel per module and backend."""
    placed = (
        with_places(validation, epsilon)
        .filter(pl.col("log2_error").is_not_null())
        .with_columns(panel(joined("module", "backend"), "place"))
        .sort("panel", maintain_order=True)
    )
    origins = origins_of(placed)
    placed = placed.select(
        *("panel", "predictor", "log2_error", "setting_key", "n_max", "predicted", "row_id")
    )
    names = order_of(placed["predictor"])
    chart = alt.Chart().encode(
        x=alt.X("predictor:N", title=None, sort=names, axis=alt.Axis(labels=False, ticks=False))
    )
    y = alt.Y("log2_error:Q", title="error, doublings")
    layers = alt.layer(
        chart.mark_rule(color="black", strokeWidth=0.5).encode(y=alt.datum(0)),
        chart.mark_point(size=50, filled=True, opacity=0.35).encode(
            y=y,
            color=predictors(placed["predictor"]),
            tooltip=tooltip("predictor:N", "setting_key:N", ("n_max:Q", origins), "predicted:Q"),
        ),
        chart.mark_tick(color="black", thickness=2, size=22).encode(
            y=alt.Y("median(log2_error):Q", title="error, doublings")
        ),
        data=placed,
    )
    return styled(
        in_rows(layers, placed),
        f"Error by backend and version, tolerance {epsilon:.0%}",
        [
            f"Doublings from a prediction to {origins} [N_max, next N), 0 inside. Tick: median.",
            "Without refused and undecided settings, and unbounded predictions of bounded N_max.",
        ],
    )


_SHARES = {
    "answered_share": SHARES["answered"],
    "hit_share": SHARES["hit"],
    "within_1_31": SHARES["within_1_31"],
    "within_2": SHARES["within_2"],
    "interval_coverage": SHARES["covered"],
}
_ROUTED = joined("module", "routing", separator=" ")


def imported_drawings(accuracy: pl.DataFrame, drift: pl.DataFrame) -> Iterator[Drawing]:
    """Yield the figures of the tables `accuracy` and `drift`."""
    scores = accuracy.filter(pl.col("settings") > 0)
    unseen = scores.filter(~pl.col("seen"), grouping="module")
    if not unseen.is_empty():
        title = "Shares of hits on imported curves, unseen GPUs"
        subtitle = (
            "Of all measured settings: refused ones are misses. twin version: the curve of another "
            f"version, where there is one. {OF_INTERVALS}"
        )
        answered = (pl.col("answered") / pl.col("settings")).alias("answered_share")
        panelled = unseen.with_columns(panel(_ROUTED, pl.lit("unseen GPUs")), answered)
        shares = _long(panelled.drop("answered"), _SHARES).sort("panel", maintain_order=True)
        arguments = (shares, title, subtitle)
        caption = "Imported curves: shares of hits on GPUs without calibrated constants."
        yield drawing(share_bars, arguments, "imported_shares", caption, unseen)
    with_error = scores.filter(pl.col("t_ratio_error").is_not_null(), grouping="version")
    if not with_error.is_empty():
        caption = "Imported curves: median error of T(N) / T(baseline) by version of the backend."
        yield drawing(
            error_by_version, (with_error,), "imported_error_by_version", caption, with_error
        )
    for module in sorted(drift["module"].unique()):
        module_drift = drift.filter(module=module)
        name = f"imported_drift_{module}"
        caption = f"Imported curves: N_max of {module} with one version against another version's."
        yield drawing(drift_between_versions, (module_drift,), name, caption, module_drift)


def error_by_version(timed: pl.DataFrame) -> alt.FacetChart:
    """Return the median error of T(N) by version, one panel per module, routing and platform.

    Parameters
    ----------
    timed
        Rows of `accuracy` by version that have a `t_ratio_error`.
    """
    points = timed.with_columns(
        panel(_ROUTED, "platform"),
        pl.format("{} {}", "backend", pl.col("backend_version").fill_null("?")).alias("version"),
    ).sort("panel", "version", "predictor")
    releases = points.select("backend", "backend_version", "version").unique().rows()
    order = [version for *_, version in sorted(releases, key=_by_release)]
    marks = alt.Chart().mark_point(size=60, filled=True, opacity=0.9).encode(
        x=alt.X("version:N", title=None, sort=order, axis=alt.Axis(labelAngle=-40)),
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
        "Median over N up to 4 N_max and over measured settings. twin version: error of another "
        "version's curve.",
    )


def _by_release(release: tuple[str, str | None, str]) -> tuple[str, Version, str]:
    """Return the sort key of a backend's release; an invalid version comes first."""
    backend, version, text = release
    try:
        return backend, Version(version or ""), text
    except InvalidVersion:
        return backend, _NO_VERSION, text


_NO_VERSION = Version("0.dev0")


def drift_between_versions(drift: pl.DataFrame) -> alt.FacetChart:
    """Return N_max of one version against another version's, a panel per platform and backend.

    Parameters
    ----------
    drift
        Rows of `drift` of one module.
    """
    panels = drift.with_columns(panel("platform", "backend"), pl.lit("pair").alias("kind")).sort(
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
    layers = alt.layer(
        of_kind("same").mark_line(color="black", strokeWidth=0.7).encode(x=x, y=y),
        of_kind("pair")
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
        f"Drift of N_max between versions, {drift['module'][0]}, imported curves",
        f"The same measured settings with two versions of a backend, tolerance "
        f"{drift['epsilon'][0]:.0%}; on the line nothing changed.",
    )
