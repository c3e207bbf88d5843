"""The gallery: each figure and table of the paper, with its counterparts in the log.

An entry has a status (measured, simulated, imported, published only, computed, ...), the figures
that show it, and the commands that would measure it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from msgspec import Struct

from nearfree.config.yaml_file import read_file
from nearfree.core.modules.model import MODEL
from nearfree.core.modules.registry import MAIN
from nearfree.core.scopes import PUBLIC, SOURCES
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.store import read_table, row_count
from nearfree.errors import ConfigError
from nearfree.log.names import Layout
from nearfree.show.figures.listing import LIST, Figure, read_figures

FILE = "published/figures.yaml"
_MODULES: dict[str, str] = {module.name: module.title for module in (*MAIN, MODEL)}


class Exhibit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure or table of the paper: its place there, and its subject."""

    label: str
    section: str
    title: str = ""
    """Its subject, where that is not a module."""
    panels: str = ""
    """The set of panels; empty for a table without a counterpart among the figures here."""
    platform: str = ""
    module: str = ""
    backend: str = ""
    routing: str = ""
    model: str = ""
    studies: tuple[str, ...] = ()
    """The studies that would measure it on its platform."""
    table: str = ""
    """The table here that holds it, as SCOPE/NAME."""
    package: str = ""
    """The package whose rules it prints."""
    rules: tuple[str, ...] = ()
    """The names of these rules."""
    only_called: bool = False
    """Whether these rules only launch or call the code that the paper prints."""
    document: str = ""
    """The document that explains what it lists."""

    @property
    def subject(self) -> str:
        """The subject in words."""
        named = _MODULES.get(self.module, self.title)
        routed = f"{self.routing} routing" if self.routing else ""
        parts = (named, self.model, routed, self.backend, self.platform)
        return ", ".join(part for part in parts if part)

    @property
    def fills(self) -> tuple[str, ...]:
        """The commands that would measure it."""
        return tuple(f"snakemake {self.platform}/{study}" for study in self.studies)


class Paper(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All exhibits, and the sets of panels by name: a panel's content, and its figure family."""

    panels: dict[str, dict[str, str]]
    figures: tuple[Exhibit, ...]
    tables: tuple[Exhibit, ...]

    def of(self, exhibit: Exhibit) -> dict[str, str]:
        """Return the panels of a figure or table, each with its figure family."""
        return self.panels[exhibit.panels] if exhibit.panels else {}


def read_paper(config: Path) -> Paper:
    """Return the exhibits of a config folder; ConfigError if one names unknown panels."""
    paper = read_file(config / FILE, Paper)
    for exhibit in (*paper.figures, *paper.tables):
        if exhibit.panels and exhibit.panels not in paper.panels:
            raise ConfigError(
                f"{config / FILE}: {exhibit.label} has the unknown panels {exhibit.panels!r:.80}",
                remedy=f"Use one of {', '.join(paper.panels)}",
            )
    return paper


MEASURED, SIMULATED, IMPORTED = "measured here", "simulated", "imported values only"
PUBLISHED, COMPUTED, EXPLAINED = "published values only", "computed here", "explained here"
READ, CALLED = "read from releases", "launch or call read, kernel not"
MISSING = "not in the log"
STATUSES = (
    *(MEASURED, SIMULATED, IMPORTED, PUBLISHED, COMPUTED),
    *(READ, CALLED, EXPLAINED, MISSING),
)
"""The values of an entry's `status`."""


class DrawnFigure(Struct, frozen=True, kw_only=True):
    """A figure of the report, by its scope and name."""

    scope: str
    name: str


class Data(Struct, frozen=True, kw_only=True):
    """A table, and the number of its rows that belong to an entry."""

    scope: str
    table: str
    rows: int


class Entry(Struct, frozen=True, kw_only=True):
    """A figure or table of the paper, with its counterparts in the report.

    `figures` show its own platform or its published values; `alike` are of the same families and
    module on other platforms; `fills` are the commands that would measure it.
    """

    label: str
    section: str
    title: str
    status: str
    figures: tuple[DrawnFigure, ...]
    alike: tuple[DrawnFigure, ...]
    data: tuple[Data, ...]
    fills: tuple[str, ...]
    document: str


_ORIGINS = dict(zip(("measured", "simulated", "imported", "published"), STATUSES, strict=False))
"""The status by origin; the first of these origins among the rows counts."""
_BOUNDARY = f"{BOUNDARIES.name}:"
_NOWHERE = "none"
"""The place of a rule that a release lacks."""


class Results(Struct, frozen=True, kw_only=True):
    """The content of a results root: figures and rows by scope, and rows per table.

    `counts` are the numbers of rows by SCOPE/NAME.
    """

    listed: Mapping[str, Sequence[Figure]]
    boundaries: Mapping[str, pl.DataFrame]
    granularity: Mapping[str, pl.DataFrame]
    counts: Mapping[str, int]


def gallery(paper: Paper, results: Results) -> list[Entry]:
    """Return an entry for each figure and table of the paper, in its order."""
    return [
        _entry(exhibit, {*paper.of(exhibit).values()}, results)
        for exhibit in (*paper.figures, *paper.tables)
    ]


def read_gallery(layout: Layout, config: Path, scopes: Sequence[str]) -> list[Entry]:
    """Return the gallery of a results root, over the scopes whose figures are drawn."""
    paper = read_paper(config)
    return gallery(paper, _results(layout, paper, scopes))


def _results(layout: Layout, paper: Paper, scopes: Sequence[str]) -> Results:
    folders = {scope: layout.root / "figures" / scope for scope in scopes}
    listed = {
        scope: read_figures(folder).figures
        for scope, folder in folders.items()
        if (folder / LIST).exists()
    }
    table_names = {exhibit.table for exhibit in (*paper.figures, *paper.tables)} - {""}
    scoped_names = {name: name.split("/", 1) for name in sorted(table_names)}
    return Results(
        listed=listed,
        boundaries={
            scope: read_table(layout, scope, BOUNDARIES, without=("from_ids",)) for scope in listed
        },
        granularity={
            scope: read_table(layout, scope, GRANULARITY, without=("from_ids",))
            for scope in (PUBLIC, SOURCES)
            if layout.table(scope, GRANULARITY.name).exists()
        },
        counts={
            name: row_count(layout, scope, table)
            for name, (scope, table) in scoped_names.items()
            if layout.table(scope, table).exists()
        },
    )


def _entry(exhibit: Exhibit, families: set[str], results: Results) -> Entry:
    frames = results.boundaries if exhibit.module else results.granularity
    table = BOUNDARIES if exhibit.module else GRANULARITY
    rows_of = _boundaries_of if exhibit.module else _rules_of
    selected = {scope: rows_of(frame, exhibit) for scope, frame in frames.items()}
    rows_by_scope = {scope: frame for scope, frame in selected.items() if not frame.is_empty()}
    data = [
        Data(scope=scope, table=table.name, rows=frame.height)
        for scope, frame in rows_by_scope.items()
    ]
    if exhibit.table in results.counts:
        scope, _, name = exhibit.table.partition("/")
        data.append(Data(scope=scope, table=name, rows=results.counts[exhibit.table]))
    status = _status(exhibit, rows_by_scope, data)
    figures, alike = _figures_of(exhibit, families, results, rows_by_scope)
    return Entry(
        label=exhibit.label,
        section=exhibit.section,
        title=exhibit.subject,
        status=status,
        figures=figures,
        alike=alike,
        data=tuple(data),
        fills=() if status == MEASURED else exhibit.fills,
        document=exhibit.document,
    )


def _boundaries_of(boundaries: pl.DataFrame, exhibit: Exhibit) -> pl.DataFrame:
    """Return the newest boundaries of an exhibit; a backend's releases count as the backend."""
    rows = boundaries.filter("newest", platform=exhibit.platform, module=exhibit.module)
    for name in ("routing", "model"):
        if value := getattr(exhibit, name):
            rows = rows.filter(pl.col(name) == value)
    return rows.filter(pl.col("backend").str.starts_with(exhibit.backend))


def _rules_of(granularity: pl.DataFrame, exhibit: Exhibit) -> pl.DataFrame:
    """Return the rules that a table prints, and the rules of these names read from releases."""
    if not exhibit.package:
        return granularity.clear()
    selected = (pl.col("package") == exhibit.package) & pl.col("path").is_in(exhibit.rules)
    extracted = selected & (pl.col("origin") != "published") & (pl.col("place") != _NOWHERE)
    return granularity.filter(extracted | (pl.col("place") == exhibit.label))


def _status(
    exhibit: Exhibit, rows_by_scope: Mapping[str, pl.DataFrame], data: Sequence[Data]
) -> str:
    origins = {origin for frame in rows_by_scope.values() for origin in frame["origin"].unique()}
    if exhibit.module:
        return next((status for name, status in _ORIGINS.items() if name in origins), MISSING)
    if exhibit.document:
        return EXPLAINED
    if not data:
        return MISSING
    if not exhibit.package:
        return COMPUTED
    if origins == {"published"}:
        return PUBLISHED
    return CALLED if exhibit.only_called else READ


def _figures_of(
    exhibit: Exhibit,
    families: set[str],
    results: Results,
    rows_by_scope: Mapping[str, pl.DataFrame],
) -> tuple[tuple[DrawnFigure, ...], tuple[DrawnFigure, ...]]:
    """Return the figures that show an exhibit, and those of its families for other platforms.

    A figure that lists boundaries shows the exhibit if one of them belongs to it. A figure without
    boundaries, such as one of utilisation, shows it if the platform is the same.
    """
    rows = {row for frame in rows_by_scope.values() for row in frame["row_id"]}
    matching: list[DrawnFigure] = []
    alike: list[DrawnFigure] = []
    for scope, figures in results.listed.items():
        same_platform = not exhibit.module or (scope == exhibit.platform and scope in rows_by_scope)
        for figure in figures:
            if figure.family in families and figure.name.startswith(exhibit.module):
                cites_boundaries = any(row.startswith(_BOUNDARY) for row in figure.rows)
                matches = not rows.isdisjoint(figure.rows) if cites_boundaries else same_platform
                figure_id = DrawnFigure(scope=scope, name=figure.name)
                (matching if matches else alike).append(figure_id)
    return tuple(matching), tuple(alike)
