"""Panels of figures: their rows, names and layout."""

from collections.abc import Collection, Sequence
from math import gcd

import altair as alt
import polars as pl

from nearfree.core.label import label, ordered
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.parallel import DEGREES
from nearfree.core.plan import PROFILE_SUFFIX
from nearfree.core.setting import FIELDS
from nearfree.derive.tables.settings import distinguishing_fields
from nearfree.show.figures.theme import PANEL, SMALL_PANEL

CURVE = ("platform", "stream", "take", "plan8", "setting_key")
"""The columns that identify the curve of a row of latency, work or boundaries."""
LEADING_FIELDS = ("routing", "backend")
"""The first fields of a variant, so that backends of one routing are side by side."""
CONDITION_FIELDS = ("deployment", "attention", "moe", "dtype", "weights", "kv_dtype")
PARALLEL_FIELDS = DEGREES
"""Fields that a condition names if another one has the same model, platform and routing."""
_MOST_ACROSS = 6
Layers = alt.LayerChart | alt.FacetChart
"""The type of layers of marks in altair."""


def panel(*parts: str | pl.Expr) -> pl.Expr:
    """Return `panel`: a panel's name, with one line of its header per non-empty part."""
    return joined(*parts, separator=": ").alias("panel")


def joined(*parts: str | pl.Expr, separator: str = ", ") -> pl.Expr:
    """Return columns joined into one text, without null or empty ones."""
    texts = [pl.col(part) if isinstance(part, str) else part for part in parts]
    non_empty = [pl.when(text != "").then(text) for text in texts]
    return pl.concat_str(non_empty, separator=separator, ignore_nulls=True)


def with_variants(
    rows: pl.DataFrame,
    module: ModuleKind,
    panel_fields: Collection[str] = (),
    within: Sequence[str] = ("platform", "origin"),
) -> pl.DataFrame:
    """Return rows with `variant`: the fields other than the own variable in which studies differ.

    A variant has backend, routing and the like, and the study's name where two studies hold the
    same setting; it is empty where nothing differs. A profile has the variant of its study.

    Parameters
    ----------
    panel_fields
        Fields that the panel names already.
    within
        Rows with equal values in these columns are compared.
    """
    study = pl.col("stream").str.strip_suffix(PROFILE_SUFFIX).alias("study")
    groups = rows.with_columns(study).partition_by(within, maintain_order=True)
    return pl.concat(group.with_columns(_variant(group, module, panel_fields)) for group in groups)


def _variant(group: pl.DataFrame, module: ModuleKind, panel_fields: Collection[str]) -> pl.Series:
    differing = [
        name for name in distinguishing_fields(group, module.own)[1:] if name not in panel_fields
    ]
    fields = list(ordered(differing, *(name for name in LEADING_FIELDS if name in differing)))
    if group.select("study", "setting_key").n_unique() > group["setting_key"].n_unique():
        fields.append("study")
    rows = group.select(fields).to_dicts() if fields else [{}] * group.height
    texts = [label(row, fields, "column") for row in rows]
    return pl.Series("variant", texts, dtype=pl.String)


def with_panels(frame: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return the rows of one platform with `variant`, `panel` and `of`, sorted by panel.

    There is a panel for each value of the module's own variable (`of`) and each variant, ordered by
    value. Variants that lack a value come last.
    """
    value = pl.format("{} = {}", pl.lit(module.letter), module.own).alias("of")
    with_values = with_variants(frame, module).with_columns(value)
    order = (~_whole(), module.own, "variant", "n")
    return with_values.with_columns(panel("of", "variant")).sort(*order)


def with_platform_panels(frame: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return rows with `variant`, and a `panel` for each platform, origin and variant."""
    platform_label = pl.format("{} ({})", "platform", "origin")
    return with_variants(frame, module).with_columns(panel(platform_label, "variant"))


def with_model_panels(frame: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return rows of measured models with `panel`: model, routing, L and variant.

    Parameters
    ----------
    frame
        Rows of one platform and origin with the columns of a setting.
    """
    sorted_by = ("model", "routing", "context")
    rows = with_variants(frame.sort(*sorted_by), module, sorted_by, within=("model",))
    setting = joined("routing", equals("context"), "variant")
    return rows.with_columns(panel("model", setting)).sort(
        *sorted_by, "variant", module.own, "setting_key"
    )


def with_conditions(frame: pl.DataFrame) -> pl.DataFrame:
    """Return predictions of models with `condition`, the fields except batch and context, sorted.

    Parameters
    ----------
    frame
        Rows of `lookup` or `forecast`.
    """
    fields = differing("model", "platform", "routing")
    deployment = panel(pl.format("{} on {}", "model", "platform"), "routing", *fields)
    return frame.with_columns(deployment.alias("condition")).sort(
        "model",
        "routing",
        "platform",
        *CONDITION_FIELDS,
        *PARALLEL_FIELDS,
        "batch",
        "context",
        "row_id",
    )


def differing(*same: str) -> list[pl.Expr]:
    """Return the fields of a condition as texts, null where rows equal in `same` do not differ."""
    texts = {name: pl.col(name).fill_null("none") for name in CONDITION_FIELDS}
    texts |= {name: pl.format(f"{name} {{}}", name) for name in PARALLEL_FIELDS}
    return [
        pl.when(pl.col(name).n_unique().over(same) > 1).then(text) for name, text in texts.items()
    ]


def equals(name: str) -> pl.Expr:
    """Return a field of a setting with its letter, such as `b = 4`."""
    return pl.format("{} = {}", pl.lit(FIELDS[name].letter), name)


def _whole() -> pl.Expr:
    """Return whether a row's variant has every value of the own variable."""
    return pl.col("of").n_unique().over("variant") == pl.col("of").n_unique()


def in_grid(layers: Layers, rows: pl.DataFrame) -> alt.FacetChart:
    """Return one panel per `panel`, as `with_panels` sorts them, with one value per line.

    Altair's row and column facets are not used, since a grid with gaps would be shifted.
    """
    across = rows.filter(_whole())["variant"].n_unique()
    return in_rows(layers, rows, across if 1 < across <= _MOST_ACROSS else None)


def columns_of(rows: pl.DataFrame) -> int | None:
    """Return the number of panels per line for which a line has one model and routing only."""
    sizes = rows.group_by("model", "routing").agg(pl.col("panel").n_unique())["panel"]
    across = gcd(*sizes)
    return across if 2 < across <= _MOST_ACROSS else None


def in_rows(layers: Layers, rows: pl.DataFrame, columns: int | None = None) -> alt.FacetChart:
    """Return one panel per `panel` of some rows, in their order, with `columns` panels per line."""
    panels = rows["panel"].unique(maintain_order=True).to_list()
    columns = columns or (2 if len(panels) < 5 else 3 if len(panels) < 7 else 4)
    facets: alt.FacetChart = layers.properties(**(PANEL if columns == 2 else SMALL_PANEL)).facet(
        facet=alt.Facet(
            "panel:N",
            title=None,
            sort=panels,
            header=alt.Header(labelExpr="split(datum.label, ': ')"),
        ),
        columns=columns,
    )
    facets.resolve = alt.Resolve(axis=alt.AxisResolveMap(x="independent"))
    return facets
