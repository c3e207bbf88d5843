"""From the words in which a number names its rule to the rows that hold the rule."""

import re

import polars as pl

from nearfree.prove.audit.table_index import Book

_PLACE = re.compile(r"(\S+):(\d+)-(\d+) \(([0-9a-f]{12})\)")
_PRINTED = re.compile(r"tab:[a-z0-9-]+")
_TELLING = ("evidence", "rule")
_MOST = 40


def rules_behind(row: dict[str, object], book: Book) -> list[str]:
    """Return the ids of the rules that a row's text names: branches, tuned intervals, printed rows.

    Parameters
    ----------
    row
        A row with a column `evidence` or `rule`, such as
        `path/to/file.py:796-798 (286c6a53c937), fallback`; none without.
    """
    text = " ".join(str(row.get(name) or "") for name in _TELLING)
    found: list[str] = []
    for place, first, last, digest in _PLACE.findall(text):
        found += _of_source(book, place, int(first), int(last), digest)
    for name in _PRINTED.findall(text):
        found += _printed(book, name, text)
    return list(dict.fromkeys(found))[:_MOST]


def _of_source(book: Book, place: str, first: int, last: int, digest: str) -> list[str]:
    same_file = pl.col("sha256").str.starts_with(digest)
    lines = pl.col("lines").str.split("-").list.eval(pl.element().cast(pl.Int64, strict=False))
    inside = (lines.list.first() >= first) & (lines.list.last() <= last)
    branches = pl.col("place") == place
    found = [
        identifier
        for _, frame in book.parts("granularity")
        for identifier in frame.filter(same_file, branches, inside)["row_id"]
    ]
    if found:
        return found
    return [
        identifier
        for _, frame in book.parts("tuned")
        for identifier in frame.filter(same_file, file=place)["row_id"]
    ]  # of a tuned file all intervals: its rows do not say their lines


def _printed(book: Book, place: str, text: str) -> list[str]:
    rows = [
        row
        for _, frame in book.parts("granularity")
        for row in frame.filter(place=place).iter_rows(named=True)
    ]
    named = [r for r in rows if r["condition"] in text or f", {r['path']}" in text]
    return [row["row_id"] for row in named or rows]
