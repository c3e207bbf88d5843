"""Answers on forwards of real engines: by their rules, and by constants of a platform's curves."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.core.predictors import WORK_MODEL
from nearfree.derive.granularity.engine import Change, EngineForward, EngineRules
from nearfree.derive.granularity.resolve import memoised
from nearfree.derive.laws.engine_law import LAW_REFUSALS, principle_of_engine
from nearfree.derive.predict.answers import ANSWER_COLUMNS
from nearfree.derive.work_model.engine import (
    Calibrated,
    EngineCurve,
    calibrated_engine,
    covered_kernels,
    needed_kernels,
    shares_constants,
    terms,
    times_by_type,
)
from nearfree.derive.work_model.engine_curves import EngineLog
from nearfree.derive.work_model.family import Array, boundaries
from nearfree.errors import NearfreeError

_RATIOS = {"asked": pl.Int64, "n": pl.Int64, "ratio": pl.Float64}
Row = dict[str, Any]


class EngineTimed(Struct, frozen=True, kw_only=True):
    """T(N) of a forward over a grid that begins at its baseline, in microseconds."""

    rules: EngineRules
    calibration: Calibrated
    grid: tuple[int, ...]
    latency_us: tuple[float, ...]

    @property
    def ratio(self) -> Array:
        """T(N) / T(baseline), [1, grid]."""
        times = np.array([self.latency_us])
        return np.asarray(times / times[:, :1])

    def answer(self, epsilon: float) -> Row:
        """Return N_max with its interval and limiter, by the column names of an answer."""
        constants = self.calibration.constants
        own_points = np.ones(self.ratio.shape, dtype=bool)
        exits = boundaries(self.ratio, own_points, epsilon, constants.band)
        last, low, high = (int(index[0]) for index in (exits.last, exits.low, exits.high))
        n_max = float(self.grid[last])
        return {
            "n_max": n_max,
            "n_max_extended": n_max,
            "low": float(self.grid[low]),
            "high": float(self.grid[high]),
            **self._limit(last, epsilon),
            "constants": calibration_text(self.rules.forward, self.calibration),
            "calibration": [curve.event_id for curve in self.calibration.curves],
            "in_sample": self.calibration.in_sample,
        }

    def _limit(self, last: int, epsilon: float) -> Row:
        """Return the type of product whose time grows most after N_max; None at the grid's end."""
        next_place = last + 1
        if next_place == len(self.grid):
            return dict.fromkeys(("limiting_module", "limiting_term", "evidence", "margin"))
        n, ratio = self.grid[next_place], float(self.ratio[0, next_place])
        constants = self.calibration.constants
        before_us = times_by_type(self.rules, constants, self.grid[last])
        after_us = times_by_type(self.rules, constants, n)
        growth_us = {name: us - before_us.get(name, 0.0) for name, us in after_us.items()}
        limit = max(growth_us, key=lambda name: growth_us[name])
        heaviest = sorted(self.rules.matrix_groups, key=lambda matrix: -matrix.used)
        product = next((matrix.product for matrix in heaviest if matrix.name == limit), None)
        rows = self.rules.forward.batch * n
        return {
            "limiting_module": limit,
            "limiting_term": f"T({n}) = {ratio:.3g} T({self.grid[0]})",
            "evidence": None if product is None else self.rules.place(product.passes(rows)[-1]),
            "margin": ratio / (1.0 + epsilon),
        }


def calibration_text(forward: EngineForward, calibration: Calibrated) -> str:
    """Return a sentence on what constants were calibrated on."""
    constants = calibration.constants
    positive = sum(value > 0 for value in constants.values.values())
    return (
        f"{forward.engine} {forward.release}: {positive} constants above zero, fitted to "
        f"{constants.points} points of {'; '.join(constants.curves)}"
    )


class EngineAnswers:
    """The answers of each predictor on queries of the module `engine`, forwards of a log."""

    def __init__(self, questions: pl.DataFrame, log: EngineLog) -> None:
        self._log = log
        rows = questions.select("asked", "platform", "setting_key", "baseline", "grid").to_dicts()
        self._queries = {row["asked"]: row for row in rows}
        self._principle: Callable[[int], Row] = memoised(self._by_principle)
        self._times: Callable[[int], EngineTimed] = memoised(self._by_work_model)

    def answers(self, epsilons: Sequence[float], predictors: Sequence[str]) -> pl.DataFrame:
        """Return one row per query, predictor and tolerance."""
        rows = [
            {"in_sample": False} | self._answer(number, predictor, epsilon)
            | {"asked": number, "predictor": predictor, "epsilon": float(epsilon)}
            for predictor in predictors
            for number in self._queries
            for epsilon in epsilons
        ]  # fmt: skip
        return pl.DataFrame(rows, schema=ANSWER_COLUMNS)

    def ratios(self) -> pl.DataFrame:
        """Return the work model's T(N) / T(baseline) over each grid: asked, n, ratio."""
        rows = [
            {"asked": number, "n": n, "ratio": float(ratio)}
            for number, timed in self.timed().items()
            for n, ratio in zip(timed.grid, timed.ratio[0], strict=True)
        ]
        return pl.DataFrame(rows, schema=_RATIOS)

    def timed(self) -> Mapping[int, EngineTimed]:
        """Return T(N) by query, for those that are not refused."""
        timed = {}
        for number in self._queries:
            with suppress(NearfreeError):
                timed[number] = self._times(number)
        return timed

    def _answer(self, number: int, predictor: str, epsilon: float) -> Row:
        if predictor in LAW_REFUSALS:
            return {"refusal": LAW_REFUSALS[predictor]}
        try:
            if predictor != WORK_MODEL:
                return self._principle(number)
            timed = self._times(number)
        except NearfreeError as error:
            return {"refusal": str(error)}
        return timed.answer(epsilon)

    def _by_principle(self, number: int) -> Row:
        """Return the principle's answer by rules, which depend on what the engine loaded."""
        query = self._queries[number]
        answer = principle_of_engine(self._rules(query), query["baseline"], query["grid"][-1])
        loaded = self._log.forwards(query["platform"])[query["setting_key"]].loaded
        return answer | {"calibration": [loaded.event_id]}

    def _by_work_model(self, number: int) -> EngineTimed:
        query = self._queries[number]
        rules, curves = self._rules(query), self._log.curves(query["platform"])
        return timed_forward(rules, query["grid"], query["platform"], curves)

    def _rules(self, query: Row) -> EngineRules:
        return self._log.rules(self._log.forward(query["platform"], query["setting_key"]))


def timed_forward(
    rules: EngineRules,
    grid: Sequence[int],
    platform: str,
    curves: Sequence[EngineCurve],
) -> EngineTimed:
    """Return T(N) of a forward over a grid; the errors are those of `calibrated_engine`."""
    calibration = calibrated_engine(rules, grid, platform, curves)
    return EngineTimed(
        rules=rules,
        calibration=calibration,
        grid=tuple(grid),
        latency_us=tuple(calibration.constants.latency_us(terms(rules, n)) for n in grid),
    )


MOST_ROWS = 33
"""Largest number of rows b N up to which steps are listed."""
SHOWN_N = (1, 2, 4, 8, 16)
"""The N whose T(N) is shown."""


class EngineForecast(Struct, frozen=True, kw_only=True):
    """The prediction of one forward.

    `resolved` is the answer of `principle_resolved`. `changes` are the steps that rules name up to
    33 rows. `timed` is T(N) by the work model, None with a `refusal`.
    """

    rules: EngineRules
    resolved: dict[str, Any]
    changes: list[Change]
    timed: EngineTimed | None
    refusal: str | None

    def latency_us(self) -> dict[int, float]:
        """Return T(N) in microseconds at SHOWN_N; empty where the work model refuses."""
        timed = self.timed
        if timed is None:
            return {}
        by_n = dict(zip(timed.grid, timed.latency_us, strict=True))
        return {n: by_n[n] for n in SHOWN_N}


def engine_forecast(
    rules: EngineRules, platform: str, curves: Sequence[EngineCurve]
) -> EngineForecast:
    """Return the prediction of a forward from N = 1.

    The work model answers at the N up to 33 whose kernels ran in measured curves of such forwards;
    N = 1, 2, 4, 8 and 16 must be among them.

    Raises
    ------
    NearfreeError
        A rule is missing, or the CPU or a type has kernels that are not read.
    """
    all_kernels = needed_kernels(rules, range(1, MOST_ROWS + 1))
    usable = (curve for curve in curves if shares_constants(curve.rules, rules))
    measured_kernels = set().union(
        *(covered_kernels(rules, all_kernels, curve) for curve in usable)
    )
    grid = [
        n
        for n in range(1, MOST_ROWS + 1)
        if n in SHOWN_N or needed_kernels(rules, [n]) <= measured_kernels
    ]
    timed, refusal = None, None
    try:
        timed = timed_forward(rules, grid, platform, curves)
    except NearfreeError as error:
        refusal = str(error)
    return EngineForecast(
        rules=rules,
        resolved=principle_of_engine(rules, 1, MOST_ROWS),
        changes=rules.changes(MOST_ROWS // rules.forward.batch),
        timed=timed,
        refusal=refusal,
    )
