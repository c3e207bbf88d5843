"""Public curves in the log: T(N) / T(baseline) against N, one line per platform."""

from collections.abc import Iterator
from textwrap import wrap

import altair as alt
import polars as pl

from nearfree.core.label import label
from nearfree.core.modules.registry import KINDS
from nearfree.core.setting import FIELDS, MODULES
from nearfree.show.figures.boundaries import ORIGINS
from nearfree.show.figures.listing import IMPORTED_CURVES, Drawing, drawing
from nearfree.show.figures.panels import in_rows, panel
from nearfree.show.figures.theme import (
    BAND,
    PALETTE,
    lines_by,
    lines_of,
    of_kind,
    positions,
    styled,
    tooltip,
)

_COLOURS = (*PALETTE, "#000000")
_SHAPE, _EDGE = ORIGINS["imported"]
_TOLERANCES = 5
"""Upper end of the axis, in tolerances above 1."""
_LOWEST, _ROOM = 0.9, 0.04
_WIDTH = 28
"""Characters per line above a panel."""
_ACROSS = 90
"""Characters per line above all panels."""
_SIZES = [name for name, field in FIELDS.items() if field.kind is int and name != "batch"]


def kernel_drawings(kernels: pl.DataFrame) -> Iterator[Drawing]:
    """Yield the figure of the table `kernels`, none where the log holds no curves."""
    if not kernels.is_empty():
        gpus = kernels["platform"].n_unique()
        caption = (
            f"Imported, not measured here: T(N) / T(baseline) on {gpus} GPUs by their newest "
            f"releases, from {_sources(kernels)}"
        )
        yield drawing(
            imported_curves, (kernels,), "imported_curves", caption, kernels, about=IMPORTED_CURVES
        )


def imported_curves(kernels: pl.DataFrame) -> alt.FacetChart:
    """Return T(N) / T(baseline) with N_max, a panel per module and backend, a line per platform.

    Parameters
    ----------
    kernels
        Rows of this table, at least one.
    """
    epsilon = float(kernels["epsilon"][0])
    points = _with_panels(kernels)
    backends = points.group_by("module").agg(pl.col("backend").n_unique())["backend"].unique()
    across = int(backends[0]) if len(backends) == 1 else None  # a module's backends side by side
    lowest = min(_LOWEST, *(points["ratio"] - _ROOM))
    scale = alt.Scale(domain=[lowest, 1 + _TOLERANCES * epsilon], nice=False)
    x, y = positions(points), alt.Y("ratio:Q", title="T(N) / T(baseline)", scale=scale)
    platforms = points["platform"]
    channels = lines_by("platform:N", None, lines_of(platforms, _COLOURS), platforms, columns=5)
    hover = tooltip(
        *("platform:N", "backend_version:N", "kernel:N", "n:Q", "latency_us:Q"),
        ("ratio:Q", "T(N) / T(baseline)", ".3f"),
        *(("baseline:Q", "baseline N"), ("n_max:Q", "N_max"), ("next_n:Q", "next N")),
    )
    point_chart = of_kind("point")
    cut_note = f"Lines end at four times N_max; cut at {1 + _TOLERANCES * epsilon:g}."
    layers = alt.layer(
        of_kind("band")
        .mark_rect(color=BAND, opacity=0.18)
        .encode(x=x, x2="n2:Q", y=y, y2="limit:Q"),
        point_chart.mark_line(strokeWidth=1.4, clip=True).encode(
            x=x, y=y, detail="kernel:N", **channels
        ),
        point_chart.mark_point(size=9, filled=True, opacity=1, clip=True).encode(
            x=x, y=y, color=channels["color"], tooltip=hover
        ),
        point_chart.transform_filter("datum.n == datum.n_max")
        .mark_point(shape=_SHAPE, filled=True, stroke=_EDGE, strokeWidth=1, size=70, opacity=1)
        .encode(x=x, y=y, color=channels["color"], tooltip=hover),
        data=pl.concat([_bands(points, epsilon), points.select(_DRAWN)], how="diagonal_relaxed"),
    )  # fmt: skip
    return styled(
        in_rows(layers, points, across).resolve_scale(x="independent"),
        "T(N) / T(baseline) against N, public curves of kernels, imported",
        [
            *wrap(f"Imported, not measured here: {_sources(points)}", _ACROSS),
            "One request, bfloat16, balanced experts, attention without a cache; 8 bits per point.",
            f"Band: within {epsilon:.0%} of T(baseline). Triangle: N_max. {cut_note}",
        ],
    )


_DRAWN = (
    *("panel", "kind", "platform", "backend_version", "kernel", "n", "latency_us", "ratio"),
    *("baseline", "n_max", "next_n", "row_id"),
)


def _sources(rows: pl.DataFrame) -> str:
    return "; ".join(rows["source"].unique().sort())


def _with_panels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return rows with their panel: module and backend, and the shape in the next line."""
    rows = kernels.to_dicts()
    shapes = [": ".join(wrap(label(row, _SIZES, "short"), _WIDTH)) for row in rows]
    titles = {name: kind.title for name, kind in KINDS.items()}
    titled = kernels.with_columns(
        pl.Series("shape", shapes, dtype=pl.String),
        pl.format("{}, {}", pl.col("module").replace(titles), "backend").alias("title"),
        pl.lit("point").alias("kind"),
    )
    module_order = pl.col("module").cast(pl.Enum(MODULES))
    return titled.with_columns(panel("title", "shape")).sort(
        module_order, *("backend", "platform", "kernel", "n")
    )


def _bands(points: pl.DataFrame, epsilon: float) -> pl.DataFrame:
    return points.group_by("panel", maintain_order=True).agg(
        pl.col("n").min(),
        pl.col("n").max().alias("n2"),
        pl.lit(1.0).alias("ratio"),
        pl.lit(1 + epsilon).alias("limit"),
        pl.lit("band").alias("kind"),
    )
