"""The tables that the page shows and leads to."""

import re
from collections.abc import Mapping

import polars as pl

from nearfree.core.scopes import IMPORTED, PLATFORM, PUBLIC, SOURCES
from nearfree.derive.jobs import TABLES
from nearfree.derive.stages import STAGE_OF, STAGES
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout

Frames = Mapping[str, pl.DataFrame]
_REPORT = STAGES["report"]
PAGE_TABLES = [TABLES[name] for name in (*_REPORT.reads, *_REPORT.sources, *_REPORT.imported)]
"""Every table that the page is made of."""
_OF_PLATFORMS = [TABLES[name] for name in _REPORT.reads if STAGE_OF[name].has(PLATFORM)]
_OF_PUBLIC = [TABLES[name] for name in _REPORT.reads if STAGE_OF[name].single]
_TUNED, _ACCURACY = TABLES["tuned"], TABLES["accuracy"]
_RULE = re.compile(r"\(([0-9a-f]{12})\)")


def scope_frames(layout: Layout, scope: str) -> dict[str, pl.DataFrame]:
    """Return a scope's tables by name; the scope of rules has no boundaries and what follows."""
    return {
        table.name: read_table(layout, scope, table)
        if STAGE_OF[table.name].has(scope)
        else empty(table)
        for table in _OF_PLATFORMS
    }


def outlook_frames(layout: Layout, scopes: list[str]) -> dict[str, pl.DataFrame]:
    """Return the tables of the public scope that no other has, empty without that scope."""
    there = PUBLIC in scopes
    return {
        table.name: read_table(layout, PUBLIC, table) if there else empty(table)
        for table in _OF_PUBLIC
    }


def together(layout: Layout, loaded: Mapping[str, Frames], scopes: list[str]) -> Frames:
    """Return all rows of all scopes by table, those that several scopes share but once.

    Of tuned files those rows are there that some evidence names.
    """
    frames = {
        table.name: pl.concat(frames[table.name] for frames in loaded.values()).unique(
            "row_id", keep="first", maintain_order=True
        )
        for table in _OF_PLATFORMS
    }
    frames |= outlook_frames(layout, scopes)
    if SOURCES in scopes:
        named = _named_files(frames)
        tuned = read_table(layout, SOURCES, _TUNED)
        frames[_TUNED.name] = tuned.filter(pl.col("sha256").str.slice(0, 12).is_in(named))
    return frames


def _named_files(frames: Frames) -> list[str]:
    """Return the digests, twelve digits of each, of files that rows name as their rule."""
    texts = {
        text
        for frame in frames.values()
        for column in ("evidence", "rule")
        if column in frame.columns
        for text in frame[column].drop_nulls().unique()
    }
    return sorted({digest for text in texts for digest in _RULE.findall(text)})


def imported_accuracy(layout: Layout, *, imported: bool) -> pl.DataFrame:
    """Return the scores on imported curves, none where there are no curves."""
    return read_table(layout, IMPORTED, _ACCURACY) if imported else empty(_ACCURACY)


def empty(table: Table) -> pl.DataFrame:
    """Return a table without rows."""
    return table.build(table.frame([]), [])
