"""The gallery: each figure and table of the paper, with what the log holds of it and how it got it.

An entry says whether something was measured, simulated, imported, only published, or computed
without measuring, which figures show it, and what would fill it where nothing does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from msgspec import Struct

from nearfree.config.files import Config
from nearfree.core.scopes import PUBLIC, SOURCES
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout
from nearfree.show.figures.listing import LIST, Figure, read_figures
from nearfree.show.figures.paper import (
    CALLED,
    COMPUTED,
    EXPLAINED,
    MEASURED,
    MISSING,
    PUBLISHED,
    READ,
    STATUSES,
    Data,
    Drawn,
    Entry,
    Fill,
    Paper,
    Shown,
    read_paper,
)

_ORIGINS = dict(zip(("measured", "simulated", "imported", "published"), STATUSES, strict=False))
"""What is said of an origin; the first one that a row has."""
_BOUNDARY = f"{BOUNDARIES.name}:"
_NOWHERE = "none"
"""The place of what was looked for in a release and is not there."""


class Held(Struct, frozen=True, kw_only=True):
    """What a results root holds: figures and rows by scope, and how many rows other tables have.

    `counts` has them by SCOPE/NAME, and `sets` the set of each study that there is.
    """

    listed: Mapping[str, Sequence[Figure]]
    boundaries: Mapping[str, pl.DataFrame]
    granularity: Mapping[str, pl.DataFrame]
    counts: Mapping[str, int]
    sets: Mapping[str, str]


def gallery(paper: Paper, held: Held) -> list[Entry]:
    """Return an entry for each figure and table of the paper, in its order."""
    return [_entry(shown, paper.of(shown), held) for shown in (*paper.figures, *paper.tables)]


def read_gallery(layout: Layout, config: Path, scopes: Sequence[str]) -> list[Entry]:
    """Return the gallery of a results root, over the scopes whose figures are drawn."""
    paper = read_paper(config)
    sets = {name: study.set for name, study in Config(config).studies.items()}
    return gallery(paper, _held(layout, paper, scopes, sets))


def _held(layout: Layout, paper: Paper, scopes: Sequence[str], sets: Mapping[str, str]) -> Held:
    folders = {scope: layout.root / "figures" / scope for scope in scopes}
    listed = {
        scope: read_figures(folder).figures
        for scope, folder in folders.items()
        if (folder / LIST).exists()
    }
    named = {shown.table for shown in (*paper.figures, *paper.tables)} - {""}
    files = {name: layout.table(*name.split("/", 1)) for name in sorted(named)}
    return Held(
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
            name: pl.scan_parquet(path).select(pl.len()).collect().item()
            for name, path in files.items()
            if path.exists()
        },
        sets=sets,
    )


def _entry(shown: Shown, panels: Mapping[str, str], held: Held) -> Entry:
    if shown.module:
        table = BOUNDARIES.name
        about = {scope: _of(frame, shown) for scope, frame in held.boundaries.items()}
    else:
        table = GRANULARITY.name
        about = {scope: _told(frame, shown) for scope, frame in held.granularity.items()}
    about = {scope: frame for scope, frame in about.items() if not frame.is_empty()}
    data = [_data(f"{scope}/{table}", frame.height) for scope, frame in about.items()]
    data += [_data(name, rows) for name, rows in held.counts.items() if name == shown.table]
    status = _status(shown, about, data)
    figures, alike = _drawn(shown, {*panels.values()}, held, about)
    return Entry(
        label=shown.label,
        kind=shown.kind,
        section=shown.section,
        title=shown.said,
        panels=tuple(panels),
        families=tuple(dict.fromkeys(panels.values())),
        status=status,
        figures=figures,
        alike=alike,
        data=tuple(data),
        fills=() if status == MEASURED else _fills(shown, held.sets),
        document=shown.document,
    )


def _of(boundaries: pl.DataFrame, shown: Shown) -> pl.DataFrame:
    """Return the newest rows that are of what a figure shows; a backend's releases count as it."""
    rows = boundaries.filter("newest", platform=shown.platform, module=shown.module)
    for name in ("routing", "model"):
        if value := getattr(shown, name):
            rows = rows.filter(pl.col(name) == value)
    return rows.filter(pl.col("backend").str.starts_with(shown.backend))


def _told(granularity: pl.DataFrame, shown: Shown) -> pl.DataFrame:
    """Return the rules that a table prints, and those of their names that releases were read of."""
    if not shown.package:
        return granularity.clear()
    read = (pl.col("package") == shown.package) & pl.col("path").is_in(shown.rules)
    found = read & (pl.col("origin") != "published") & (pl.col("place") != _NOWHERE)
    return granularity.filter(found | (pl.col("place") == shown.label))


def _status(shown: Shown, about: Mapping[str, pl.DataFrame], data: Sequence[Data]) -> str:
    origins = {origin for frame in about.values() for origin in frame["origin"].unique()}
    if shown.module:
        return next((said for name, said in _ORIGINS.items() if name in origins), MISSING)
    if shown.document:
        return EXPLAINED
    if not data:
        return MISSING
    if not shown.package:
        return COMPUTED
    if origins == {"published"}:
        return PUBLISHED
    return CALLED if shown.only_called else READ


def _drawn(
    shown: Shown, families: set[str], held: Held, about: Mapping[str, pl.DataFrame]
) -> tuple[tuple[Drawn, ...], tuple[Drawn, ...]]:
    """Return the figures that show it, and those of its families that show the like elsewhere.

    A figure that lists boundaries shows it if one of them is about it; one that lists none, such
    as of utilisation, if it is of the platform.
    """
    rows = {row for frame in about.values() for row in frame["row_id"]}
    exact: list[Drawn] = []
    alike: list[Drawn] = []
    for scope, figures in held.listed.items():
        there = not shown.module or (scope == shown.platform and scope in about)
        for figure in figures:
            if figure.family in families and figure.name.startswith(shown.module):
                bounded = any(row.startswith(_BOUNDARY) for row in figure.rows)
                mine = not rows.isdisjoint(figure.rows) if bounded else there
                (exact if mine else alike).append(_file(scope, figure))
    return tuple(exact), tuple(alike)


def _file(scope: str, figure: Figure) -> Drawn:
    module = figure.rule.rpartition(".")[0]
    stem = f"figures/{scope}/{figure.name}"
    return Drawn(
        scope=scope,
        name=figure.name,
        caption=figure.caption,
        rule=figure.rule,
        source=f"workflow/{module.replace('.', '/')}.py",
        rows=len(figure.rows),
        href=f"{stem}.html",
        picture=f"{stem}.svg",
    )


def _data(name: str, rows: int) -> Data:
    scope, _, table = name.partition("/")
    return Data(scope=scope, table=table, rows=rows, href=f"tables/{name}.parquet")


def _fills(shown: Shown, sets: Mapping[str, str]) -> tuple[Fill, ...]:
    return tuple(
        Fill(
            platform=shown.platform,
            study=study,
            set=sets.get(study, ""),
            command=f"snakemake {shown.platform}/{study}",
        )
        for study in shown.studies
    )
