"""The report's section on the paper's claims: verdicts by claim, failures first."""

import polars as pl
from msgspec import Struct

from nearfree.derive.claims.judge import KINDS, VERDICTS
from nearfree.show.page.sections import Cell, Grid, Row, cell

_ORDER = ("fails", "partly", "undecided", "holds")
_QUESTION = "research question"
_ANSWERS = {"holds": "yes", "partly": "partly", "fails": "no", "undecided": "open"}
"""The answer to a research question, by verdict."""
_HEAD = ("verdict", "agree", "checked on", "reason, the worst case first")


class Claim(Struct, frozen=True):
    """One claim, the number of rows with each verdict, and these rows."""

    kind: str
    section: str
    says: str
    counts: tuple[tuple[str, int], ...]
    grid: Grid


def counts(claims: pl.DataFrame) -> Grid:
    """Return the number of each verdict, by kind of claim and origin of the rows."""
    rows = []
    for (kind, origin), group in claims.sort("place").group_by("kind", "origin"):
        totals = [group.filter(verdict=verdict).height for verdict in VERDICTS]
        rows.append((KINDS.index(str(kind)), origin or "nothing to check", totals))
    names = (
        f"{name}, or {_ANSWERS[name]}" if _ANSWERS[name] != name else name for name in VERDICTS
    )
    return Grid(
        ("kind", "checked on", *names),
        tuple(
            (Cell(KINDS[kind]), Cell(str(origin)), *(Cell(str(n)) for n in totals))
            for kind, origin, totals in sorted(rows)
        ),
    )


def by_claim(claims: pl.DataFrame) -> list[Claim]:
    """Return every claim in the paper's order, its failing rows first."""
    ordered = claims.sort("place")
    return [_claim(rows) for rows in ordered.partition_by("place", maintain_order=True)]


def _claim(claims: pl.DataFrame) -> Claim:
    rows = sorted(claims.to_dicts(), key=lambda row: _ORDER.index(row["verdict"]))
    verdicts = [_verdict(row) for row in rows]
    first = rows[0]
    return Claim(
        kind=first["kind"],
        section=first["section"],
        says=first["says"],
        counts=tuple((name, verdicts.count(name)) for name in dict.fromkeys(verdicts)),
        grid=Grid(_HEAD, tuple(_line(row) for row in rows)),
    )


def _verdict(row: Row) -> str:
    """Return a row's verdict; that of a research question is an answer, such as yes."""
    verdict: str = row["verdict"]
    return _ANSWERS[verdict] if row["kind"] == _QUESTION else verdict


def _line(row: Row) -> tuple[Cell, ...]:
    module = (row["module"] or "").replace("_", " ")
    setting = ", ".join(filter(None, (row["platform"], module, row["backend"], row["routing"])))
    origin = f" ({row['origin']})" if row["origin"] else ""
    return (
        cell(_verdict(row), row["row_id"]),
        cell(f"{row['kept']} of {row['checked']}", row["row_id"]),
        Cell(f"{setting}{origin}" or "-"),
        Cell(row["why"]),
    )
