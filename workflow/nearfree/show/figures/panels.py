"""Panels: the rows of each, its name, and where it stands in a figure."""

from collections.abc import Collection, Sequence
from math import gcd

import altair as alt
import polars as pl

from nearfree.core.label import label, ordered
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.parallel import Parallel
from nearfree.core.plan import PROFILE_SUFFIX
from nearfree.core.setting import FIELDS
from nearfree.derive.tables.settings import distinguishing_fields
from nearfree.show.figures.theme import PANEL, SMALL_PANEL

CURVE = ("platform", "stream", "take", "plan8", "setting_key")
"""The columns that name the curve of a row of latency, work or boundaries."""
_FIRST = ("routing", "backend")
"""What a variant names first, so that two backends of one routing stand side by side."""
_CONDITION = ("deployment", "attention", "moe", "dtype", "weights", "kv_dtype")
_SPREAD = Parallel.__struct_fields__
"""What a condition names where another one has the same model, platform and routing."""
_MOST_ACROSS = 6
Layers = alt.LayerChart | alt.FacetChart
"""The type of layers of marks in altair."""


def panel(*parts: str | pl.Expr) -> pl.Expr:
    """Return `panel`: a panel's name, a line of its header for each part that is not empty."""
    return joined(*parts, by=": ").alias("panel")


def joined(*parts: str | pl.Expr, by: str = ", ") -> pl.Expr:
    """Return columns as one text, those that are null or empty left out."""
    texts = [pl.col(part) if isinstance(part, str) else part for part in parts]
    given = [pl.when(text != "").then(text) for text in texts]
    return pl.concat_str(given, separator=by, ignore_nulls=True)


def with_variants(
    rows: pl.DataFrame,
    module: ModuleKind,
    named: Collection[str] = (),
    within: Sequence[str] = ("platform", "origin"),
) -> pl.DataFrame:
    """Return rows with `variant`: the fields besides the own variable in which studies differ.

    Backend, routing and the like; the study's name where two studies hold the same setting;
    empty where nothing differs. A profile stands with its study.

    Parameters
    ----------
    named
        Fields that the panel names already.
    within
        The columns inside whose values rows are compared.
    """
    study = pl.col("stream").str.strip_suffix(PROFILE_SUFFIX).alias("study")
    groups = rows.with_columns(study).partition_by(within, maintain_order=True)
    return pl.concat(group.with_columns(_variant(group, module, named)) for group in groups)


def _variant(group: pl.DataFrame, module: ModuleKind, named: Collection[str]) -> pl.Series:
    differing = [name for name in distinguishing_fields(group, module.own)[1:] if name not in named]
    fields = list(ordered(differing, *(name for name in _FIRST if name in differing)))
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
    value = pl.format("{} = {}", pl.lit(module.letter), module.own).alias("of")
    named = with_variants(frame, module).with_columns(value)
    order = (~_whole(), module.own, "variant", "n")
    return named.with_columns(panel("of", "variant")).sort(*order)


def with_platform_panels(frame: pl.DataFrame, module: ModuleKind) -> pl.DataFrame:
    """Return rows with `variant`, and a `panel` for each platform, origin and variant."""
    place = pl.format("{} ({})", "platform", "origin")
    return with_variants(frame, module).with_columns(panel(place, "variant"))


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
    """Return predictions of models with `condition`, all but batch and context, in its order.

    Parameters
    ----------
    frame
        Rows of `lookup` or `forecast`.
    """
    told = differing("model", "platform", "routing")
    deployment = panel(pl.format("{} on {}", "model", "platform"), "routing", *told)
    return frame.with_columns(deployment.alias("condition")).sort(
        "model", "routing", "platform", *_CONDITION, *_SPREAD, "batch", "context", "row_id"
    )


def differing(*same: str) -> list[pl.Expr]:
    """Return the fields of a condition as texts, each null where rows of the same do not differ."""
    texts = {name: pl.col(name).fill_null("none") for name in _CONDITION}
    texts |= {name: pl.format(f"{name} {{}}", name) for name in _SPREAD}
    return [
        pl.when(pl.col(name).n_unique().over(same) > 1).then(text) for name, text in texts.items()
    ]


def equals(name: str) -> pl.Expr:
    """Return a field of a setting with its letter, such as `b = 4`."""
    return pl.format("{} = {}", pl.lit(FIELDS[name].letter), name)


def _whole() -> pl.Expr:
    """Return whether a row's variant has every value of the own variable."""
    return pl.col("of").n_unique().over("variant") == pl.col("of").n_unique()


def in_grid(layers: Layers, drawn: pl.DataFrame) -> alt.FacetChart:
    """Return a panel for each of `drawn`'s panels, as `with_panels` sorts them: a value a row.

    Rows and columns are no facets of their own: a grid with gaps would come out shifted.
    """
    across = drawn.filter(_whole())["variant"].n_unique()
    return in_rows(layers, drawn, across if 1 < across <= _MOST_ACROSS else None)


def columns_of(drawn: pl.DataFrame) -> int | None:
    """Return how many panels stand side by side so that each row is of one model and routing."""
    sizes = drawn.group_by("model", "routing").agg(pl.col("panel").n_unique())["panel"]
    across = gcd(*sizes)
    return across if 2 < across <= _MOST_ACROSS else None


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
    rows.resolve = alt.Resolve(axis=alt.AxisResolveMap(x="independent"))
    return rows
