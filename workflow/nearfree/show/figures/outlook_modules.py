"""What modules take of T(N) / T(1) of whole models, and the one that stops it at N_max."""

from collections.abc import Iterator
from textwrap import wrap

import altair as alt
import polars as pl

from nearfree.derive.outlook.outlook import FORECAST
from nearfree.derive.predict.forecast.total import PREDICTOR, SUM
from nearfree.show.figures.listing import Drawing
from nearfree.show.figures.outlook import figures_of, middle
from nearfree.show.figures.panels import columns_of, equals, in_rows, joined, panel, with_conditions
from nearfree.show.figures.theme import ROLES, label_beside, roles, styled, tooltip

_CUT, _TOP = 2.4, 2.8
"""T(N) / T(1) at which bars end, and the end of the axis; between is the label of N_max."""
_HALF_BAR = 2**0.17
_WIDTH = 34
"""Characters of a line above a panel."""
_COLUMNS = (
    "panel", "kind", "module", "n", "left", "right", "start", "end", "latency_us", "share", "ratio",
    "row_id",
)  # fmt: skip


def latency_by_module(
    lookup: pl.DataFrame, forecast: pl.DataFrame, epsilon: float
) -> Iterator[Drawing]:
    """Yield the figures of T(N) / T(1) by module, at the first batch and the middle context.

    Parameters
    ----------
    lookup, forecast
        Rows of those tables.
    epsilon
        The tolerance whose limit and N_max are drawn.
    """
    rows = with_conditions(
        lookup.filter(
            pl.col("epsilon") == epsilon, baseline=1, predictor=PREDICTOR, composition=SUM
        )
    ).filter(pl.col("batch") == pl.col("batch").min().over("condition"))
    at = rows.filter(pl.col("context") == middle("context")).with_columns(_stopped())
    panels = at.with_columns(
        panel("condition", joined(equals("batch"), equals("context")), "stopped")
    )
    key = [name for name in FORECAST.key if name in panels.columns]
    curves = forecast.join(panels.select(*key, "panel"), on=key, nulls_equal=True)
    timed = pl.col("panel").is_in(curves["panel"].unique().implode())
    for part in figures_of("latency_by_module", panels, drawn=timed):
        bars = _bars(curves, part.rows)
        what = "T(N) / T(1) by module"
        figure = part.figure(latency_by_module, what, bars, part.rows)
        yield figure, _chart(bars, part.rows, epsilon, part.title(what))


def _stopped() -> pl.Expr:
    """Return, as `stopped`, the module and the term that end a condition's N_max, in lines."""
    limiter = pl.format("{}, {}", "limiting_module", "limiting_term")
    lines = limiter.map_elements(lambda text: ": ".join(wrap(text, _WIDTH)), return_dtype=pl.String)
    return lines.fill_null("nothing stops it").alias("stopped")


def _bars(curves: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of each N's bar, one on the other, in the order of panels."""
    places = rows.select("panel", pl.int_range(pl.len()).alias("place"))
    roles = {name: place for place, name in enumerate(ROLES)}
    order = pl.col("module").replace_strict(roles, default=len(roles), return_dtype=pl.Int64)
    top = (pl.col("share") * pl.col("ratio")).cum_sum().over("panel", "n")
    return (
        curves.join(places, on="panel")
        .sort("place", "n", order, "module")
        .with_columns(
            (pl.col("n") / _HALF_BAR).alias("left"),
            (pl.col("n") * _HALF_BAR).alias("right"),
            top.alias("end"),
        )
        .with_columns(
            (pl.col("end") - pl.col("share") * pl.col("ratio")).clip(0, _CUT).alias("start"),
            pl.col("end").clip(0, _CUT),
            pl.lit("bar").alias("kind"),
        )
    )


def _bounds(rows: pl.DataFrame, largest: int) -> pl.DataFrame:
    """Return where each panel's N_max is, with its label."""
    sign = pl.when("censored").then(pl.lit("at least")).otherwise(pl.lit("="))
    return rows.drop_nulls("n_max").select(
        *("panel", "n_max", "row_id"),
        pl.format("N_max {} {}", sign, pl.col("n_max").cast(pl.Int64)).alias("label"),
        (pl.col("n_max") ** 2 > largest).alias("late"),
        pl.lit("boundary").alias("kind"),
    )


def _chart(bars: pl.DataFrame, rows: pl.DataFrame, epsilon: float, title: str) -> alt.FacetChart:
    modules = bars["module"].unique().to_list()
    names = [*(name for name in ROLES if name in modules), *sorted({*modules} - {*ROLES})]
    largest = bars.select(pl.col("n").max()).item()
    x = alt.X(
        "left:Q",
        title="positions N",
        scale=alt.Scale(type="log", base=2, domain=[0.8, 1.25 * largest], nice=False),
        axis=alt.Axis(
            values=[n for n in sorted(bars["n"].unique()) if n & (n - 1) == 0],
            format="d",
            labelOverlap="greedy",
        ),
    )
    scale = alt.Scale(domain=[0, _TOP], nice=False)
    y = alt.Y("start:Q", title="T(N) / T(1)", scale=scale)
    chart = alt.Chart()
    bounds = chart.transform_filter("datum.kind == 'boundary'")
    at_n_max = alt.X("n_max:Q")
    layers = alt.layer(
        chart.transform_filter("datum.kind == 'bar'")
        .mark_rect()
        .encode(
            x=x,
            x2="right:Q",
            y=y,
            y2="end:Q",
            color=roles("module:N", names),
            tooltip=tooltip(
                "module:N", "n:Q", "latency_us:Q", "share:Q", ("ratio:Q", "T(N) / T(1)", ".3f")
            ),
        ),
        chart.mark_rule(color="black", strokeWidth=1).encode(y=alt.datum(1 + epsilon)),
        bounds.mark_rule(color="black", strokeDash=[4, 3]).encode(x=at_n_max),
        label_beside(bounds).encode(x=at_n_max, y=alt.value(4), text="label:N"),
        data=pl.concat([bars.select(_COLUMNS), _bounds(rows, largest)], how="diagonal_relaxed"),
    )
    return styled(
        in_rows(layers, rows, columns_of(rows)),
        title,
        f"Predicted, not measured. Line: 1 + {epsilon:g}. Dashed: N_max; above: module and term "
        f"that end it. Bars are cut at {_CUT:g}.",
    )
