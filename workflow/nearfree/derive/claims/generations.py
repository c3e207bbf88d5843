"""Claims on the paper's deployment table, and on how hardware moves from year to year."""

from collections.abc import Iterator
from itertools import combinations

import polars as pl

from nearfree.core.modules.attention import M_ATTN
from nearfree.core.modules.dense_ffn import IDLE
from nearfree.derive.claims.cases import Case, Group, plain
from nearfree.derive.claims.scope_tables import Row, ScopeTables

_OVER_PREDICTION = 2.4
_ROUNDS_FROM, _ROUNDS_BELOW = 22.5, 23.5
"""The range of ratios that round to 23."""


def up_to_23(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether the largest over-prediction of the deployment table, recomputed, is 23."""
    rows = list(_table(tables))
    if rows:
        row = max(rows, key=lambda row: row["idle_compute"] / row["principle"])
        ratio = row["idle_compute"] / row["principle"]
        text = f"the largest is {ratio:.3g} times: {_row_label(row)}"
        yield _case(text, *rows, agrees=_ROUNDS_FROM <= ratio < _ROUNDS_BELOW)


def most_over_predicted(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether more than half of the table's rows over-predict by 2.4 times or more."""
    rows = list(_table(tables))
    over_predicted = [row for row in rows if (row["over_prediction"] or 1) >= _OVER_PREDICTION]
    if rows:
        text = f"{len(over_predicted)} of {len(rows)} rows of the table"
        yield _case(text, *rows, agrees=2 * len(over_predicted) > len(rows))


def formulas_match_print(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether each row of the table follows from its formulas."""
    for row in _table(tables):
        text = (
            f"{_row_label(row)}: N_idle {plain(row['idle_compute'])} against "
            f"{plain(row['printed_idle_compute'])} printed, principle {plain(row['principle'])} "
            f"against {plain(row['printed_principle'])}"
        )
        yield _case(text, row, agrees=row["equal"])


def holds_for_releases(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether a row's principle is the same with releases' granularities at real shapes."""
    for row in _table(tables):
        resolved = row["resolved"]
        text = f"{_row_label(row)}: {plain(row['principle'])} in the table"
        if resolved is not None:
            text += f", {plain(resolved)} by the rules of releases ({row['resolved_term']})"
        agrees = None if resolved is None else round(resolved) == round(row["principle"])
        yield _case(text, row, agrees=agrees, gap=row["principle"] / resolved if resolved else 0.0)


def grows(tables: ScopeTables, module: str, *, column: str, symbol: str = "") -> Iterator[Case]:
    """Yield whether the later of two platforms has the larger number, at one element type.

    `column` is that of the number, rho or the boundary of dense FFNs; `symbol` is its symbol, for
    the text.
    """
    frame = tables.frames["trend"].filter(pl.col("term") == IDLE, pl.col("batch") == 1)
    terms = frame.drop_nulls(["n_max", "year"]).drop("from_ids").sort("year", "platform")
    for rows in terms.partition_by("dtype"):
        for early, late in combinations(rows.to_dicts(), 2):
            if early["year"] < late["year"]:
                text = (
                    f"{early['platform']} ({early['year']}) has {symbol}{plain(early[column])}, "
                    f"{late['platform']} ({late['year']}) {plain(late[column])}, {early['dtype']}"
                )
                agrees, gap = late[column] > early[column], early[column] / late[column]
                yield _case(text, early, late, agrees=agrees, gap=gap, module=module)


def tile_stays(tables: ScopeTables, module: str) -> Iterator[Case]:
    """Yield whether one backend's M_attn is the same on every two platforms."""
    frame = tables.frames["trend"].filter(pl.col("term") == M_ATTN, pl.col("batch") == 1)
    terms = frame.drop_nulls("n_max").drop("from_ids")
    for rows in terms.partition_by("reference", "query_group", "dtype"):
        for first, second in combinations(rows.to_dicts(), 2):
            text = (
                f"{first['reference']}: {plain(first['n_max'])} on {first['platform']}, "
                f"{plain(second['n_max'])} on {second['platform']}"
            )
            yield _case(
                text, first, second, agrees=first["n_max"] == second["n_max"], module=module
            )


def _case(
    text: str, *rows: Row, agrees: bool | None, gap: float = 0.0, module: str | None = None
) -> Case:
    group = Group(None, module, None, None, "published")
    return Case(group, agrees, text, tuple(row["row_id"] for row in rows), gap)


def _table(tables: ScopeTables) -> Iterator[Row]:
    frame = tables.frames["published_lookup"].drop_nulls(["idle_compute", "principle"])
    yield from frame.drop("from_ids").sort("row").iter_rows(named=True)


def _row_label(row: Row) -> str:
    k = f", k = {row['top_k'] or 'any'}" if row["model_type"] == "moe" else ""
    routing = f" {row['routing']}" if row["routing"] else ""
    return f"{row['model_type']}{routing} on {row['platform']}, b = {row['batch']}{k}"
