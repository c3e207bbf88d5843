"""The rows of tables `granularity` and `tuned` that a row's evidence text names."""

import re

import polars as pl

from nearfree.prove.audit.table_index import TableIndex

_PLACE = re.compile(r"(\S+):(\d+)-(\d+) \(([0-9a-f]{12})\)")
_PRINTED = re.compile(r"tab:[a-z0-9-]+")
_RULE_COLUMNS = ("evidence", "rule")
_MOST = 40


def rules_behind(row: dict[str, object], index: TableIndex) -> list[str]:
    """Return the ids of the rules that a row's text names: branches, tuned intervals, printed rows.

    Parameters
    ----------
    row
        A row, with a column `evidence` or `rule` such as
        `path/to/file.py:796-798 (286c6a53c937), fallback`; others name no rules.
    """
    text = " ".join(str(row.get(name) or "") for name in _RULE_COLUMNS)
    row_ids: list[str] = []
    for place, first, last, digest in _PLACE.findall(text):
        row_ids += _of_source(index, place, int(first), int(last), digest)
    for name in _PRINTED.findall(text):
        row_ids += _printed(index, name, text)
    return list(dict.fromkeys(row_ids))[:_MOST]


def _of_source(index: TableIndex, place: str, first: int, last: int, digest: str) -> list[str]:
    same_file = pl.col("sha256").str.starts_with(digest)
    lines = pl.col("lines").str.split("-").list.eval(pl.element().cast(pl.Int64, strict=False))
    inside = (lines.list.first() >= first) & (lines.list.last() <= last)
    branches = pl.col("place") == place
    row_ids = [
        identifier
        for _, frame in index.parts("granularity")
        for identifier in frame.filter(same_file, branches, inside)["row_id"]
    ]
    if row_ids:
        return row_ids
    return [
        identifier
        for _, frame in index.parts("tuned")
        for identifier in frame.filter(same_file, file=place)["row_id"]
    ]  # all intervals of a tuned file: its rows have no line numbers


def _printed(index: TableIndex, place: str, text: str) -> list[str]:
    rows = [
        row
        for _, frame in index.parts("granularity")
        for row in frame.filter(place=place).iter_rows(named=True)
    ]
    named = [r for r in rows if r["condition"] in text or f", {r['path']}" in text]
    return [row["row_id"] for row in named or rows]
