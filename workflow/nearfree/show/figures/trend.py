"""Figures over time: rho and the dense boundary by year, N_max by version of a backend."""

from collections.abc import Iterable, Iterator
from typing import Any

import altair as alt
import polars as pl

from nearfree.core.label import label
from nearfree.core.modules.attention import M_ATTN
from nearfree.core.modules.dense_ffn import IDLE
from nearfree.derive.outlook.trend import DTYPES, PAPER
from nearfree.show.figures.listing import OUTLOOK, Drawing, drawing
from nearfree.show.figures.panels import in_rows, panel
from nearfree.show.figures.theme import PALETTE, SPACED, THEORY, keyed, of_kind, styled, tooltip

_RHO = "balance point rho, FLOP/byte"
_PANEL = {"width": 1000, "height": 340}
_NEAR = 1.24
"""Values of one year within this factor, the height of a line of text, share a label."""
_NAMED, _CHARACTERS = 2, 23
"""Most GPUs and most characters in a label; more would reach the marks of the next year."""
_ROOM = 1.4
"""Factor by which the axis extends beyond its marks."""
_YEARS_SIDEWAYS = 0.04
"""Horizontal offset between the marks of M_attn, in years."""
_COLUMNS = ("panel", "kind", "x", "year", "y", "series", "group", "label", "platform", "rule",
            "row_id")  # fmt: skip


def trend_drawings(trend: pl.DataFrame) -> Iterator[Drawing]:
    """Yield the figure of the table `trend`, none if no row has both a year and a value."""
    dated = _dated(trend)
    if not dated.is_empty():
        caption = "Balance point and dense boundary of GPUs over the years, beside M_attn."
        yield drawing(trend_over_years, (trend,), "trend", caption, dated, about=OUTLOOK)


def trend_over_years(trend: pl.DataFrame) -> alt.FacetChart:
    """Return rho, and rho s / 2 b with M_attn, against the year, one panel per batch.

    Parameters
    ----------
    trend
        Rows of this table; GPUs without a year are named in the subtitle only.
    """
    dated = _dated(trend)
    points = _points(dated)
    tiles = _tiles(dated)
    data = pl.concat([points, _labels(points), tiles], how="diagonal_relaxed")
    years = sorted(dated["year"].unique())
    x = alt.X(
        "x:Q",
        title="year",
        scale=alt.Scale(domain=[years[0] - 0.5, years[-1] + 1.2], nice=False),
        axis=alt.Axis(values=years, format="d"),
    )
    values = data["y"].drop_nulls()
    ends = [min(values) / _ROOM, max(values) * _ROOM]
    y = alt.Y(
        "y:Q",
        title=None,  # each panel has its own title
        scale=alt.Scale(type="log", base=2, domain=ends, nice=False),
        axis=alt.Axis(values=[2**k for k in range(12)], format="~g"),
    )
    series = [*DTYPES, *sorted(tiles["series"].unique().drop_nulls())]
    colours = dict(zip(series, PALETTE, strict=False))
    colour = keyed(alt.Color, "series:N", colours, title=None, columns=3, symbolType="circle")
    groups = tiles["group"].drop_nulls().unique().sort()
    shapes = dict(zip(groups, ("triangle-up", "diamond", "square", "cross"), strict=False))
    shape = keyed(alt.Shape, "group:N", shapes, title=None)
    marks = [alt.Tooltip(f"{name}:N") for name in ("series", "platform", "rule", "row_id")]
    value = alt.Tooltip("y:Q", title="value", format=".1f")
    gpus = of_kind("gpu")
    layers = alt.layer(
        of_kind("paper").mark_rule(strokeDash=[5, 4], color=THEORY).encode(y=y),
        of_kind("tile")
        .mark_point(size=32, filled=True, opacity=0.9)
        .encode(x=x, y=y, color=colour, shape=shape, tooltip=[*marks, value]),
        gpus.transform_filter(f"datum.series == '{DTYPES[0]}'")
        .mark_circle(size=60, opacity=0.9)
        .encode(x=x, y=y, color=colour, tooltip=[*marks, value]),
        gpus.transform_filter(f"datum.series != '{DTYPES[0]}'")
        .mark_point(size=130, filled=False, strokeWidth=1.6)
        .encode(x=x, y=y, color=colour, tooltip=[*marks, value]),
        of_kind("label")
        .mark_text(align="left", dx=10, fontSize=10)
        .encode(x=x, y=y, text="label:N"),
        data=data,
    )
    panels = points["panel"].unique(maintain_order=True).to_list()
    header = alt.Header(
        labelFontSize=12, labelAngle=-90, labelOrient="left", labelFontWeight="bold"
    )
    facets: alt.FacetChart = layers.properties(**_PANEL).facet(
        row=alt.Row("panel:N", title=None, sort=panels, header=header)
    )
    return styled(
        facets.resolve_axis(x="independent"),
        "rho and the dense boundary over years",
        _subtitle(trend),
    )


def _dated(trend: pl.DataFrame) -> pl.DataFrame:
    return trend.drop_nulls(["year", "n_max"])


def _subtitle(trend: pl.DataFrame) -> str:
    undated = trend.filter(pl.col("year").is_null())["platform"].unique().sort().to_list()
    without = f" Without a year, left out: {', '.join(undated)}." if undated else ""
    return (
        "Filled: bfloat16; open: float8. Dashed: M_attn as printed. Small marks: M_attn as "
        "releases resolve it, 32 heads, L = 4096, g query heads to a key-value head."
        f"{without}"
    )


def _points(dated: pl.DataFrame) -> pl.DataFrame:
    """Return one mark per GPU and element type for rho, and one per batch for the boundary."""
    dense = dated.filter(pl.col("term") == IDLE).sort("batch", "year", "platform")
    marks = dense.with_columns(
        pl.col("dtype").alias("series"),
        pl.lit("gpu").alias("kind"),
        pl.col("year").cast(pl.Float64).alias("x"),
    )
    rho = marks.unique(["platform", "dtype"], keep="first", maintain_order=True).with_columns(
        pl.lit(_RHO).alias("panel"), pl.col("balance_flop_per_byte").alias("y")
    )
    bound = marks.with_columns(_panel().alias("panel"), pl.col("n_max").alias("y"))
    names = [name for name in _COLUMNS if name in rho.columns]
    return pl.concat([rho.select(names), bound.select(names)])


def _panel() -> pl.Expr:
    return pl.format("dense boundary {}, b = {}, positions N", pl.lit(IDLE), "batch")


def _labels(points: pl.DataFrame) -> pl.DataFrame:
    """Return labels with the names of GPUs of one element type; near marks share a label."""
    marks = points.filter(pl.col("series") == DTYPES[0]).sort("panel", "x", "y", "platform")
    starts_cluster = pl.col("y") > _NEAR * pl.col("y").shift(1).over("panel", "x")
    return (
        marks.with_columns(starts_cluster.fill_null(value=True).cum_sum().alias("cluster"))
        .group_by("panel", "x", "cluster", maintain_order=True)
        .agg(pl.col("platform").str.replace_all("_", " "), pl.col("y").mean())
        .with_columns(
            pl.col("platform").map_elements(_label, return_dtype=pl.String).alias("label")
        )
        .select("panel", "x", "y", "label", pl.lit("label").alias("kind"))
    )


def _label(names: Iterable[str]) -> str:
    """Return the first two names, or else the shortest that fit, and the number of the others."""
    named, text = list(names), ""
    shortest = sorted(named, key=len)
    for chosen in (named[:_NAMED], shortest[:_NAMED], shortest[:1]):
        others = len(named) - len(chosen)
        text = ", ".join(chosen) + (f" +{others}" if others else "")
        if len(text) <= _CHARACTERS:
            break
    return text


def _tiles(dated: pl.DataFrame) -> pl.DataFrame:
    """Return M_attn: the paper's for each batch, and those of releases for each year."""
    tiles = dated.filter(pl.col("term") == M_ATTN).with_columns(
        _panel().alias("panel"), pl.col("n_max").alias("y")
    )
    paper = (
        tiles.filter(reference=PAPER)
        .unique(["panel", "y"], keep="first", maintain_order=True)
        .select("panel", "y", pl.lit("paper").alias("kind"))
    )
    releases = tiles.filter(pl.col("reference") != PAPER)
    series = releases.select("reference", "query_group").unique().sort("reference", "query_group")
    shifts = series.with_row_index("place").with_columns(
        (-_YEARS_SIDEWAYS * (pl.col("place").cast(pl.Float64) + 1.5)).alias("shift")
    )
    resolved = (
        releases.join(shifts, on=["reference", "query_group"], how="left")
        .sort("panel", "year", "place", "y", "platform")
        .group_by("panel", "year", "place", "y", maintain_order=True)
        .agg(
            (pl.col("year") + pl.col("shift")).first().alias("x"),
            pl.col("reference").first().alias("series"),
            pl.format("g = {}", "query_group").first().alias("group"),
            pl.col("platform").unique(maintain_order=True).str.join(", "),
            pl.col("rule", "row_id").first(),
        )
        .with_columns(pl.lit("tile").alias("kind"))
        .drop("place")
    )
    return pl.concat([paper, resolved], how="diagonal_relaxed")


VERSION_LAWS = {"n_max_resolved": "principle_resolved", "n_max_work": "work_model"}
"""The predictors that are drawn, by column."""
_OCTAVES_UPWARDS = 0.07
"""Vertical offset between platforms, in octaves."""
_KEY = ("model", "package", "setting_key")


def drift_drawings(drift: pl.DataFrame) -> Iterator[Drawing]:
    """Yield the figure of `version_drift`, none if no package has two versions."""
    answers = _answers(drift)
    if not answers.is_empty():
        caption = (
            "N_max of layers and calls over the recorded versions of each backend. "
            "Predicted, not measured."
        )
        distinct = answers.unique("row_id", maintain_order=True)
        yield drawing(
            nmax_over_versions, (drift,), "version_drift", caption, distinct, about=OUTLOOK
        )


def nmax_over_versions(drift: pl.DataFrame) -> alt.FacetChart:
    """Return N_max by version, a panel per setting and package, a line per platform and predictor.

    Parameters
    ----------
    drift
        Rows of `version_drift`; a package with one version is not drawn.
    """
    answers = _answers(drift)
    platforms = sorted(answers["platform"].unique())
    offset = pl.col("platform").replace_strict(
        {name: 2.0 ** (_OCTAVES_UPWARDS * index) for index, name in enumerate(platforms)},
        return_dtype=pl.Float64,
    )
    data = answers.with_columns((pl.col("n_max") * offset).alias("y"), pl.lit("line").alias("kind"))
    order = data.select("package", "place", "version").unique().sort("package", "place")
    versions = order["version"].unique(maintain_order=True).to_list()
    chart = alt.Chart().encode(
        x=alt.X("version:N", title=None, sort=versions, axis=alt.Axis(labelAngle=-40)),
        y=alt.Y(
            "y:Q",
            title="N_max, positions",
            scale=alt.Scale(type="log", base=2),
            axis=alt.Axis(values=[2**k for k in range(13)], format="~g"),
        ),
        color=keyed(
            alt.Color, "platform:N", dict(zip(platforms, PALETTE, strict=False)), title=None
        ),
        tooltip=tooltip(
            "platform:N",
            "predictor:N",
            "n_max:Q",
            ("change:N", "change from the previous version"),
            "rule:N",
        ),
    )
    layers = alt.layer(
        chart.mark_line(opacity=0.8).encode(
            strokeDash=keyed(
                alt.StrokeDash,
                "predictor:N",
                dict(zip(VERSION_LAWS.values(), ([1, 0], [5, 3]), strict=True)),
                title=None,
                symbolType="stroke",
                labelExpr=SPACED,
            )
        ),
        chart.mark_point(size=32, filled=True, opacity=0.9),
        data=data.drop("setting_key", "model", "package", "place"),
    )
    return styled(
        in_rows(layers, data).resolve_scale(x="independent"),
        "N_max over the versions of a backend",
        "Predicted, not measured. Solid: principle resolved. "
        f"Dashed: work model, tolerance {drift['epsilon'][0]:.0%}, up "
        f"to N = {drift['grid_end'][0]}. Platforms are offset upwards. Refused and unbounded "
        "predictions have no mark, packages with one version no panel.",
    )


def _answers(drift: pl.DataFrame) -> pl.DataFrame:
    """Return one row per predicted value, of packages with at least two versions."""
    with_versions = drift.filter(pl.col("version").n_unique().over(*_KEY) > 1)
    settings = [_setting(row) for row in with_versions.to_dicts()]
    return (
        with_versions.with_columns(pl.Series("setting", settings, dtype=pl.String))
        .with_columns(panel("setting", "package"))
        .rename(VERSION_LAWS)
        .unpivot(
            list(VERSION_LAWS.values()),
            index=[*_KEY, "panel", "platform", "version", "place", "rule", "change", "row_id"],
            variable_name="predictor",
            value_name="n_max",
        )
        .drop_nulls("n_max")
        .sort("panel", "platform", "predictor", "place")
    )


def _setting(row: dict[str, Any]) -> str:
    """Return a short label of a row's setting."""
    if row["experts"] is None:
        return f"{row['model']}, {row['heads']} / {row['kv_heads']} heads"
    return label(row, ("model", "experts", "top_k", "routing"))
