"""What claims are checked on: the tables of one scope, read once and found by setting."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations
from typing import Any

import polars as pl

from nearfree.derive.outlook.lookup import PUBLISHED_LOOKUP
from nearfree.derive.outlook.trend import TREND
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.schema import SETTING_COLUMNS, Table
from nearfree.derive.tables.work import WORK

Row = dict[str, Any]
OWN: tuple[Table, ...] = (PLATFORMS, LATENCY, WORK, BOUNDARIES, PREDICTIONS, COMPOSITION)
"""The tables of every scope that claims are checked on."""
OUTLOOK: tuple[Table, ...] = (TREND, PUBLISHED_LOOKUP)
"""Those of the public scope alone."""
BASES = ("probed_stream", "datasheet", "probed_gemm", None)
"""Whose hardware facts a prediction is taken with: the first that there is."""
_SOURCES = ("profiled", "counted")
_TAKE = ("platform", "stream", "take", "plan8", "setting_key")
_POINT = ("row_id", "n", "ratio", "ratio_low", "ratio_high")
_SETTING = [name for name in SETTING_COLUMNS if name != "setting_key"]


class Log:
    """One scope's tables at the headline tolerance.

    Parameters
    ----------
    scope
        Whose tables they are.
    epsilon
        The headline tolerance.
    frames
        The tables by name; one that is missing is empty.
    """

    def __init__(self, scope: str, epsilon: float, frames: Mapping[str, pl.DataFrame]) -> None:
        self.scope, self.epsilon = scope, epsilon
        every = {table.name: pl.DataFrame(schema=table.dtypes) for table in (*OWN, *OUTLOOK)}
        self.frames = every | dict(frames)

    @property
    def ids(self) -> set[str]:
        """The rows that a verdict may rest on."""
        return {each for frame in self.frames.values() for each in frame["row_id"]}

    @cached_property
    def curves(self) -> list[list[Row]]:
        """The newest boundaries of each setting, in the order of tolerances."""
        found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in self._rows("boundaries", "newest"):
            shown = tuple(row[name] or 0 for name in ("batch", "context", "top_k"))
            found[row["stream"], row["platform"], shown, row["setting_key"]].append(row)
        return [sorted(rows, key=lambda row: row["epsilon"]) for _, rows in sorted(found.items())]

    def bounds(self, *modules: str, epsilon: float | None = None) -> list[Row]:
        """Return the newest boundaries of modules at a tolerance, the headline's if none is said.

        Parameters
        ----------
        modules
            Which.
        """
        at = self.epsilon if epsilon is None else epsilon
        every = (row for rows in self.curves for row in rows)
        return [row for row in every if row["epsilon"] == at and row["module"] in modules]

    @cached_property
    def _predictions(self) -> dict[tuple[Any, ...], list[Row]]:
        found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        at = (pl.col("epsilon") == self.epsilon) & pl.col("refusal").is_null()
        for row in self._rows("predictions", at):
            if row["unbounded"] or row["n_max"] is not None:
                found[_setting(row)].append(row)
        return found

    def said(self, bound: Row, *predictors: str) -> Row | None:
        """Return what the first predictor that answers says of a boundary's setting."""
        every = self._predictions.get(_setting(bound), [])
        for predictor in predictors:
            own = [row for row in every if row["predictor"] == predictor]
            if own:
                return min(own, key=lambda row: BASES.index(row["basis"]))
        return None

    @cached_property
    def _latency(self) -> dict[tuple[Any, ...], dict[int, Row]]:
        found: dict[tuple[Any, ...], dict[int, Row]] = defaultdict(dict)
        for row in self._rows("latency", "newest", *_TAKE, *_POINT):
            found[_take(row)][row["n"]] = row
        return found

    def points(self, bound: Row) -> dict[int, Row]:
        """Return the latencies behind a boundary by N, none of a printed one."""
        return self._latency.get(_take(bound), {})

    @cached_property
    def _work(self) -> dict[tuple[Any, ...], dict[tuple[int, str], dict[int, Row]]]:
        found: dict[tuple[Any, ...], dict[tuple[int, str], dict[int, Row]]] = {}
        for row in self._rows("work", "newest"):
            told_by = (_SOURCES.index(row["source"]), row["stream"])
            key = (row["platform"], row["origin"], row["setting_key"])
            found.setdefault(key, {}).setdefault(told_by, {})[row["n"]] = row
        return found

    def work(self, bound: Row) -> dict[int, Row]:
        """Return what a boundary's setting executes by N, as profiled, else as counted."""
        every = self._work.get((bound["platform"], bound["origin"], bound["setting_key"]), {})
        return every[min(every)] if every else {}

    def _rows(self, table: str, which: str | pl.Expr, *columns: str) -> Iterator[Row]:
        frame = self.frames[table].filter(which)
        kept = columns or [name for name in frame.columns if name != "from_ids"]
        return frame.select(kept).iter_rows(named=True)


def pairs(rows: Iterable[Row], varied: str) -> Iterator[tuple[Row, Row]]:
    """Yield every two boundaries that differ in one column alone, the smaller value first."""
    families: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        same = [name for name in _SETTING if name != varied]
        families[row["platform"], row["origin"], *(row[name] for name in same)].append(row)
    for family in families.values():
        known = sorted((r for r in family if r[varied] is not None), key=lambda r: r[varied])
        yield from ((a, b) for a, b in combinations(known, 2) if a[varied] != b[varied])


def _setting(row: Row) -> tuple[Any, ...]:
    return row["platform"], row["origin"], row["setting_key"], row["baseline"]


def _take(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _TAKE)
