"""The report on measured models' modules: where the minimum misses, and what the LM head takes."""

import polars as pl

from nearfree.decoders.laps import BETWEEN, HEAD
from nearfree.report.models import ORDER, PREFIX, Backing, number, spoken
from nearfree.report.sections import Cell, Grid, Row, cell

_MINIMUM = "modules_minimum"
"""The predictor that is explained where it misses."""


def missed(composition: pl.DataFrame) -> tuple[Cell, ...]:
    """Return a sentence for each setting at which the minimum of modules' boundaries misses.

    Parameters
    ----------
    composition
        Rows of that table at one tolerance; what is refused is not told.
    """
    rows = composition.filter(~pl.col("hit"), predictor=_MINIMUM).drop_nulls("predicted")
    return tuple(cell(_sentence(row), row["row_id"]) for row in rows.sort(ORDER).to_dicts())


def _sentence(row: Row) -> str:
    named = f"{spoken(row)}: the minimum names {row['limiter']} at N = {number(row['predicted'])}"
    if row["limiter_share"] is not None:
        named += f", which takes {row['limiter_share']:.0%} of T(N = {row['baseline']})"
    loosely = " (undecided)" if row["undecided"] else ""
    return f"{named}; {row['origin']} was N_max = {row['n_max']}{loosely}{_grown(row)}."


def _grown(row: Row) -> str:
    if row["measured_limiter"] is None:
        return ""
    name = "the same module" if row["same_limiter"] else row["measured_limiter"]
    growth = row["measured_growth"]
    part = "" if growth is None else f", by {growth:.0%} of what all grew by"
    return f", and {name} grew most{part}"


def beside(time_shares: pl.DataFrame, scope: str) -> tuple[Grid, Backing]:
    """Return what the LM head, and what lies between modules, take of T(baseline) in each model.

    Parameters
    ----------
    time_shares
        Rows of that table of one platform.
    """
    at = time_shares.filter("newest", pl.col("n") == pl.col("baseline")).sort(*ORDER, "place")
    rows, backing = [], []
    for (model,), group in at.group_by("model", maintain_order=True):
        cells = []
        for role in (HEAD, BETWEEN):
            taken = group.filter(role=role)
            link = f"{PREFIX}{scope}-{model}-{role}"
            if taken.is_empty():
                cells.append(Cell("-"))
                continue
            backing.append((link, taken["row_id"].to_list()))
            cells.append(cell(_range(taken["share"]), link))
        rows.append((Cell(str(model)), Cell(str(group["setting_key"].n_unique())), *cells))
    return Grid(("model", "settings", HEAD, f"{BETWEEN} modules"), tuple(rows)), backing


def _range(shares: pl.Series) -> str:
    ends = (min(shares), max(shares))
    return " to ".join(dict.fromkeys(f"{end:.1%}" for end in ends))
