"""Predicted N_max of whole models over batch and context, and T(N) by module."""

import math
from collections.abc import Callable, Iterator
from textwrap import wrap
from typing import Any

import altair as alt
import polars as pl
from msgspec import Struct

from nearfree.core.predictors import WORK_MODEL
from nearfree.core.setting import FIELDS
from nearfree.derive.outlook.about import UNFIT
from nearfree.derive.outlook.outlook import FORECAST
from nearfree.derive.predict.forecast.forecast import headline
from nearfree.derive.predict.forecast.total import SUM
from nearfree.show.figures.listing import OUTLOOK, Drawing, Figure, drawn_by
from nearfree.show.figures.panels import columns_of, equals, in_rows, joined, panel, with_conditions
from nearfree.show.figures.theme import (
    PREDICTORS,
    THEORY,
    Look,
    by_end,
    in_order,
    label_beside,
    of_kind,
    predictors,
    rank,
    roles,
    styled,
    tooltip,
)

_MOST_PANELS = 24
_OCTAVES_SIDEWAYS = 0.1
"""Horizontal offset between predictors of one setting, in octaves."""
_COLUMNS = (
    "panel", "kind", "predictor", "at", "x", "y", "low", "high", "end", "baseline",
    "limiting_module", "limiting_term", "row_id",
)  # fmt: skip


def boundary_over_batch(lookup: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of N_max against batch, each panel at its middle context.

    One figure is from N = 1; one is from the paper's baseline, at which balanced routing activates
    every expert, for the models that have such a baseline. Too many panels are split by model.
    """
    return _over(boundary_over_batch, "batch", "context", lookup, epsilon)


def boundary_over_context(lookup: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of N_max against context, each panel at its middle batch."""
    return _over(boundary_over_context, "context", "batch", lookup, epsilon)


def _over(
    draw: Callable[..., Any], variable: str, fixed: str, lookup: pl.DataFrame, epsilon: float
) -> Iterator[Drawing]:
    rows = with_conditions(headline(lookup.filter(pl.col("epsilon") == epsilon)))
    at_middle = rows.filter(pl.col(fixed) == middle(fixed))
    setting = ("condition", "batch", "context")
    paper = at_middle.filter(
        pl.col("baseline") == pl.col("baseline").max().over(setting),
        (pl.col("baseline") > 1).any().over("condition"),
    )
    for rows, suffix, start in (
        (at_middle.filter(baseline=1), "", "from N = 1"),
        (paper, "_paper_baseline", "from the paper's baseline (every expert active)"),
    ):
        panels = rows.with_columns(panel("condition", equals(fixed)))
        answered = pl.col("n_max").is_not_null() | pl.col("unbounded")
        for part in figures_of(f"boundary_over_{variable}{suffix}", panels, drawable=answered):
            subject = f"N_max against {variable}, {start}"
            figure = part.figure(draw, subject, part.rows)
            yield figure, _chart(part.rows, variable, epsilon, part.title(subject))


def fits() -> pl.Expr:
    """Return whether a row's deployment fits in memory, or its memory is unknown."""
    return pl.col("fits").fill_null(value=True)


def _chart(rows: pl.DataFrame, variable: str, epsilon: float, title: str) -> alt.FacetChart:
    points, top, bottom = _points(rows, variable)
    ticks = sorted(rows[variable].unique())
    x_options: Look = {
        "title": f"{variable} {FIELDS[variable].letter}",
        "scale": alt.Scale(type="log", base=2, domain=[ticks[0] / 1.5, ticks[-1] * 1.5]),
        "axis": alt.Axis(values=ticks, format="~g", labelOverlap="greedy"),
    }
    x = alt.X("x:Q", **x_options)
    octaves = range(math.floor(math.log2(bottom)), math.ceil(math.log2(top)) + 1)
    scale = alt.Scale(type="log", base=2, domain=[bottom, top], nice=False)
    axis = alt.Axis(values=[2.0**k for k in octaves], format="~g", labelOverlap="greedy")
    title_y = "predicted N_max"
    y = alt.Y("y:Q", title=title_y, scale=scale, axis=axis)
    interval = {"x": x, "y": alt.Y("low:Q", scale=scale, title=title_y), "y2": "high:Q"}
    answers = points.filter(kind="answer")
    colour, chart = predictors(answers["predictor"]), of_kind("answer")
    with_band, band_colour = chart.transform_filter("isValid(datum.low)"), PREDICTORS[WORK_MODEL][0]
    layers = alt.layer(
        with_band.mark_area(color=band_colour, opacity=0.2).encode(**interval),
        with_band.mark_rule(color=band_colour, strokeWidth=1.5, opacity=0.5).encode(**interval),
        chart.mark_line(strokeWidth=1.5, opacity=0.8).encode(x=x, y=y, color=colour),
        chart.mark_line(color=THEORY, strokeDash=[2, 3], strokeWidth=1).encode(
            x=alt.X("at:Q", **x_options),
            y=alt.Y("baseline:Q", scale=scale, title=title_y),
        ),
        chart.mark_point(size=36, filled=True, opacity=0.9).encode(
            x=x,
            y=y,
            color=colour,
            shape=by_end("bounded", "open"),
            tooltip=tooltip(
                "predictor:N",
                ("y:Q", "N_max", ".2f"),
                "baseline:Q",
                "limiting_module:N",
                "limiting_term:N",
            ),
        ),
        of_kind("unfit")
        .mark_text(text=UNFIT, angle=270, align="left", dx=4, color=THEORY)
        .encode(x=alt.X("at:Q", **x_options), y=y),
        data=points,
    )
    return styled(
        in_rows(layers, points, columns_of(rows)),
        title,
        f"Predicted, not measured, tolerance {epsilon:.0%}. Band: the work model's interval. "
        "Dotted: baseline N. "
        f'Triangle: a lower bound; at the top edge: unbounded; "{UNFIT}": in memory.',
    )


def _points(rows: pl.DataFrame, variable: str) -> tuple[pl.DataFrame, float, float]:
    """Return a mark for each answer, and both ends of the axis of N_max.

    A deployment that does not fit in memory has a label instead of an N_max.
    """
    unfit = rows.filter(~fits()).unique(("panel", variable), keep="first", maintain_order=True)
    rows = rows.filter(fits())
    ends = [*rows["n_max"].drop_nulls(), *rows["high"].drop_nulls(), *rows["baseline"], 1]
    bottom = min(1.0, *ends, *rows["low"].drop_nulls()) / 2**0.25
    top = 2.0 * max(ends)
    shift = rank() - 1.5
    open_ended = pl.col("unbounded") | pl.col("censored")
    points = rows.with_columns(
        pl.col(variable).alias("at"),
        (pl.col(variable) * 2 ** (_OCTAVES_SIDEWAYS * shift)).alias("x"),
        pl.when("unbounded").then(top).otherwise("n_max").alias("y"),
        pl.when(pl.col("low").is_not_null()).then(pl.col("high").fill_null(top)).alias("high"),
        pl.when(open_ended).then(pl.lit("open")).otherwise(pl.lit("bounded")).alias("end"),
        pl.lit("answer").alias("kind"),
    )
    labels = unfit.select(
        *("panel", "row_id", pl.col(variable).alias("at")),
        *(pl.lit(bottom).alias("y"), pl.lit("unfit").alias("kind")),
    )
    return pl.concat([points.select(_COLUMNS), labels], how="diagonal"), top, bottom


class Part(Struct, frozen=True, kw_only=True):
    """The rows of a table that one figure shows.

    Parameters
    ----------
    name
        The figure's name.
    model
        The model of the figure, None where it shows all models.
    rows
        The rows that are drawn, with their `panel`, in the order of panels.
    refused
        Number of rows without anything to draw.
    """

    name: str
    model: str | None
    rows: pl.DataFrame
    refused: int

    def title(self, subject: str) -> str:
        """Return the title: the subject and the model."""
        return f"{subject[0].upper()}{subject[1:]}: {self.model or 'whole models'}"

    def figure(self, draw: Callable[..., Any], subject: str, *frames: pl.DataFrame) -> Figure:
        """Return the figure's entry, with its caption and the rows that it draws."""
        caption = [
            f"{self.title(subject)}.",
            "Predicted, not measured.",
            "Between modules: engines' constants, if known.",
            *_constants(frames[-1]),
        ]
        if self.refused:
            caption.append(f"Refused, left out: {self.refused} of the predictions.")
        return drawn_by(draw, self.name, " ".join(caption), *frames, about=OUTLOOK)


def middle(name: str) -> pl.Expr:
    """Return the lower median of a column's values among the rows of a condition."""
    values = pl.col(name).unique().sort()
    return values.get((values.len() - 1) // 2).over("condition")


def figures_of(name: str, panels: pl.DataFrame, drawable: pl.Expr) -> Iterator[Part]:
    """Yield the rows of each figure: all panels if they are few, else one figure per model.

    Parameters
    ----------
    name
        The figure's name; several figures are numbered.
    panels
        Rows with `panel` and `model`, in order.
    drawable
        Whether a row has anything to draw.
    """
    rows = panels.filter(drawable)
    if rows["panel"].n_unique() > _MOST_PANELS:
        models = rows["model"].unique(maintain_order=True)
        for number, model in enumerate(models, 1):
            yield _part(f"{name}_{number}", model, panels.filter(model=model), drawable)
    elif rows.height:
        yield _part(name, None, panels, drawable)


def _part(name: str, model: str | None, panels: pl.DataFrame, drawable: pl.Expr) -> Part:
    rows = panels.filter(drawable)
    return Part(name=name, model=model, rows=rows, refused=panels.height - rows.height)


def _constants(lookup: pl.DataFrame) -> list[str]:
    """Return the constants behind rows of `lookup`, and the platforms that are in sample."""
    timed = lookup.drop_nulls("constants")
    distinct = {name for names in timed["constants"].unique() for name in names.split("; ")}
    # Kernels: regime and form. Engines' steps: their number, without the models' names.
    constants = sorted({name.partition(" by ")[0].partition(" of ")[0] for name in distinct})
    if not constants:
        return []
    forms_of: dict[str, list[str]] = {}
    for name in constants:
        regime, colon, form = name.partition(": ")
        forms_of.setdefault(regime + colon, []).append(form)
    listed = "; ".join(about + ", ".join(forms) for about, forms in forms_of.items())
    platforms = ", ".join(timed.filter("in_sample")["platform"].unique().sort())
    in_sample = f"; predictions for {platforms} are in sample" if platforms else ""
    return [f"Constants: {listed}{in_sample}."]


_CUT, _TOP = 2.4, 2.8
"""T(N) / T(1) at which bars are cut, and the end of the axis; the label of N_max is between."""
_HALF_BAR = 2**0.17
_WIDTH = 34
"""Characters per line above a panel."""
_BAR_COLUMNS = (
    "panel", "kind", "module", "n", "left", "right", "start", "end", "latency_us", "share", "ratio",
    "row_id",
)  # fmt: skip


def latency_by_module(
    lookup: pl.DataFrame, forecast: pl.DataFrame, epsilon: float
) -> Iterator[Drawing]:
    """Yield the figures of T(N) / T(1) by module, at the first batch and the middle context."""
    rows = with_conditions(
        lookup.filter(
            pl.col("epsilon") == epsilon, baseline=1, predictor=WORK_MODEL, composition=SUM
        )
    ).filter(pl.col("batch") == pl.col("batch").min().over("condition"))
    at_middle = rows.filter(pl.col("context") == middle("context")).with_columns(_stopped())
    panels = at_middle.with_columns(
        panel("condition", joined(equals("batch"), equals("context")), "stopped")
    )
    key = [name for name in FORECAST.key if name in panels.columns]
    curves = forecast.join(panels.select(*key, "panel"), on=key, nulls_equal=True)
    timed = pl.col("panel").is_in(curves["panel"].unique().implode())
    for part in figures_of("latency_by_module", panels, drawable=timed):
        bars = _bars(curves, part.rows)
        subject = "T(N) / T(1) by module"
        figure = part.figure(latency_by_module, subject, bars, part.rows)
        yield figure, _bar_chart(bars, part.rows, epsilon, part.title(subject))


def _stopped() -> pl.Expr:
    """Return `stopped`: the module and term that limit N_max, or that memory does not suffice."""
    limiter = pl.format("{}, {}", "limiting_module", "limiting_term")
    lines = limiter.map_elements(lambda text: ": ".join(wrap(text, _WIDTH)), return_dtype=pl.String)
    stopped = lines.fill_null("no limit")
    return pl.when(fits()).then(stopped).otherwise(pl.lit(UNFIT)).alias("stopped")


def _bars(curves: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the stacked parts of each N's bar, in the order of panels."""
    places = rows.select("panel", pl.int_range(pl.len()).alias("place"))
    order_by_module = {
        name: position
        for position, name in enumerate(in_order(curves["module"].unique().to_list()))
    }
    order = pl.col("module").replace_strict(order_by_module, return_dtype=pl.Int64)
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
    """Return N_max of each panel with its label."""
    sign = pl.when("censored").then(pl.lit("at least")).otherwise(pl.lit("="))
    return (
        rows.filter(fits())
        .drop_nulls("n_max")
        .select(
            *("panel", "n_max", "row_id"),
            pl.format("N_max {} {}", sign, pl.col("n_max").cast(pl.Int64)).alias("label"),
            (pl.col("n_max") ** 2 > largest).alias("late"),
            pl.lit("boundary").alias("kind"),
        )
    )


def _bar_chart(
    bars: pl.DataFrame, rows: pl.DataFrame, epsilon: float, title: str
) -> alt.FacetChart:
    names = in_order(bars["module"].unique().to_list())
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
    bounds = of_kind("boundary")
    at_n_max = alt.X("n_max:Q")
    layers = alt.layer(
        of_kind("bar")
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
        data=pl.concat([bars.select(_BAR_COLUMNS), _bounds(rows, largest)], how="diagonal_relaxed"),
    )
    return styled(
        in_rows(layers, rows, columns_of(rows)),
        title,
        f"Predicted, not measured. Line: 1 + {epsilon:g}. Dashed: N_max; above: the module and "
        f"term that limit it. Bars are cut at {_CUT:g}.",
    )
