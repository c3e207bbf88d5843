"""Steps that engines pad to captured CUDA graphs: added rows, and added time."""

from collections.abc import Iterator

import altair as alt
import polars as pl

from nearfree.derive.outlook.outlook import FORECAST
from nearfree.show.figures.listing import OUTLOOK, Drawing, drawing
from nearfree.show.figures.panels import differing, equals, in_rows, joined, panel
from nearfree.show.figures.theme import PALETTE, keyed, positions, styled, tooltip

ROWS, TIME = "rows", "T(N)"
_MARKS = {ROWS: PALETTE[1], TIME: PALETTE[0]}


def graph_drawings(forecast: pl.DataFrame) -> Iterator[Drawing]:
    """Yield the figure of padded steps; nothing where no deployment has graphs."""
    steps = _steps(forecast)
    if not steps.is_empty():
        caption = (
            "Rows and time that padding to captured CUDA graphs adds to a step. "
            "Predicted, not measured."
        )
        yield drawing(padded_steps, (forecast,), "padded_steps", caption, steps, about=OUTLOOK)


def padded_steps(forecast: pl.DataFrame) -> alt.FacetChart:
    """Return the rows and the time that padding adds to a step, a panel per deployment and batch.

    Parameters
    ----------
    forecast
        Rows of this table; those without graphs are not drawn.
    """
    steps = _steps(forecast)
    padding = {
        ROWS: pl.col("rows") / pl.col("tokens") - 1,
        TIME: pl.col("forward_us") / pl.col("unpadded_us") - 1,
    }
    keys = ("panel", "n", "tokens", "rows", "row_id")
    data = pl.concat(
        steps.select(*keys, relative.alias("added"), pl.lit(name).alias("of"))
        for name, relative in padding.items()
    )
    chart = alt.Chart().encode(
        x=positions(data),
        y=alt.Y("added:Q", title="added by padding", axis=alt.Axis(format="%")),
        color=keyed(alt.Color, "of:N", _MARKS, title=None),
        tooltip=tooltip(
            "of:N", "n:Q", ("added:Q", "added by padding", ".1%"), "tokens:Q", "rows:Q"
        ),
    )
    layers = alt.layer(
        chart.mark_line(interpolate="step-after", opacity=0.6),
        chart.mark_point(size=28, filled=True),
        data=data,
    )
    return styled(
        in_rows(layers, steps),
        "Steps padded to captured graphs",
        [
            "Predicted, not measured, with N - 1 drafts per step.",
            "A step larger than all graphs is not padded.",
        ],
    )


def _steps(forecast: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step of deployments with graphs, with `panel` and the forward's T(N)."""
    step = ["graphs", *(name for name in FORECAST.key if name != "module")]
    same_columns = ("graphs", "model", "platform", "routing", "batch")
    contexts = pl.col("context").n_unique().over(same_columns)
    conditions = joined(equals("batch"), pl.when(contexts > 1).then(equals("context")))
    panel_name = panel(
        *("graphs", pl.format("{} on {}", "model", "platform"), "routing", conditions),
        *differing(*same_columns),
    )
    return (
        forecast.drop_nulls("graphs")
        .group_by(*step, "tokens", "rows", "unpadded_us", maintain_order=True)
        .agg(pl.col("latency_us").sum().alias("forward_us"), pl.col("row_id").first())
        .with_columns(panel_name)
        .sort("graphs", "batch", "panel", "n")
    )
