"""Executed work: utilisation, intensity and FLOPs of forwards (paper, figures of app. D to F)."""

import math

import altair as alt
import polars as pl

from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.panels import Layers, in_grid, in_rows, with_panels
from nearfree.show.figures.theme import (
    MEASURED,
    PALETTE,
    PUBLISHED,
    THEORY,
    Line,
    Look,
    lines_by,
    own_values,
    positions,
    styled,
    tooltip,
)

RESOURCES = ("bandwidth", "compute")
LINES: dict[str, Line] = {
    f"{resource}, {source}": (colour, dash)
    for source, dash in (("counted", [1, 0]), ("profiled", [4, 3]))
    for resource, colour in zip(RESOURCES, PALETTE, strict=False)
}
"""Colour and dash of each line."""


def utilization_at_one(work: pl.DataFrame, module: ModuleKind) -> alt.FacetChart:
    """Return the utilisation of a forward at N = 1 against the own variable, a panel per variant.

    Parameters
    ----------
    work
        Rows of this table for one platform and module.
    """
    shares = utilizations(work, module).filter(pl.col("n") == 1)
    shares = shares.with_columns(
        pl.when(pl.col("variant") == "").then("platform").otherwise("variant").alias("panel")
    ).sort("panel", "own")
    x = own_values(f"{module.variable} {module.letter}", shares["own"])
    return styled(
        in_rows(_layers(shares, x), shares).resolve_scale(x="independent"),
        f"Utilisation at N = 1 against {module.variable}, {_where(shares, module)}",
        _SUBTITLE,
    )


def utilization_against_n(work: pl.DataFrame, module: ModuleKind) -> alt.FacetChart:
    """Return the utilisation of every setting over N, one panel per setting."""
    shares = utilizations(work, module)
    return styled(
        in_grid(_layers(shares, positions(shares)), shares),
        f"Utilisation against N, {_where(shares, module)}",
        _SUBTITLE,
    )


_SUBTITLE = (
    "Shares of phi (FLOP/s) and beta (bytes/s), as probed by streaming or else of the datasheet. "
    "Counted: the forward's FLOPs and compulsory bytes over its time. "
    "Above 100 % it was faster than the probe."
)


def _where(shares: pl.DataFrame, module: ModuleKind) -> str:
    return f"{module.title} on {shares['platform'][0]}"


def utilizations(work: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return one row per point, source and resource with a known utilisation."""
    panelled = with_panels(work.filter("newest"), module).with_columns(
        pl.col(module.own).alias("own")
    )
    return pl.concat(
        panelled.select(
            *("platform", "stream", "setting_key", "own", "of", "variant", "panel", "n"),
            pl.format("{}, {}", pl.lit(resource), "source").alias("line"),
            pl.col(f"{resource}_utilization").alias("share"),
            *("basis", "row_id"),
        )
        for resource in RESOURCES
    ).drop_nulls("share")


def _layers(shares: pl.DataFrame, x: alt.X) -> Layers:
    y = alt.Y("share:Q", title="utilisation", axis=alt.Axis(format="%"))
    hover = (("share:Q", "utilisation", ".1%"), ("basis:N", "phi and beta of"))
    return _line_layers(
        shares, x, y, hover, lines_by("line:N", None, LINES, shares["line"], columns=2)
    )


def _line_layers(
    rows: pl.DataFrame, x: alt.X, y: alt.Y, hover: tuple[str | tuple[str, ...], ...], look: Look
) -> Layers:
    """Return a line with points for each `line` of some rows, and the tooltip `hover`."""
    lines = alt.Chart().mark_line(point=alt.OverlayMarkDef(size=24))
    return alt.layer(
        lines.encode(x=x, y=y, tooltip=tooltip("n:Q", "line:N", *hover), **look), data=rows
    )


STAIRS: dict[str, Line] = {
    "executed, counted": (MEASURED, [1, 0]),
    "executed, profiled": (PUBLISHED, [1, 0]),
    "logical": (THEORY, [4, 3]),
}
"""Colour and dash of each line."""


def intensity_against_n(work: pl.DataFrame, module: ModuleKind) -> alt.FacetChart:
    """Return AI(N) of the executed and of the logical FLOPs, one panel per setting.

    Parameters
    ----------
    work
        Rows of this table for one platform and module.
    """
    lines = _lines(work, module, pl.col("flop") / pl.col("bytes"))
    ticks = [2.0**power for power in _powers(lines, 2)]
    y = alt.Y(
        "value:Q",
        title="AI, FLOP/byte",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=ticks, format="~g"),
    )
    return _staircase(lines, module, y, "Arithmetic intensity against N", "AI, FLOP/byte")


def flop_against_n(work: pl.DataFrame, module: ModuleKind) -> alt.FacetChart:
    """Return C(N), executed and logical, one panel per setting.

    Parameters
    ----------
    work
        As in `intensity_against_n`.
    """
    lines = _lines(work, module, pl.col("flop"))
    ticks = [digit * 10.0**power for power in _powers(lines, 10) for digit in (1, 2, 5)]
    y = alt.Y(
        "value:Q",
        title="C(N), FLOP",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=ticks, format="~s", labelOverlap="greedy"),
    )
    return _staircase(lines, module, y, "FLOPs of a forward against N", "C(N), FLOP")


def _powers(lines: pl.DataFrame, base: int) -> range:
    """Return the powers of a base that span the values."""
    low, high = min(lines["value"]), max(lines["value"])
    return range(math.floor(math.log(low, base)), math.ceil(math.log(high, base)) + 1)


def _lines(work: pl.DataFrame, module: ModuleKind, value: pl.Expr) -> pl.DataFrame:
    """Return the points of executed work, and of logical work where that was counted."""
    panelled = with_panels(work.filter("newest"), module)
    executed = pl.format("executed, {}", "source")
    return (
        pl.concat(
            panelled.with_columns(pl.col(column).alias("flop"), line.alias("line")).select(
                *("platform", "stream", "setting_key", "of", "variant", "panel", "n", "line"),
                value.alias("value"),
                *("block_rows", "row_id"),
            )
            for column, line in (
                ("flop_executed", executed),
                ("flop_logical", pl.lit("logical")),
            )
        )
        .drop_nulls("value")
        .filter(pl.col("value") > 0, pl.col("value").is_finite())
    )


def _staircase(
    lines: pl.DataFrame, module: ModuleKind, y: alt.Y, title: str, unit: str
) -> alt.FacetChart:
    channels = lines_by("line:N", None, STAIRS, lines["line"])
    hover = (("value:Q", unit, ".4g"), "block_rows:Q")
    layers = _line_layers(lines, positions(lines), y, hover, channels)
    return styled(
        in_grid(layers, lines).resolve_scale(y="independent"),
        f"{title}, {_where(lines, module)}",
        "Executed: with the rows and keys that pad a block or tile. Logical: without them. "
        "Where both are equal, one line hides the other.",
    )
