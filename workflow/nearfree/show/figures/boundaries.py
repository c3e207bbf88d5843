"""N_max of modules: against their own variable with predictions, and over tolerances.

The second panels and the tables of tolerances of the paper's appendices D to F.
"""

from itertools import cycle

import altair as alt
import polars as pl

from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.panels import in_rows, panel, with_platform_panels
from nearfree.show.figures.theme import (
    LAWS,
    MEASURED,
    PUBLISHED,
    Line,
    Look,
    lines_by,
    looks,
    of_kind,
    own_values,
    styled,
    tooltip,
)

BASES = {
    "datasheet": "datasheet phi and beta",
    "probed_stream": "probed, beta by streaming",
    "probed_gemm": "probed, beta by weight traffic",
    "none": "no facts of the platform",
}
"""The name of each basis of hardware facts."""
DASHES = dict(zip(BASES.values(), ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2]), strict=True))
ORIGINS = {
    "measured": ("circle", MEASURED),
    "published": ("diamond", PUBLISHED),
    "imported": ("triangle-up", "#333333"),
    "simulated": ("square", "#777777"),
}
"""Shape and colour of boundaries by origin; boundaries from N = 1 are hollow."""
_SERIES = {
    **{name: (shape, colour, colour) for name, (shape, colour) in ORIGINS.items()},
    **{f"{name}, from N = 1": (shape, "white", c) for name, (shape, c) in ORIGINS.items()},
}
"""Shape, fill and stroke of each series."""
_DARK = 0.43
"""The share of the colour scale, in octaves, on which white text is easier to read than black."""


def printed(boundaries: pl.DataFrame) -> str:
    """Return the platforms whose boundaries the paper prints, as text; empty without any."""
    names = boundaries.filter(pl.col("origin") == "published")["platform"].unique().sort()
    return " and ".join(name.upper() for name in names)


def laws(predictions: pl.DataFrame, boundaries: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return the points of each law's line; laws that agree in all points of a panel are merged.

    Parameters
    ----------
    boundaries
        The rows that are drawn, with their `panel`; predictions go to the panel of their setting.
    """
    panels_by_setting = boundaries.select("platform", "origin", "setting_key", "panel").unique()
    answered = (
        predictions.drop_nulls("n_max")
        .join(panels_by_setting, on=["platform", "origin", "setting_key"])
        .with_columns(
            pl.col(module.own).alias("own"),
            pl.col("basis").fill_null("none").replace(BASES).alias("facts"),
        )
        .sort("panel", "facts", "predictor", "own", "row_id")
    )
    lines = answered.group_by("panel", "facts", "predictor", maintain_order=True).agg(
        "own", "n_max", "row_id"
    )
    merged = lines.group_by("panel", "facts", "own", "n_max", maintain_order=True).agg(
        pl.col("predictor").str.replace_all("_", " ").str.join(" = ").alias("law"),
        pl.col("row_id").first(),
    )
    return merged.select(
        *("panel", "law", "facts", "own", "n_max", "row_id"),
        pl.format("{}, {}", "law", "facts").alias("line"),
        pl.lit("law").alias("kind"),
    ).explode("own", "n_max", "row_id")


def readings(boundaries: pl.DataFrame) -> pl.DataFrame:
    """Return each boundary from its baseline and, where known, from N = 1, marked by `from_one`.

    Both rows keep the boundary's `row_id`.
    """
    from_one = boundaries.drop_nulls("n_max_from_1").with_columns(
        pl.lit(1, dtype=pl.Int64).alias("baseline"),
        *(pl.col(f"{name}_from_1").alias(name) for name in ("n_max", "n_low", "n_high")),
        pl.lit(value=True).alias("from_one"),
    )
    return pl.concat([boundaries.with_columns(pl.lit(value=False).alias("from_one")), from_one])


def nmax_against_own(
    boundaries: pl.DataFrame, predictions: pl.DataFrame, epsilon: float, module: ModuleKind
) -> alt.FacetChart:
    """Return measured and published N_max with predictions, one panel per platform and variant.

    Parameters
    ----------
    boundaries, predictions
        Rows of these tables for one module, of one or more platforms.
    """
    variable = module.own
    drawn = boundaries.filter("newest", pl.col("epsilon") == epsilon)
    drawn = (
        with_platform_panels(readings(drawn), module)
        .with_columns(
            pl.col(variable).alias("own"),
            pl.when("from_one")
            .then(pl.format("{}, from N = 1", "origin"))
            .otherwise("origin")
            .alias("series"),
        )
        .sort("origin", "panel", "own", "from_one")
    )
    lines = laws(predictions.filter(pl.col("epsilon") == epsilon), drawn, module)
    points = drawn.select(
        *("panel", "own", "n_max", "n_low", "n_high", "verdict", "series", "row_id"),
        _at_end().alias("at_end"),
        pl.lit("point").alias("kind"),
    )
    top = max([*points["n_max"], *lines["n_max"], 1])
    x = own_values(f"{module.variable} {module.letter}", drawn["own"])
    y = alt.Y(
        "n_max:Q",
        title="N_max, positions",
        scale=alt.Scale(type="log", base=2, nice=True, domain=[0.5, 4 * top]),
        axis=alt.Axis(format="~g"),
    )
    hover = tooltip(("own:O", module.letter), ("n_max:Q", "N_max", ".2f"), "verdict:N")
    of_points = of_kind("point")
    of_laws = of_kind("law").mark_line(point=alt.OverlayMarkDef(size=18))
    line_channels = lines_by("line:N", "prediction", _law_lines(lines), lines["line"], columns=1)
    law_lines = of_laws.encode(x=x, y=y, tooltip=hover, **line_channels)
    layers = alt.layer(
        *([] if lines.is_empty() else [law_lines]),
        of_points.transform_filter("isValid(datum.n_low)")
        .mark_rule(strokeWidth=2, color=MEASURED)
        .encode(x=x, y=alt.Y("n_low:Q"), y2="n_high:Q"),
        of_points.mark_point(size=80, opacity=1, strokeWidth=1.5).encode(
            x=x, y=y, tooltip=hover, **_look(points)
        ),
        of_points.transform_filter("datum.at_end")
        .mark_text(text="\u2191", dy=-13, fontSize=13)
        .encode(x=x, y=y),
        data=pl.concat([points, lines], how="diagonal_relaxed"),
    )
    return styled(
        in_rows(layers, drawn).resolve_scale(x="independent"),
        f"N_max against {module.variable}, {module.title}, tolerance {epsilon:.0%}",
        "Bars: the boundary's 95 % interval, for measured curves. Lines: predictions. "
        "Arrow: the grid of N ends there.",
    )


def _at_end() -> pl.Expr:
    """Return whether the grid ends at a boundary from the baseline; from N = 1 it is unknown."""
    return pl.col("next_n").is_null() & ~pl.col("from_one")


def _look(points: pl.DataFrame) -> Look:
    """Return shape, fill and stroke of the series that are drawn, with one legend."""
    series = {name: look for name, look in _SERIES.items() if name in points["series"].to_list()}
    channels = {"shape": alt.Shape, "fill": alt.Fill, "stroke": alt.Stroke}
    return looks(channels, "series:N", series, title="boundary", columns=1)


def _law_lines(lines: pl.DataFrame) -> dict[str, Line]:
    """Return colour and dash of each line: one colour per law, one dash per basis of facts."""
    distinct = lines.select("line", "law", "facts").unique().sort("law", "facts")
    colours = dict(zip(distinct["law"].unique(maintain_order=True), cycle(LAWS), strict=False))
    return {line: (colours[law], DASHES.get(facts, [4, 1])) for line, law, facts in distinct.rows()}


def sensitivity_map(boundaries: pl.DataFrame, module: ModuleKind) -> alt.FacetChart:
    """Return N_max by own variable and tolerance, one panel per platform, origin and variant.

    Parameters
    ----------
    boundaries
        Rows of this table for one module, of one or more platforms.
    """
    variable = module.own
    cells = with_platform_panels(readings(boundaries.filter("newest")), module)
    cells = cells.select(
        panel("panel", pl.when("from_one").then(pl.lit("from N = 1"))),
        pl.col(variable).alias("own"),
        *("origin", "epsilon", "n_max", "n_low", "n_high", "verdict", "row_id"),
        pl.format(
            "{}{}", pl.when(_at_end()).then(pl.lit("≥ ")).otherwise(pl.lit("")), "n_max"
        ).alias("label"),
    ).sort("origin", "panel", "own", "epsilon")
    top = float(cells["n_max"].max() or 1)  # type: ignore[arg-type]
    chart = alt.Chart().encode(
        x=alt.X(
            "epsilon:O", title="tolerance", axis=alt.Axis(format=".0%", labelAngle=0, grid=False)
        ),
        y=alt.Y("own:O", title=f"{module.variable} {module.letter}", axis=alt.Axis(grid=False)),
    )
    layers = alt.layer(
        chart.mark_rect().encode(
            color=alt.Color(
                "n_max:Q",
                title="N_max, positions",
                scale=alt.Scale(type="log", base=2, scheme="viridis", domain=[1, max(top, 2.0)]),
                legend=alt.Legend(values=[4**k for k in range(8) if 4**k <= top]),
            ),
            tooltip=tooltip(
                ("own:O", module.letter),
                "epsilon:O",
                ("n_max:Q", "N_max"),
                ("n_low:Q", "at least"),
                ("n_high:Q", "at most"),
                "verdict:N",
            ),
        ),
        chart.mark_text(fontSize=13).encode(
            text="label:N",
            color=alt.condition(
                alt.datum.n_max > top**_DARK, alt.value("black"), alt.value("white")
            ),
        ),
        data=cells,
    )
    return styled(
        in_rows(layers, cells).resolve_scale(x="independent", y="independent"),
        f"N_max by {module.variable} and tolerance, {module.title}",
        "The boundary of the same curve at several tolerances. ≥: the grid of N ends there.",
    )
