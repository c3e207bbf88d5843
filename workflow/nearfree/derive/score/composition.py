"""Table `composition`: a model's boundary composed from its modules, against the measured one.

The measured limiter is the module whose time inside the model grows most from the baseline to the
next N after the boundary (to the grid's end if there is none).
"""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

import polars as pl

from nearfree.core.label import setting_key
from nearfree.decoders.ranks.modules import BETWEEN
from nearfree.derive.tables.columns import (
    ORIGINS,
    SETTING_COLUMNS,
    amount,
    count,
    flag,
    number,
    text,
)
from nearfree.derive.tables.schema import Table
from nearfree.log.events import LatencyMeasured, PredictionRecorded
from nearfree.log.evidence import Take

PREDICTED = {
    "basis": text("the source of hardware facts", nullable=True),
    "predicted": amount("the prediction", nullable=True),
    "unbounded": flag("whether the predictor sets no limit on N"),
    "low": amount("lower end of its interval", nullable=True),
    "high": amount("upper end of it", nullable=True),
}
"""The columns of a prediction, beside its predictor."""
COMPOSITION = Table(
    name="composition",
    row="one way of composing a model's boundary from its modules, against the measured one",
    key=("platform", "stream", "setting_key", "epsilon", "predictor", "basis"),
    formula="a hit is n_max <= predicted < next N; the limiter is the module whose time grows "
    "most up to it",
    paper="sec. 4",
    code="nearfree.derive.score.composition",
    body={
        "platform": text("the kind of machine"),
        "stream": text("the study"),
        **SETTING_COLUMNS,
        "epsilon": amount("tolerance"),
        "baseline": count("the N that ratios refer to"),
        "origin": text("where the boundary comes from", one_of=ORIGINS),
        "n_max": count("last pass over the grid, measured"),
        "n_low": count("lower end of its interval", nullable=True),
        "n_high": count("upper end of it", nullable=True),
        "measured_width": amount("how wide that interval is: n_high / n_low", nullable=True),
        "next_n": count("the grid point after n_max, none at the grid's end", nullable=True),
        "undecided": flag("whether the measurement is too loose to tell"),
        "measured_limiter": text("the module whose time grew most; `between` is none",
                                 nullable=True),
        "measured_growth": number("its share of the growth of all modules that grew",
                                  nullable=True),
        "predictor": text("the composition: the sum of modules, their minimum, or a law"),
        **PREDICTED,
        "limiter": text("the module that it names", nullable=True),
        "limiter_share": number("that module's share of T(baseline)", nullable=True),
        "same_limiter": flag("whether it names the module that was measured", nullable=True),
        "hit": flag("n_max <= predicted < next_n; never if refused or undecided"),
        "within": flag("whether it lies in the measured interval, which is open above at the "
                       "grid's end; a refusal does not"),
        "foretold": flag("whether it was on record before the first sample of that take"),
        "refusal": text("why there is no prediction", nullable=True),
    },
)  # fmt: skip
_SETTING_NAMES = tuple(SETTING_COLUMNS)
_VALIDATION_COLUMNS = (
    *("platform", "stream", *_SETTING_NAMES, "epsilon", "origin", "n_max", "next_n", "undecided"),
    *("predictor", "basis", "predicted", "unbounded", "low", "high", "hit", "refusal"),
)
Row = dict[str, Any]


def compose(
    validation: pl.DataFrame,
    boundaries: pl.DataFrame,
    predictions: pl.DataFrame,
    shares: pl.DataFrame,
    takes: Iterable[Take],
) -> Iterator[Row]:
    """Yield a row for each prediction of each measured boundary of a model.

    Parameters
    ----------
    validation, boundaries, predictions, shares
        Tables of a scope; `shares` is its `time_shares`.
    takes
        The scope's takes, whose times tell whether the prediction or the sample was first. They are
        read only if there are models.
    """
    is_model = pl.col("module") == "model"
    validated = validation.filter(is_model).to_dicts()
    first_sampled, recorded_at = _event_times(takes) if validated else ({}, {})
    judged = [
        {row["row_id"]: row for row in table.filter(is_model).to_dicts()}
        for table in (boundaries, predictions)
    ]
    module_times = _ModuleTimes(shares.filter("newest"))
    for row in validated:
        boundary, prediction = (
            next(by_id[row_id] for row_id in row["from_ids"] if row_id in by_id) for by_id in judged
        )
        baseline, key = boundary["baseline"], (row["stream"], row["setting_key"])
        sampled_at = first_sampled.get(
            (boundary["stream"], boundary["take"], boundary["plan8"], row["setting_key"]), ""
        )
        limiter, growth, share_ids = module_times.limiter(key, baseline, row["next_n"])
        predicted_limiter = prediction["limiting_module"]
        yield {
            **{name: row[name] for name in _VALIDATION_COLUMNS},
            "baseline": baseline,
            "n_low": boundary["n_low"],
            "n_high": boundary["n_high"],
            "measured_width": boundary["n_high"] / boundary["n_low"] if boundary["n_low"] else None,
            "measured_limiter": limiter,
            "measured_growth": growth,
            "limiter": predicted_limiter,
            "limiter_share": module_times.share(key, baseline, predicted_limiter),
            "same_limiter": None
            if None in (limiter, predicted_limiter)
            else limiter == predicted_limiter,
            "within": _within(inf if row["unbounded"] else row["predicted"], boundary),
            "foretold": any(
                recorded_at.get(row_id, sampled_at) < sampled_at
                for row_id in prediction["from_ids"]
            ),
            "from_ids": [row["row_id"], boundary["row_id"], prediction["row_id"], *share_ids],
        }


def _within(predicted: float | None, bound: Row) -> bool:
    if predicted is None or bound["n_low"] is None:
        return False
    above = bound["next_n"] is None or predicted <= bound["n_high"]
    return bool(bound["n_low"] <= predicted and above)


class _ModuleTimes:
    """The time of each module inside a model's forward, by setting and N."""

    def __init__(self, shares: pl.DataFrame) -> None:
        self._rows: dict[tuple[str, str], dict[int, dict[str, Row]]] = {}
        for row in shares.sort("place").to_dicts():
            key = (row["stream"], row["setting_key"])
            at = self._rows.setdefault(key, {}).setdefault(row["n"], {})
            at[row["role"]] = row

    def limiter(
        self, key: tuple[str, str], baseline: int, next_n: int | None
    ) -> tuple[str | None, float | None, list[str]]:
        """Return the module whose time grew most, its part of all growth, and both rows' ids."""
        grid = self._rows.get(key, {})
        last = next_n or max(grid, default=baseline)
        if baseline not in grid or last not in grid or last == baseline:
            return None, None, []
        start, end = grid[baseline], grid[last]
        grown = {
            role: row["latency_us"] - start[role]["latency_us"]
            for role, row in end.items()
            if role in start
        }
        role = max((role for role in grown if role != BETWEEN), key=lambda role: grown[role])
        total_growth = sum(us for us in grown.values() if us > 0)
        row_ids = [start[role]["row_id"], end[role]["row_id"]]
        return role, grown[role] / total_growth if total_growth > 0 else None, row_ids

    def share(self, key: tuple[str, str], n: int, role: str | None) -> float | None:
        """Return a module's share of T(N)."""
        row = self._rows.get(key, {}).get(n, {}).get(role or "")
        return row["share"] if row else None


def _event_times(
    takes: Iterable[Take],
) -> tuple[dict[tuple[str, int, str, str], str], dict[str, str]]:
    """Return the time of each setting's first sample, by take, and of each recorded prediction."""
    first_sampled: dict[tuple[str, int, str, str], str] = {}
    recorded_at: dict[str, str] = {}
    for take in takes:
        name = take.name
        for event in take.events_of(LatencyMeasured):
            key = (name.stream, name.take, name.plan8, setting_key(event.data.setting))
            first_sampled[key] = min(first_sampled.get(key, event.time), event.time)
        recorded_at |= {event.event_id: event.time for event in take.events_of(PredictionRecorded)}
    return first_sampled, recorded_at
