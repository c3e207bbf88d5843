"""Predicted N_max of whole models over batch and over context, and figures cut by model."""

import math
from collections.abc import Callable, Iterator
from textwrap import wrap
from typing import Any

import altair as alt
import polars as pl
from msgspec import Struct

from nearfree.core.setting import FIELDS
from nearfree.derive.outlook.about import UNFIT
from nearfree.derive.outlook.outlook import FORECAST
from nearfree.derive.predict.forecast.forecast import headline
from nearfree.derive.predict.forecast.total import PREDICTOR, SUM
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
"""How far, in octaves, predictors of one setting are moved apart sideways."""
_COLUMNS = (
    "panel", "kind", "predictor", "at", "x", "y", "low", "high", "end", "baseline",
    "limiting_module", "limiting_term", "row_id",
)  # fmt: skip


def boundary_over_batch(lookup: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of N_max against batch, each panel at its middle context.

    One is from N = 1; one from the paper's baseline, where balanced routing has woken every
    expert, of the models that have such a baseline. More where there are too many panels.
    """
    return _over(boundary_over_batch, "batch", "context", lookup, epsilon)


def boundary_over_context(lookup: pl.DataFrame, epsilon: float) -> Iterator[Drawing]:
    """Yield the figures of N_max against context, each panel at its middle batch."""
    return _over(boundary_over_context, "context", "batch", lookup, epsilon)


def _over(
    draws: Callable[..., Any], own: str, fixed: str, lookup: pl.DataFrame, epsilon: float
) -> Iterator[Drawing]:
    rows = with_conditions(headline(lookup.filter(pl.col("epsilon") == epsilon)))
    at = rows.filter(pl.col(fixed) == middle(fixed))
    setting = ("condition", "batch", "context")
    paper = at.filter(
        pl.col("baseline") == pl.col("baseline").max().over(setting),
        (pl.col("baseline") > 1).any().over("condition"),
    )
    for rows, suffix, start in (
        (at.filter(baseline=1), "", "from N = 1"),
        (paper, "_paper_baseline", "from the paper's baseline (every expert awake)"),
    ):
        panels = rows.with_columns(panel("condition", equals(fixed)))
        for part in figures_of(f"boundary_over_{own}{suffix}", panels, drawn=_answered()):
            what = f"N_max against {own}, {start}"
            figure = part.figure(draws, what, part.rows)
            yield figure, _chart(part.rows, own, epsilon, part.title(what))


def _answered() -> pl.Expr:
    return pl.col("n_max").is_not_null() | pl.col("unbounded")


def fits() -> pl.Expr:
    """Return whether it is not known of a row that its deployment does not fit in memory."""
    return pl.col("fits").fill_null(value=True)


def _chart(rows: pl.DataFrame, own: str, epsilon: float, title: str) -> alt.FacetChart:
    points, top, bottom = _points(rows, own)
    ticks = sorted(rows[own].unique())
    across: Look = {
        "title": f"{own} {FIELDS[own].letter}",
        "scale": alt.Scale(type="log", base=2, domain=[ticks[0] / 1.5, ticks[-1] * 1.5]),
        "axis": alt.Axis(values=ticks, format="~g", labelOverlap="greedy"),
    }
    x = alt.X("x:Q", **across)
    octaves = range(math.floor(math.log2(bottom)), math.ceil(math.log2(top)) + 1)
    scale = alt.Scale(type="log", base=2, domain=[bottom, top], nice=False)
    axis = alt.Axis(values=[2.0**k for k in octaves], format="~g", labelOverlap="greedy")
    title_y = "predicted N_max"
    y = alt.Y("y:Q", title=title_y, scale=scale, axis=axis)
    interval = {"x": x, "y": alt.Y("low:Q", scale=scale, title=title_y), "y2": "high:Q"}
    answers = points.filter(kind="answer")
    colour, chart = predictors(answers["predictor"]), of_kind("answer")
    banded, own_colour = chart.transform_filter("isValid(datum.low)"), PREDICTORS[PREDICTOR]
    layers = alt.layer(
        banded.mark_area(color=own_colour, opacity=0.2).encode(**interval),
        banded.mark_rule(color=own_colour, strokeWidth=1.5, opacity=0.5).encode(**interval),
        chart.mark_line(strokeWidth=1.5, opacity=0.8).encode(x=x, y=y, color=colour),
        chart.mark_line(color=THEORY, strokeDash=[2, 3], strokeWidth=1).encode(
            x=alt.X("at:Q", **across),
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
        .encode(x=alt.X("at:Q", **across), y=y),
        data=points,
    )
    return styled(
        in_rows(layers, points, columns_of(rows)),
        title,
        f"Predicted, not measured, tolerance {epsilon:.0%}. Band: the work model's interval. "
        "Dotted: baseline N. "
        f"Triangle: no bound up to there, at the top edge none. {UNFIT.capitalize()}: in memory.",
    )


def _points(rows: pl.DataFrame, own: str) -> tuple[pl.DataFrame, float, float]:
    """Return a mark for each answer, and the ends of the axis of N_max.

    What does not fit in memory has no N_max here, but a word at its place in the panel.
    """
    unfit = rows.filter(~fits()).unique(("panel", own), keep="first", maintain_order=True)
    rows = rows.filter(fits())
    ends = [*rows["n_max"].drop_nulls(), *rows["high"].drop_nulls(), *rows["baseline"], 1]
    bottom = min(1.0, *ends, *rows["low"].drop_nulls()) / 2**0.25
    top = 2.0 * max(ends)
    shift = rank() - 1.5
    open_ended = pl.col("unbounded") | pl.col("censored")
    points = rows.with_columns(
        pl.col(own).alias("at"),
        (pl.col(own) * 2 ** (_OCTAVES_SIDEWAYS * shift)).alias("x"),
        pl.when("unbounded").then(top).otherwise("n_max").alias("y"),
        pl.when(pl.col("low").is_not_null()).then(pl.col("high").fill_null(top)).alias("high"),
        pl.when(open_ended).then(pl.lit("open")).otherwise(pl.lit("bounded")).alias("end"),
        pl.lit("answer").alias("kind"),
    )
    words = unfit.select(
        *("panel", "row_id", pl.col(own).alias("at")),
        *(pl.lit(bottom).alias("y"), pl.lit("unfit").alias("kind")),
    )
    return pl.concat([points.select(_COLUMNS), words], how="diagonal"), top, bottom


class Part(Struct, frozen=True, kw_only=True):
    """The rows of a table that one figure shows.

    Parameters
    ----------
    name
        The figure's name.
    model
        The model that it is about, None where it is about all of them.
    rows
        The rows that are drawn, with their `panel`, in the order of panels.
    refused
        How many rows have nothing to draw.
    """

    name: str
    model: str | None
    rows: pl.DataFrame
    refused: int

    def title(self, what: str) -> str:
        """Return a title: the quantity, and its model."""
        return f"{what[0].upper()}{what[1:]}: {self.model or 'whole models'}"

    def figure(self, draws: Callable[..., Any], what: str, *drawn: pl.DataFrame) -> Figure:
        """Return the figure's entry: its function, its caption, and the rows that it draws."""
        caption = [
            f"{self.title(what)}.",
            "Predicted, not measured.",
            "Between modules: engines' constants, if known.",
            *_constants(drawn[-1]),
        ]
        if self.refused:
            caption.append(f"Refused, left out: {self.refused} of the predictions.")
        return drawn_by(draws, self.name, " ".join(caption), *drawn, about=OUTLOOK)


def middle(name: str) -> pl.Expr:
    """Return the middle value of a column among the rows of a condition, the lower one of two."""
    values = pl.col(name).unique().sort()
    return values.get((values.len() - 1) // 2).over("condition")


def figures_of(name: str, panels: pl.DataFrame, drawn: pl.Expr) -> Iterator[Part]:
    """Yield the rows of each figure: all panels where they are few, else a model's.

    Parameters
    ----------
    name
        The figure's name; where there are several, each has its number behind it.
    panels
        Rows with `panel` and `model`, in order.
    drawn
        Which rows have something to draw.
    """
    rows = panels.filter(drawn)
    if rows["panel"].n_unique() > _MOST_PANELS:
        models = rows["model"].unique(maintain_order=True)
        for place, model in enumerate(models, 1):
            yield _part(f"{name}_{place}", model, panels.filter(model=model), drawn)
    elif rows.height:
        yield _part(name, None, panels, drawn)


def _part(name: str, model: str | None, panels: pl.DataFrame, drawn: pl.Expr) -> Part:
    rows = panels.filter(drawn)
    return Part(name=name, model=model, rows=rows, refused=panels.height - rows.height)


def _constants(lookup: pl.DataFrame) -> list[str]:
    """Return the constants that rows of `lookup` were made with, and the platforms in sample."""
    timed = lookup.drop_nulls("constants")
    every = {name for names in timed["constants"].unique() for name in names.split("; ")}
    # Of kernels regime and form, of engines' steps how many, without the models that they are of.
    constants = {name.partition(" by ")[0].partition(" of ")[0] for name in every}
    if not constants:
        return []
    own = ", ".join(timed.filter("in_sample")["platform"].unique().sort())
    in_sample = f"; predictions for {own} are in sample" if own else ""
    return [f"Constants: {'; '.join(sorted(constants))}{in_sample}."]


_CUT, _TOP = 2.4, 2.8
"""T(N) / T(1) at which bars end, and the end of the axis; between is the label of N_max."""
_HALF_BAR = 2**0.17
_WIDTH = 34
"""Characters of a line above a panel."""
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
        yield figure, _bar_chart(bars, part.rows, epsilon, part.title(what))


def _stopped() -> pl.Expr:
    """Return, as `stopped`, module and term that end a condition's N_max, or that it is unfit."""
    limiter = pl.format("{}, {}", "limiting_module", "limiting_term")
    lines = limiter.map_elements(lambda text: ": ".join(wrap(text, _WIDTH)), return_dtype=pl.String)
    stopped = lines.fill_null("nothing stops it")
    return pl.when(fits()).then(stopped).otherwise(pl.lit(UNFIT)).alias("stopped")


def _bars(curves: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of each N's bar, one on the other, in the order of panels."""
    places = rows.select("panel", pl.int_range(pl.len()).alias("place"))
    of_module = {name: at for at, name in enumerate(in_order(curves["module"].unique().to_list()))}
    order = pl.col("module").replace_strict(of_module, return_dtype=pl.Int64)
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
        f"Predicted, not measured. Line: 1 + {epsilon:g}. Dashed: N_max; above: module and term "
        f"that end it. Bars are cut at {_CUT:g}.",
    )
