"""The list of a scope's drawn figures, with the digest of each file that it names."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
from msgspec import Struct

from nearfree.log.document import FolderManifest, read_document

if TYPE_CHECKING:
    import altair as alt

LIST = "figures.json"
OUTLOOK = "outlook"
"""The part of the report that shows predictions of models."""
MODELS = "models"
"""The part of a platform's section that shows the models that were measured there."""
ENGINES = "engines"
"""The part of it that shows the forwards of real engines."""
TUNED_ENGINES = "tuned_engines"
"""The part of it that shows what tuning an engine said."""
IMPORTED_CURVES = "imported_curves"
"""The part of the report that shows public curves which the log keeps."""


class Figure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One drawn figure: its file's stem, what it shows, and the rows that its marks stand for.

    `rule` is the function that drew it, and `family` that function's name, which figures of the
    same kind share. `about` is the part of the report that shows it, where a scope's figures go
    to several.
    """

    name: str
    caption: str
    family: str
    rule: str
    rows: tuple[str, ...]
    about: str = ""


def drawn_by(
    draws: Callable[..., Any], name: str, caption: str, *shown: pl.DataFrame, about: str = ""
) -> Figure:
    """Return the entry of a figure: the function that draws it, and the rows of some tables."""
    return Figure(
        name=name,
        caption=caption,
        family=draws.__name__,
        rule=f"{draws.__module__}.{draws.__name__}",
        rows=tuple(row for frame in shown for row in frame["row_id"]),
        about=about,
    )


Drawing: TypeAlias = "tuple[Figure, alt.FacetChart]"
"""A figure's entry, and its chart."""


def drawing(
    draws: Callable[..., Any],
    arguments: tuple[object, ...],
    name: str,
    caption: str,
    *shown: pl.DataFrame,
    about: str = "",
) -> Drawing:
    """Return a figure's entry, and the chart that its function draws from some arguments."""
    return drawn_by(draws, name, caption, *shown, about=about), draws(*arguments)


class FigureList(FolderManifest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scope's figures, the tables that they were drawn from by digest, and their files."""

    figures: tuple[Figure, ...]
    made_from: dict[str, str]


def read_figures(folder: Path) -> FigureList:
    """Return the list of a scope's folder of figures; DamageError if it is not as written."""
    return read_document(folder / LIST, FigureList)
