"""Whether every id that a table names is that of a row, an event, or a config value."""

import polars as pl

from nearfree.derive.stages import TABLES
from nearfree.derive.tables.event_ids import EventIds
from nearfree.log.names import Layout
from nearfree.log.seal import read_seal
from nearfree.prove.audit.table_index import Book


def known_events(layout: Layout) -> EventIds:
    """Return the ids of all events that sealed takes hold."""
    return EventIds(
        (take.segment(part.attempt), range(1, part.events + 1))
        for take in layout.takes()
        for part in read_seal(layout, take).segments
    )


def row_ids(book: Book) -> pl.Series:
    """Return the ids of all rows of all tables."""
    parts = [frame["row_id"] for name in TABLES for _, frame in book.parts(name)]
    return pl.concat(parts).unique() if parts else pl.Series([], dtype=pl.String)


def dangling(layout: Layout) -> list[str]:
    """Return what tables name that is not there, each with the table that names it."""
    book = Book(layout)
    rows, events = row_ids(book), known_events(layout)
    found = []
    for name in TABLES:
        for scope, frame in book.parts(name):
            ids = frame["from_ids"].explode().drop_nulls().unique()
            ids = ids.filter(~ids.is_in(rows.implode()) & ~ids.str.starts_with("config/"))
            is_event = ids.str.contains("#", literal=True)
            odd = [*ids.filter(~is_event), *events.absent(ids.filter(is_event))]
            if odd:
                others = f" and {len(odd) - 1} more" if odd[1:] else ""
                found.append(f"{layout.table(scope, name)}: names {min(odd)!r}{others}, not there")
    return found
