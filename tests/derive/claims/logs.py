"""Small logs for claims: a few rows of each table, with default values elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl
from nearfree.derive.claims.judge import claim_rows
from nearfree.derive.claims.paper import CLAIMS_CHECKED
from nearfree.derive.claims.scope_tables import ScopeTables
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.columns import SETTING_COLUMNS, Column
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.work import WORK

Row = dict[str, Any]
EPSILON = 0.2
_IDENTITY = ("platform", "stream", "take", "plan8", "newest", *SETTING_COLUMNS, "baseline",
             "origin")  # fmt: skip


_TOLD_BY = {"ratio": LATENCY, "source": WORK, "limiter": COMPOSITION, "predictor": PREDICTIONS}
"""Columns that identify a row's table: the first that the row has counts."""


def plainest(column: Column) -> object:
    """Return the simplest value that a column may hold."""
    if column.nullable:
        return None
    if column.one_of is not None:
        return column.one_of[0]
    plain: Mapping[Any, object] = {
        pl.String(): "x", pl.Int64(): 1, pl.Float64(): 1.0, pl.Boolean(): False,
    }  # fmt: skip
    return plain[column.dtype]


def rows_of(table: Table, rows: Iterable[Row]) -> pl.DataFrame:
    """Return rows as that table, with the simplest value in each column that a row lacks."""
    plain = {name: plainest(column) for name, column in table.body.items()}
    full = [plain | row | {"from_ids": ["e#1"]} for row in rows]
    return table.build(table.frame(full), {"e#1"})


def at(
    module: str, n: int, following: int | None, *, interval: Sequence[int] = (), **more: Any
) -> Row:
    """Return a boundary: its N_max, the next N of the grid, and its interval if it has one."""
    low, high = interval or (None, None)
    kind = "printed" if not interval else "sharp" if low == high else "bracketed"
    setting = {"module": module, "backend": "b", "dtype": "bfloat16", "batch": 1, **more}
    fields_ = {name: value for name, value in setting.items() if name not in ("verdict", "epsilon")}
    return {
        "platform": "cpu", "stream": "s", "take": 1, "plan8": "0" * 8, "newest": True,
        "epsilon": EPSILON, "baseline": 1, "n_max": n, "first_exit": n, "next_n": following,
        "n_low": low, "n_high": high, "verdict": "censored" if interval and not following else kind,
        "origin": "measured", "setting_key": repr(sorted(fields_.items())), "cuda_graph": False,
    } | setting  # fmt: skip


def identity(bound: Row) -> Row:
    """Return the fields that a boundary's row shares with other rows of its setting."""
    return {name: bound[name] for name in _IDENTITY if name in bound}


def answer(bound: Row, predictor: str, n: float | None, **more: Any) -> Row:
    """Return a prediction of a boundary's setting; unbounded where `n` is None."""
    prediction = {"predictor": predictor, "n_max": n, "unbounded": n is None, "epsilon": EPSILON}
    return identity(bound) | prediction | {"basis": "datasheet", **more}


def points(bound: Row, ratios: Mapping[int, float], noise: float = 0.0) -> list[Row]:
    """Return the latencies of a boundary's curve, each ratio known to a share of itself."""
    return [
        identity(bound)
        | {"n": n, "ratio": r, "ratio_low": r * (1 - noise), "ratio_high": r * (1 + noise)}
        for n, r in ratios.items()
    ]


def work(bound: Row, flops: Mapping[int, float], **more: Any) -> list[Row]:
    """Return what a boundary's setting executes, by N."""
    own = {k: v for k, v in identity(bound).items() if k != "baseline"}
    return [
        own | {"n": n, "flop_executed": f, "source": "counted"} | more for n, f in flops.items()
    ]


def composed(bound: Row, predictor: str, n: float, limiter: str, measured: str) -> Row:
    """Return a composition of a model's boundary, with both limiters."""
    prediction = {"predictor": predictor, "predicted": n, "limiter": limiter, "epsilon": EPSILON}
    seen = {"measured_limiter": measured, "same_limiter": limiter == measured}
    own = {k: v for k, v in identity(bound).items() if k not in ("take", "plan8", "newest")}
    return own | prediction | seen | {"n_max": bound["n_max"], "basis": "datasheet"}


def log(bounds: Sequence[Row], *rest: Iterable[Row], scope: str = "cpu") -> ScopeTables:
    """Return the log of some boundaries and of other rows; columns identify their tables."""
    frames = {BOUNDARIES.name: rows_of(BOUNDARIES, bounds)}
    other = [row for rows in rest for row in rows]
    kinds = [next(name for name in _TOLD_BY if name in row) for row in other]
    for name, table in _TOLD_BY.items():
        rows = [row for row, by in zip(other, kinds, strict=True) if by == name]
        if rows:
            frames[table.name] = rows_of(table, rows)
    return ScopeTables(scope, EPSILON, frames)


def judge(name: str, log: ScopeTables) -> Row:
    """Return the one row of a claim that has any case, or the row without cases."""
    rows = list(claim_rows(log, [claim for claim in CLAIMS_CHECKED if claim.name == name]))
    checked = [row for row in rows if row["checked"]]
    assert len(checked) <= 1
    return checked[0] if checked else rows[0]
