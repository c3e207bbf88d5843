"""Panels: the rows of each, its title, how panels are laid out, and how boundaries are read."""

from collections.abc import Collection

import altair as alt
import polars as pl

from nearfree.core.label import label, ordered
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.plan import PROFILE_SUFFIX
from nearfree.derive.tables.settings import telling_fields
from nearfree.show.figures.theme import PANEL, SMALL_PANEL

CURVE = ("platform", "stream", "take", "plan8", "setting_key")
"""The columns that say which curve a row of latency, work or boundaries belongs to."""
_FIRST = ("routing", "backend")
"""What is said first, so that two backends of one routing stand side by side."""
_MOST_ACROSS = 6
Layers = alt.LayerChart | alt.FacetChart
"""What altair says that layers of marks are."""


def with_variants(
    frame: pl.DataFrame, module: ModuleKind, named: Collection[str] = ()
) -> pl.DataFrame:
    """Return the rows with `variant`: what else than its own variable tells a row's study apart.

    Backend, routing and the like, among the rows of one platform and origin; the study's name
    where two studies hold the same setting; nothing where there is nothing to tell. A profile
    stands with the study that it is of. The fields that are `named` elsewhere are left out.
    """
    study = pl.col("stream").str.strip_suffix(PROFILE_SUFFIX).alias("study")
    groups = frame.with_columns(study).partition_by("platform", "origin", maintain_order=True)
    return pl.concat(group.with_columns(_variant(group, module, named)) for group in groups)


def _variant(group: pl.DataFrame, module: ModuleKind, named: Collection[str]) -> pl.Series:
    told = [name for name in telling_fields(group, module.own)[1:] if name not in named]
    fields = list(ordered(told, *(name for name in _FIRST if name in told)))
    if group.select("study", "setting_key").n_unique() > group["setting_key"].n_unique():
        fields.append("study")
    rows = group.select(fields).to_dicts() if fields else [{}] * group.height
    texts = [label(row, fields, "column") for row in rows]
    return pl.Series("variant", texts, dtype=pl.String)


def with_panels(frame: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return the rows of one platform with `variant`, `panel` and `of`, sorted by panel.

    There is a panel for each value of the module's own variable (`of`) and each variant; those of
    one value follow each other. Variants that lack a value come last.
    """
    named = with_variants(frame, module).with_columns(
        pl.format("{} = {}", pl.lit(module.letter), module.own).alias("of")
    )
    return named.with_columns(
        pl.when(pl.col("variant") == "")
        .then(pl.col("of"))
        .otherwise(pl.format("{}: {}", "of", "variant"))
        .alias("panel")
    ).sort(~_whole(), module.own, "variant", "n")


def _whole() -> pl.Expr:
    """Return whether a row's variant has every value of the own variable."""
    return pl.col("of").n_unique().over("variant") == pl.col("of").n_unique()


def in_grid(layers: Layers, drawn: pl.DataFrame) -> alt.FacetChart:
    """Return a panel for each of `drawn`'s panels, as `with_panels` sorts them: a value a row.

    Rows and columns are no facets of their own: a grid with gaps would come out shifted.
    """
    across = drawn.filter(_whole())["variant"].n_unique()
    return in_rows(layers, drawn, across if 1 < across <= _MOST_ACROSS else None)


def in_rows(layers: Layers, drawn: pl.DataFrame, columns: int | None = None) -> alt.FacetChart:
    """Return a panel for each of `drawn`'s panels, in their order, some in each row."""
    panels = drawn["panel"].unique(maintain_order=True).to_list()
    columns = columns or (2 if len(panels) < 5 else 3 if len(panels) < 7 else 4)
    rows: alt.FacetChart = layers.properties(**(PANEL if columns == 2 else SMALL_PANEL)).facet(
        facet=alt.Facet(
            "panel:N",
            title=None,
            sort=panels,
            header=alt.Header(labelExpr="split(datum.label, ': ')"),
        ),
        columns=columns,
    )
    own_axes: alt.FacetChart = rows.resolve_axis(x="independent")
    return own_axes


def readings(boundaries: pl.DataFrame) -> pl.DataFrame:
    """Return a row a reading, with `from_one`; both readings of a boundary have its `row_id`."""
    second = boundaries.drop_nulls("n_max_from_1").with_columns(
        pl.lit(1, dtype=pl.Int64).alias("baseline"),
        *(pl.col(f"{name}_from_1").alias(name) for name in ("n_max", "n_low", "n_high")),
        pl.lit(value=True).alias("from_one"),
    )
    return pl.concat([boundaries.with_columns(pl.lit(value=False).alias("from_one")), second])
