"""N_max against a module's own variable, with laws as lines (paper, app. D to F, second panels)."""

from itertools import cycle

import altair as alt
import polars as pl

from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.panels import in_rows, readings, with_variants
from nearfree.show.figures.theme import (
    LAWS,
    MEASURED,
    PUBLISHED,
    Line,
    Look,
    dressed,
    lines_by,
    own_values,
)

BASES = {
    "datasheet": "datasheet phi and beta",
    "probed_stream": "probed, beta by streaming",
    "probed_gemm": "probed, beta by weight traffic",
    "none": "no facts of the platform",
}
"""What each basis of hardware facts is called."""
DASHES = dict(zip(BASES.values(), ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2]), strict=True))
ORIGINS = {
    "measured": ("circle", MEASURED),
    "published": ("diamond", PUBLISHED),
    "imported": ("triangle-up", "#333333"),
    "simulated": ("square", "#777777"),
}
"""Shape and colour of boundaries by origin; those from N=1 are hollow."""
_SERIES = {
    **{name: (shape, colour, colour) for name, (shape, colour) in ORIGINS.items()},
    **{f"{name}, from N = 1": (shape, "white", c) for name, (shape, c) in ORIGINS.items()},
}
"""Shape, fill and stroke of each series."""


def laws(predictions: pl.DataFrame, boundaries: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return the points of each line; laws that agree all along a panel are one line.

    Parameters
    ----------
    boundaries
        The rows that are drawn, with their `panel`; a setting's predictions go where it is.
    """
    places = boundaries.select("platform", "origin", "setting_key", "panel").unique()
    answered = (
        predictions.drop_nulls("n_max")
        .join(places, on=["platform", "origin", "setting_key"])
        .with_columns(
            pl.col(module.own).alias("own"),
            pl.col("basis").fill_null("none").replace(BASES).alias("facts"),
        )
        .sort("panel", "facts", "predictor", "own", "row_id")
    )
    lines = answered.group_by("panel", "facts", "predictor", maintain_order=True).agg(
        "own", "n_max", "row_id"
    )
    alike = lines.group_by("panel", "facts", "own", "n_max", maintain_order=True).agg(
        pl.col("predictor").str.replace_all("_", " ").str.join(" = ").alias("law"),
        pl.col("row_id").first(),
    )
    return alike.select(
        *("panel", "law", "facts", "own", "n_max", "row_id"),
        pl.format("{}, {}", "law", "facts").alias("line"),
        pl.lit("law").alias("kind"),
    ).explode("own", "n_max", "row_id")


def nmax_against_own(
    boundaries: pl.DataFrame, predictions: pl.DataFrame, epsilon: float, module: ModuleKind
) -> alt.FacetChart:
    """Return measured and published N_max with their predictions, a panel a platform and variant.

    Parameters
    ----------
    boundaries, predictions
        Rows of those tables, of one module, over one or more platforms.
    """
    own = module.own
    at = boundaries.filter("newest", pl.col("epsilon") == epsilon)
    at = (
        with_variants(readings(at), module)
        .with_columns(panel_of_platform(), pl.col(own).alias("own"), _series())
        .sort("origin", "panel", "own", "from_one")
    )
    lines = laws(predictions.filter(pl.col("epsilon") == epsilon), at, module)
    points = at.select(
        *("panel", "own", "n_max", "n_low", "n_high", "verdict", "series", "row_id"),
        (pl.col("next_n").is_null() & ~pl.col("from_one")).alias("at_end"),
        pl.lit("point").alias("kind"),
    )
    top = max([*points["n_max"], *lines["n_max"], 1])
    x = own_values("own:O", f"{module.variable} {module.letter}", at["own"])
    y = alt.Y(
        "n_max:Q",
        title="N_max, positions",
        scale=alt.Scale(type="log", base=2, nice=True, domain=[0.5, 4 * top]),
        axis=alt.Axis(format="~g"),
    )
    tooltip = [
        alt.Tooltip("own:O", title=module.letter),
        alt.Tooltip("n_max:Q", title="N_max", format=".2f"),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("row_id:N", title="row"),
    ]
    chart = alt.Chart()
    of_points = chart.transform_filter("datum.kind == 'point'")
    told = chart.transform_filter("datum.kind == 'law'").mark_line(
        point=alt.OverlayMarkDef(size=18)
    )
    look = lines_by("line:N", "prediction", _law_lines(lines), lines["line"], columns=1)
    guesses = told.encode(x=x, y=y, tooltip=tooltip, **look)
    layers = alt.layer(
        *([] if lines.is_empty() else [guesses]),
        of_points.transform_filter("isValid(datum.n_low)")
        .mark_rule(strokeWidth=2, color=MEASURED)
        .encode(x=x, y=alt.Y("n_low:Q"), y2="n_high:Q"),
        of_points.mark_point(size=80, opacity=1, strokeWidth=1.5).encode(
            x=x, y=y, tooltip=tooltip, **_look(points)
        ),
        of_points.transform_filter("datum.at_end")
        .mark_text(text="\u2191", dy=-13, fontSize=13)
        .encode(x=x, y=y),
        data=pl.concat([points, lines], how="diagonal_relaxed"),
    )
    return dressed(
        in_rows(layers, at).resolve_scale(x="independent"),
        f"N_max against {module.variable}, {module.title}, tolerance {epsilon:.0%}",
        "Bars: the boundary's 95 % interval, for measured curves. Lines: predictions. "
        "Arrow: the grid of N ends there.",
    )


def panel_of_platform() -> pl.Expr:
    """Return the panel of each row with a variant: its platform, origin and variant."""
    place = pl.format("{} ({})", "platform", "origin")
    return (
        pl.when(pl.col("variant") == "")
        .then(place)
        .otherwise(pl.format("{}: {}", place, "variant"))
        .alias("panel")
    )


def _series() -> pl.Expr:
    return (
        pl.when("from_one")
        .then(pl.format("{}, from N = 1", "origin"))
        .otherwise("origin")
        .alias("series")
    )


def _look(points: pl.DataFrame) -> Look:
    """Return shape, fill and stroke of the series that there are, under one legend."""
    there = [name for name in _SERIES if name in points["series"].to_list()]
    channels = (alt.Shape, alt.Fill, alt.Stroke)
    return {
        channel.__name__.lower(): channel(
            "series:N",
            scale=alt.Scale(domain=there, range=[_SERIES[name][place] for name in there]),
            legend=alt.Legend(orient="bottom", title="boundary", columns=1),
        )
        for place, channel in enumerate(channels)
    }


def _law_lines(lines: pl.DataFrame) -> dict[str, Line]:
    """Return colour and dash of each line: a colour a law, a dash a basis of facts."""
    named = lines.select("line", "law", "facts").unique().sort("law", "facts")
    colours = dict(zip(named["law"].unique(maintain_order=True), cycle(LAWS), strict=False))
    return {line: (colours[law], DASHES.get(facts, [4, 1])) for line, law, facts in named.rows()}
