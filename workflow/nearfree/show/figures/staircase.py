"""Arithmetic intensity and FLOPs against N: the staircases of padded kernels (paper, app. E, F)."""

import math

import altair as alt
import polars as pl

from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.panels import in_grid, with_panels
from nearfree.show.figures.theme import (
    MEASURED,
    PUBLISHED,
    THEORY,
    Line,
    lines_by,
    positions,
    styled,
    tooltip,
)

LINES: dict[str, Line] = {
    "executed, counted": (MEASURED, [1, 0]),
    "executed, profiled": (PUBLISHED, [1, 0]),
    "logical": (THEORY, [4, 3]),
}
"""Colour and dash of each line."""


def intensity_against_n(work: pl.DataFrame, module: ModuleKind) -> alt.FacetChart:
    """Return AI(N) of the executed and of the logical FLOPs, a panel a setting.

    Parameters
    ----------
    work
        Rows of that table for one platform and module.
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
    """Return C(N), executed and logical, a panel a setting; `work` as in intensity_against_n."""
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
    """Return a point a row for what was executed, and one for what is logical where counted."""
    named = with_panels(work.filter("newest"), module)
    executed = pl.format("executed, {}", "source")
    return (
        pl.concat(
            named.with_columns(pl.col(column).alias("flop"), line.alias("line")).select(
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
    lines: pl.DataFrame, module: ModuleKind, y: alt.Y, what: str, unit: str
) -> alt.FacetChart:
    layers = alt.layer(
        alt.Chart()
        .mark_line(point=alt.OverlayMarkDef(size=24))
        .encode(
            x=positions(lines),
            y=y,
            tooltip=tooltip("n:Q", "line:N", ("value:Q", unit, ".4g"), "block_rows:Q"),
            **lines_by("line:N", None, LINES, lines["line"]),
        ),
        data=lines,
    )
    return styled(
        in_grid(layers, lines).resolve_scale(y="independent"),
        f"{what}, {module.title} on {lines['platform'][0]}",
        "Executed: with the rows and keys that only fill a block or tile. Logical, the theory: "
        "without them. Where both are the same, one line hides the other.",
    )
