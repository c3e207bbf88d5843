"""Compute and bandwidth utilisation, at N=1 and against N (paper, figures of app. D)."""

import altair as alt
import polars as pl

from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.panels import Layers, in_grid, in_rows, with_panels
from nearfree.show.figures.theme import (
    PALETTE,
    Line,
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
    """Return the utilisation of a forward at N=1 against the own variable, a panel a variant.

    Parameters
    ----------
    work
        Rows of that table for one platform and module.
    """
    shares = utilizations(work, module).filter(pl.col("n") == 1)
    shares = shares.with_columns(
        pl.when(pl.col("variant") == "").then("platform").otherwise("variant").alias("panel")
    ).sort("panel", "own")
    x = own_values("own:O", f"{module.variable} {module.letter}", shares["own"])
    return styled(
        in_rows(_layers(shares, x), shares).resolve_scale(x="independent"),
        f"Utilisation at N = 1 against {module.variable}, {_where(shares, module)}",
        _SAYS,
    )


def utilization_against_n(work: pl.DataFrame, module: ModuleKind) -> alt.FacetChart:
    """Return the utilisation of every setting over N, a panel a setting."""
    shares = utilizations(work, module)
    return styled(
        in_grid(_layers(shares, positions(shares)), shares),
        f"Utilisation against N, {_where(shares, module)}",
        _SAYS,
    )


_SAYS = (
    "Shares of peak FLOP/s (phi) and peak bandwidth (beta). "
    "Counted: the forward's FLOPs and compulsory bytes over its measured time."
)


def _where(shares: pl.DataFrame, module: ModuleKind) -> str:
    return f"{module.title} on {shares['platform'][0]}"


def utilizations(work: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return a row a point, source and resource, where utilisation is known."""
    named = with_panels(work.filter("newest"), module).with_columns(pl.col(module.own).alias("own"))
    return pl.concat(
        named.select(
            *("platform", "stream", "setting_key", "own", "of", "variant", "panel", "n"),
            pl.format("{}, {}", pl.lit(resource), "source").alias("line"),
            pl.col(f"{resource}_utilization").alias("share"),
            *("basis", "row_id"),
        )
        for resource in RESOURCES
    ).drop_nulls("share")


def _layers(shares: pl.DataFrame, x: alt.X) -> Layers:
    return alt.layer(
        alt.Chart()
        .mark_line(point=alt.OverlayMarkDef(size=24))
        .encode(
            x=x,
            y=alt.Y("share:Q", title="utilisation", axis=alt.Axis(format="%")),
            tooltip=tooltip(
                "n:Q", "line:N", ("share:Q", "utilisation", ".1%"), ("basis:N", "phi and beta of")
            ),
            **lines_by("line:N", None, LINES, shares["line"], columns=2),
        ),
        data=shares,
    )
