"""The tables that the page shows and leads to."""

import re
from collections.abc import Mapping

import polars as pl

from nearfree.derive.claims.table import CLAIMS
from nearfree.derive.outlook.drift import VERSION_DRIFT
from nearfree.derive.outlook.lookup import PUBLISHED_LOOKUP
from nearfree.derive.outlook.outlook import FORECAST, LOOKUP
from nearfree.derive.outlook.schedules import SCHEDULES
from nearfree.derive.outlook.trend import TREND
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.accuracy import ACCURACY
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.score.scores import SCORES
from nearfree.derive.score.validation import VALIDATION
from nearfree.derive.tables.boundaries import BOUNDARIES, SENSITIVITY
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import SETTINGS
from nearfree.derive.tables.store import read_table
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.derive.tables.tuned import TUNED
from nearfree.derive.tables.work import WORK
from nearfree.log.names import Layout
from nearfree.public.curves import SCOPE as IMPORTED
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.sources.record import SCOPE as SOURCES

Frames = Mapping[str, pl.DataFrame]
OBSERVED = (PLATFORMS, GRANULARITY, SETTINGS, LATENCY, WORK)
"""What the scope of rules has, too."""
EACH = (*OBSERVED, BOUNDARIES, SENSITIVITY, PREDICTIONS, VALIDATION, TIME_SHARES, COMPOSITION,
        SCORES, CLAIMS)  # fmt: skip
"""What every other scope has."""
ONCE = (LOOKUP, FORECAST, SCHEDULES, PUBLISHED_LOOKUP, TREND, VERSION_DRIFT)
"""What the public scope alone has."""
_RULE = re.compile(r"\(([0-9a-f]{12})\)")


def scope_frames(layout: Layout, scope: str) -> dict[str, pl.DataFrame]:
    """Return a scope's tables by name; the scope of rules has no boundaries and what follows."""
    return {
        table.name: read_table(layout, scope, table)
        if scope != SOURCES or table in OBSERVED
        else empty(table)
        for table in EACH
    }


def outlook_frames(layout: Layout, scopes: list[str]) -> dict[str, pl.DataFrame]:
    """Return the tables of the public scope that no other has, empty without that scope."""
    there = PUBLIC in scopes
    return {
        table.name: read_table(layout, PUBLIC, table) if there else empty(table) for table in ONCE
    }


def together(layout: Layout, loaded: Mapping[str, Frames], scopes: list[str]) -> Frames:
    """Return all rows of all scopes by table, those that several scopes share but once.

    Of tuned files those rows are there that some evidence names.
    """
    frames = {
        table.name: pl.concat(each[table.name] for each in loaded.values()).unique(
            "row_id", keep="first", maintain_order=True
        )
        for table in EACH
    }
    frames |= outlook_frames(layout, scopes)
    if SOURCES in scopes:
        named = _named_files(frames)
        tuned = read_table(layout, SOURCES, TUNED)
        frames[TUNED.name] = tuned.filter(pl.col("sha256").str.slice(0, 12).is_in(named))
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
    return read_table(layout, IMPORTED, ACCURACY) if imported else empty(ACCURACY)


def empty(table: Table) -> pl.DataFrame:
    """Return a table without rows."""
    return table.build(table.frame([]), [])
