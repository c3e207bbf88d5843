"""The list of a scope's figures, with the digests of their files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
from msgspec import Struct

from nearfree.log.document import FolderManifest, read_document

if TYPE_CHECKING:
    import altair as alt

LIST = "figures.json"
OUTLOOK = "outlook"
"""The report's section on predictions of models."""
MODELS = "models"
"""The part of a platform's section on measured models."""
ENGINES = "engines"
"""The part of a platform's section on real engines."""
TUNED_ENGINES = "tuned_engines"
"""The part of a platform's section on tuned engines."""
IMPORTED_CURVES = "imported_curves"
"""The report's section on public curves in the log."""

Frames = Mapping[str, pl.DataFrame]
"""Tables by name."""


class Figure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A drawn figure: the stem of its files, its caption, and the rows behind its marks.

    `rule` is the function that drew it, and `family` the name of that function, which figures of
    the same kind share. `about` is the section of the report that shows it, empty for the gallery.
    """

    name: str
    caption: str
    family: str
    rule: str
    rows: tuple[str, ...]
    about: str = ""


def drawn_by(
    draw: Callable[..., Any], name: str, caption: str, *rows: pl.DataFrame, about: str = ""
) -> Figure:
    """Return the entry of a figure that a function draws from some rows."""
    return Figure(
        name=name,
        caption=caption,
        family=draw.__name__,
        rule=f"{draw.__module__}.{draw.__name__}",
        rows=tuple(row for frame in rows for row in frame["row_id"]),
        about=about,
    )


Drawing: TypeAlias = "tuple[Figure, alt.FacetChart]"
"""A figure's entry, and its chart."""


def drawing(
    draw: Callable[..., Any],
    arguments: tuple[object, ...],
    name: str,
    caption: str,
    *rows: pl.DataFrame,
    about: str = "",
) -> Drawing:
    """Return a figure's entry, and the chart that its function draws from some arguments."""
    return drawn_by(draw, name, caption, *rows, about=about), draw(*arguments)


class FigureList(FolderManifest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scope's figures and their files, with the digests of the tables they were drawn from."""

    figures: tuple[Figure, ...]
    made_from: dict[str, str]


def read_figures(folder: Path) -> FigureList:
    """Return the list of a scope's folder of figures; DamageError if it is not as written."""
    return read_document(folder / LIST, FigureList)
