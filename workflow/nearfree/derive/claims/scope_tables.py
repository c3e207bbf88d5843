"""The tables of one scope that claims are checked on, indexed by setting."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations
from typing import Any

import polars as pl

from nearfree.core.label import SIZES
from nearfree.derive.stages import STAGES, declared
from nearfree.derive.tables.columns import SETTING_COLUMNS

Row = dict[str, Any]
BASES = ("probed_stream", "datasheet", "probed_gemm", None)
"""Sources of hardware facts, in order of preference."""
_SOURCES = ("profiled", "counted")
_TAKE_COLUMNS = ("platform", "stream", "take", "plan8", "setting_key")
_POINT_COLUMNS = ("row_id", "n", "ratio", "ratio_low", "ratio_high")
_SETTING_COLUMNS = [name for name in SETTING_COLUMNS if name != "setting_key"]


class ScopeTables:
    """One scope's tables at the headline tolerance.

    `frames` are the tables by name; a missing one counts as empty.
    """

    def __init__(self, scope: str, epsilon: float, frames: Mapping[str, pl.DataFrame]) -> None:
        self.scope, self.epsilon = scope, epsilon
        empty = {
            name: pl.DataFrame(schema=declared(name).dtypes) for name in STAGES["claims"].reads
        }
        self.frames = empty | dict(frames)

    @property
    def ids(self) -> set[str]:
        """The ids of all rows that a verdict may name."""
        return {row_id for frame in self.frames.values() for row_id in frame["row_id"]}

    @cached_property
    def curves(self) -> list[list[Row]]:
        """The newest boundaries of each setting, by rising tolerance."""
        curves: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in self._rows("boundaries", "newest"):
            sizes = tuple(row[name] or 0 for name in SIZES)
            curves[row["stream"], row["platform"], sizes, row["setting_key"]].append(row)
        return [sorted(rows, key=lambda row: row["epsilon"]) for _, rows in sorted(curves.items())]

    def bounds(self, *modules: str, epsilon: float | None = None) -> list[Row]:
        """Return the newest boundaries of module kinds at a tolerance (default: the headline's)."""
        tolerance = self.epsilon if epsilon is None else epsilon
        boundaries = (row for rows in self.curves for row in rows)
        return [
            row for row in boundaries if row["epsilon"] == tolerance and row["module"] in modules
        ]

    @cached_property
    def _predictions(self) -> dict[tuple[Any, ...], list[Row]]:
        predictions: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        answered = (pl.col("epsilon") == self.epsilon) & pl.col("refusal").is_null()
        for row in self._rows("predictions", answered):
            if row["unbounded"] or row["n_max"] is not None:
                predictions[_prediction_key(row)].append(row)
        return predictions

    def prediction(self, bound: Row, *predictors: str) -> Row | None:
        """Return the prediction for a boundary's setting, of the first predictor that answers."""
        predictions = self._predictions.get(_prediction_key(bound), [])
        for predictor in predictors:
            candidates = [row for row in predictions if row["predictor"] == predictor]
            if candidates:
                return min(candidates, key=lambda row: BASES.index(row["basis"]))
        return None

    @cached_property
    def _latency(self) -> dict[tuple[Any, ...], dict[int, Row]]:
        points: dict[tuple[Any, ...], dict[int, Row]] = defaultdict(dict)
        for row in self._rows("latency", "newest", *_TAKE_COLUMNS, *_POINT_COLUMNS):
            points[_take_key(row)][row["n"]] = row
        return points

    def points(self, bound: Row) -> dict[int, Row]:
        """Return the latencies behind a boundary by N; empty for a printed boundary."""
        return self._latency.get(_take_key(bound), {})

    @cached_property
    def _work(self) -> dict[tuple[Any, ...], dict[tuple[int, str], dict[int, Row]]]:
        work: dict[tuple[Any, ...], dict[tuple[int, str], dict[int, Row]]] = {}
        for row in self._rows("work", "newest"):
            source = (_SOURCES.index(row["source"]), row["stream"])
            key = (row["platform"], row["origin"], row["setting_key"])
            work.setdefault(key, {}).setdefault(source, {})[row["n"]] = row
        return work

    def work(self, bound: Row) -> dict[int, Row]:
        """Return the executed work of a boundary's setting by N, profiled if there is any."""
        by_source = self._work.get((bound["platform"], bound["origin"], bound["setting_key"]), {})
        return by_source[min(by_source)] if by_source else {}

    def _rows(self, table: str, condition: str | pl.Expr, *columns: str) -> Iterator[Row]:
        frame = self.frames[table].filter(condition)
        names = columns or [name for name in frame.columns if name != "from_ids"]
        return frame.select(names).iter_rows(named=True)


def pairs(rows: Iterable[Row], varied: str) -> Iterator[tuple[Row, Row]]:
    """Yield every two boundaries that differ only in one column, the smaller value first."""
    families: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        fixed = [name for name in _SETTING_COLUMNS if name != varied]
        families[row["platform"], row["origin"], *(row[name] for name in fixed)].append(row)
    for family in families.values():
        with_value = [row for row in family if row[varied] is not None]
        with_value.sort(key=lambda row: row[varied])
        yield from ((a, b) for a, b in combinations(with_value, 2) if a[varied] != b[varied])


def _prediction_key(row: Row) -> tuple[Any, ...]:
    return row["platform"], row["origin"], row["setting_key"], row["baseline"]


def _take_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _TAKE_COLUMNS)
