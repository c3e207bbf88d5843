"""The common look of all figures: colour-blind safe colours, axes and legends."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from textwrap import wrap
from typing import Any, TypeVar

import altair as alt
import polars as pl

from nearfree.decoders.ranks.attention_uses import (
    ABSORB,
    CALLS,
    DELTA_IN,
    DELTA_OUT,
    INDEX_KEY,
    INDEX_QUERY,
    LATENTS,
    OUTPUT_GATE,
    QUERY,
    RELEASE,
    base_of,
)
from nearfree.decoders.ranks.modules import (
    ATTENTION,
    BETWEEN,
    DENSE,
    HEAD,
    HOST,
    MOE,
    OUTPUT,
    QKV,
    ROUTER,
    SHARED,
)

MEASURED, PUBLISHED, THEORY, BAND = "#0072b2", "#d55e00", "#555555", "#009e73"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LAWS = ("#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
PREDICTORS = {
    "idle_compute": ("#e69f00", "diamond"),
    "principle": ("#cc79a7", "triangle-up"),
    "principle_resolved": ("#009e73", "square"),
    "work_model": ("#0072b2", "triangle-down"),
    "work_model_left_out": ("#56b4e9", "stroke"),
    "twin_version": ("#505050", "stroke"),
    "modules_sum": ("#332288", "cross"),
    "modules_minimum": ("#a0522d", "triangle-right"),
    "principle_counted": ("#661100", "triangle-left"),
}
"""The colour and the mark of each predictor, and of another version's curve."""
PANEL = {"width": 260, "height": 200}
SMALL_PANEL = {"width": 210, "height": 160}
SPACED = "join(split(datum.label, '_'), ' ')"
"""The label of a predictor: its name with spaces."""
_ACROSS = 32
"""Characters that fit side by side below a small panel."""
_FONT = "Liberation Sans, Arial, Helvetica, DejaVu Sans Condensed, sans-serif"
"""Fonts of about the same width; drawings are measured by the first."""
_SUBTITLE = 80
"""Characters per line of a subtitle: they fit above two panels, even in a wide font."""
Line = tuple[str, list[int]]
"""Colour and dash of a line."""
Look = dict[str, Any]
"""Channels of a mark, by name."""
Tooltip = list[alt.Tooltip]
Channel = TypeVar("Channel")
TITLES = {
    "n:Q": ("N",),
    "share:Q": ("", ".1%"),
    "latency_us:Q": ("latency, us", ".1f"),
    "model_us:Q": ("T(N), us", ".1f"),
    "block_rows:Q": ("rows of a block",),
    "setting_key:N": ("setting",),
    "epsilon:O": ("tolerance",),
    "role:N": ("module",),
    "limiting_module:N": ("limited by",),
    "limiting_term:N": ("term",),
    "t_ratio_error:Q": ("", ".3f"),
    "hit_share:Q": ("", ".3f"),
    "predicted:Q": ("", ".2f"),
    "row_id:N": ("row",),
}
"""The title and the format of a field in a tooltip; an empty title is the field's name."""
_OTHER = "#505050"
ROLES = {
    ATTENTION: "#0072b2",
    DENSE: "#e69f00",
    MOE: "#d55e00",
    SHARED: "#f0e442",
    ROUTER: "#000000",
    QKV: "#56b4e9",
    OUTPUT: "#009e73",
    HEAD: "#cc79a7",
    BETWEEN: _OTHER,
    HOST: "#c8c8c8",
}
"""The colour of each module of a forward, by role."""
_LIKE = {
    **dict.fromkeys((LATENTS, QUERY, INDEX_QUERY, INDEX_KEY, DELTA_IN), QKV),
    **dict.fromkeys((*CALLS, ABSORB), ATTENTION),
    **dict.fromkeys((RELEASE, OUTPUT_GATE, DELTA_OUT), OUTPUT),
}
"""The role whose hue a module of other kinds of attention takes."""


def positions(points: pl.DataFrame) -> alt.X:
    """Return the axis of N for some points: logarithmic, with a tick at each power of two."""
    ticks = sorted(n for n in points["n"].unique() if n & (n - 1) == 0)
    return alt.X(
        "n:Q",
        title="positions N",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=ticks, format="d", labelOverlap="greedy"),
    )


def own_values(title: str, values: pl.Series) -> alt.X:
    """Return the axis of a module's own variable; labels that would touch are slanted."""
    length = sum(len(str(value)) + 1 for value in values.unique())
    return alt.X("own:O", title=title, axis=alt.Axis(labelAngle=-40 if length > _ACROSS else 0))


def keyed(
    channel: Callable[..., Channel], field: str, values: Mapping[str, Any], **legend: Any
) -> Channel:
    """Return a channel that maps series to values, with a legend at the bottom.

    Without a series there is no legend: an empty one has no size, nor has its whole drawing.

    Parameters
    ----------
    field
        The field that holds the series' names, as Altair names it.
    values
        The colour, dash or shape of each series that is drawn, in the legend's order.
    """
    scale = alt.Scale(domain=list(values), range=list(values.values()))
    return channel(
        field, scale=scale, legend=alt.Legend(orient="bottom", **legend) if values else None
    )


def looks(
    channels: Mapping[str, Any], field: str, values: Mapping[str, Sequence[Any]], **legend: Any
) -> Look:
    """Return several channels of some series with one common legend, each as by `keyed`."""
    return {
        name: keyed(
            channel,
            field,
            {key: values_by_series[index] for key, values_by_series in values.items()},
            **legend,
        )
        for index, (name, channel) in enumerate(channels.items())
    }


def lines_of(names: pl.Series, colours: Sequence[str] = PALETTE) -> dict[str, Line]:
    """Return colour and dash of each name; the dash changes when all colours are used."""
    looks = ((colour, dash) for dash, colour in product(_DASHES, colours))
    return dict(zip(names.unique().sort(), looks, strict=False))


_DASHES = ([1, 0], [5, 3], [1, 2])


def lines_by(
    field: str, title: str | None, all_lines: dict[str, Line], names: pl.Series, *, columns: int = 3
) -> Look:
    """Return the channels colour and dash of the lines that are drawn, with one legend."""
    lines = {name: line for name, line in all_lines.items() if name in names.to_list()}
    channels = {"color": alt.Color, "strokeDash": alt.StrokeDash}
    legend = {"title": title, "symbolType": "stroke", "symbolSize": 300, "columns": columns}
    return looks(channels, field, lines, **legend)


def predictors(names: pl.Series) -> alt.Color:
    """Return the colour channel of the predictors that are drawn, with a legend."""
    known = {name: PREDICTORS[name][0] for name in order_of(names)}
    return keyed(alt.Color, "predictor:N", known, title=None, columns=3, labelExpr=SPACED)


def order_of(names: pl.Series) -> list[str]:
    """Return the predictors that are drawn, in the order of PREDICTORS."""
    return [name for name in PREDICTORS if name in names.to_list()]


def rank() -> pl.Expr:
    """Return the index of a row's predictor in PREDICTORS."""
    order = {name: index for index, name in enumerate(PREDICTORS)}
    return pl.col("predictor").replace_strict(order, return_dtype=pl.Int64)


def by_end(*names: str) -> alt.Shape:
    """Return the shape channel of `end`: a circle for a bounded value, else a triangle."""
    scale = alt.Scale(domain=list(names), range=["circle", "triangle-up"])
    return alt.Shape("end:N", scale=scale, legend=None)


def tooltip(*fields: str | tuple[str, ...]) -> Tooltip:
    """Return the tooltip of a mark, with the id of its row last.

    Parameters
    ----------
    fields
        Fields as Altair names them, or tuples with title and format instead of those of TITLES.
    """
    entries = (
        field if isinstance(field, tuple) else (field, *TITLES.get(field, ()))
        for field in (*fields, "row_id:N")
    )
    tooltips: Tooltip = []
    for name, *texts in entries:
        options = zip(("title", "format"), texts, strict=False)
        settings: Look = {key: text for key, text in options if text}
        tooltips.append(alt.Tooltip(name, **settings))
    return tooltips


def of_kind(kind: str) -> alt.Chart:
    """Return a chart of the rows of one `kind`."""
    rows: alt.Chart = alt.Chart().transform_filter(f"datum.kind == '{kind}'")
    return rows


def label_beside(chart: alt.Chart, **marks: Any) -> alt.Chart:
    """Return the label beside a boundary's line, left of a line that is `late`."""
    labels: alt.Chart = chart.mark_text(
        align=alt.ExprRef("datum.late ? 'right' : 'left'"),
        baseline="top",
        **{"dx": alt.ExprRef("datum.late ? -4 : 4"), "fontSize": 11, **marks},
    )
    return labels


def reached(at_end: pl.Expr) -> pl.Expr:
    """Return `label`: a row's N_max, with ≥ where its grid ends there."""
    sign = pl.when(at_end).then(pl.lit("≥")).otherwise(pl.lit("="))
    return pl.format("N_max {} {}", sign, "n_max").alias("label")


def styled(chart: alt.FacetChart, title: str, subtitle: str | list[str]) -> alt.FacetChart:
    """Return a chart with its title, subtitle and the common look."""
    lines = wrap(subtitle, _SUBTITLE) if isinstance(subtitle, str) else subtitle
    # One config, since each call such as `configure_axis` copies the whole chart twice.
    config = alt.Config(
        font=_FONT,
        background="white",
        padding=12,
        axis=alt.AxisConfig(
            grid=True, gridColor="#e6e6e6", labelFontSize=11, titleFontSize=12, labelSeparation=4
        ),
        header=alt.HeaderConfig(labelFontSize=12, titleFontSize=12),
        legend=alt.LegendConfig(
            labelFontSize=11, titleFontSize=11, labelLimit=0, symbolOpacity=1, columnPadding=20
        ),
        view=alt.ViewConfig(stroke="#cccccc"),
        title=alt.TitleConfig(fontSize=15, subtitleFontSize=12, subtitleColor="#555555"),
    )
    styled_chart: alt.FacetChart = chart.properties(
        title=alt.TitleParams(title, subtitle=lines, anchor="start", offset=12), config=config
    )
    return styled_chart


def roles(field: str, names: Sequence[str], *, columns: int = 4) -> alt.Color:
    """Return the colour channel of some modules, with a legend in the given order.

    Parameters
    ----------
    field
        The field that holds the role, as Altair names it.
    names
        The roles that are drawn. An unknown role is grey; each further role of the same hue is
        darker than the one before.
    """
    hues = [ROLES.get(_main_role(name), _OTHER) for name in names]
    colours = {
        name: _darker(hues[index], hues[:index].count(hues[index]))
        for index, name in enumerate(names)
    }
    return keyed(alt.Color, field, colours, title=None, columns=columns)


def in_order(names: Iterable[str]) -> list[str]:
    """Return roles in the order in which a forward first runs them, unknown ones last."""
    order = {name: index for index, name in enumerate(ROLES)}
    return sorted(names, key=lambda name: (order.get(_main_role(name), len(order)), name))


def _main_role(role: str) -> str:
    base = base_of(role)
    return _LIKE.get(base, base)


def _darker(colour: str, times: int) -> str:
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part * _SHADE**times):02x}" for part in parts)


_SHADE = 0.6
