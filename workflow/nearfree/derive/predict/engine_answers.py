"""Answers of forwards of real engines: by their rules, and by T(N) of a platform's own curves."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.derive.granularity.engine import EngineForward, EngineRules
from nearfree.derive.laws.engine_law import REFUSED, principle_of_engine
from nearfree.derive.laws.laws import ANSWERS_SCHEMA
from nearfree.derive.work_model.engine import Calibrated, EngineCurve, calibrated, of_type, terms
from nearfree.derive.work_model.engine_curves import EngineLog
from nearfree.derive.work_model.family import Array, boundaries
from nearfree.errors import NearfreeError

MODULE = "engine"
SCHEMA = {**ANSWERS_SCHEMA, "in_sample": pl.Boolean}
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
        """Return N_max with its interval and what limits it, by the names of an answer."""
        constants = self.calibration.constants
        counts = np.ones(self.ratio.shape, dtype=bool)
        found = boundaries(self.ratio, counts, epsilon, constants.band)
        last, low, high = (int(each[0]) for each in (found.last, found.low, found.high))
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
        """Return what grows most from N_max to the next N; at the grid's end nothing limits."""
        after = last + 1
        if after == len(self.grid):
            return dict.fromkeys(("limiting_module", "limiting_term", "evidence", "margin"))
        n, ratio = self.grid[after], float(self.ratio[0, after])
        constants = self.calibration.constants
        before, then = (of_type(self.rules, constants, each) for each in (self.grid[last], n))
        grows = {name: us - before.get(name, 0.0) for name, us in then.items()}
        limit = max(grows, key=lambda name: grows[name])
        heaviest = sorted(self.rules.multiplied, key=lambda each: -each.elements)
        product = next((each.product for each in heaviest if each.name == limit), None)
        rows = self.rules.forward.batch * n
        return {
            "limiting_module": limit,
            "limiting_term": f"T({n}) = {ratio:.3g} T({self.grid[0]})",
            "evidence": None if product is None else self.rules.place(product.passes(rows)[-1]),
            "margin": ratio / (1.0 + epsilon),
        }


def calibration_text(forward: EngineForward, known: Calibrated) -> str:
    """Return on what constants stand."""
    constants = known.constants
    above = sum(value > 0 for value in constants.values.values())
    return (
        f"{forward.engine} {forward.release}: {above} constants above zero, fitted to "
        f"{constants.points} points of {'; '.join(constants.curves)}"
    )


class EngineAnswers:
    """What each predictor says of forwards of engines.

    Parameters
    ----------
    questions
        Rows of the module `engine` with the columns that every predictor is asked by.
    log
        The forwards of a log, and the rules of their releases.
    """

    def __init__(self, questions: pl.DataFrame, log: EngineLog) -> None:
        self._log = log
        self._asked = questions.select(
            "asked", "platform", "setting_key", "baseline", "grid"
        ).to_dicts()

    def answers(self, epsilons: Sequence[float], predictors: Sequence[str]) -> pl.DataFrame:
        """Return a row a question, predictor and tolerance."""
        rows = [
            {"in_sample": False} | said | {"asked": each["asked"], "predictor": predictor,
                                          "epsilon": float(epsilon)}
            for predictor in predictors
            for each in self._asked
            for epsilon, said in self._said(each, predictor, epsilons)
        ]  # fmt: skip
        return pl.DataFrame(rows, schema=SCHEMA)

    def ratios(self) -> pl.DataFrame:
        """Return the work model's T(N) / T(baseline) over each grid: asked, n, ratio."""
        rows = [
            {"asked": asked, "n": n, "ratio": float(ratio)}
            for asked, timed in self._timed.items()
            if isinstance(timed, EngineTimed)
            for n, ratio in zip(timed.grid, timed.ratio[0], strict=True)
        ]
        return pl.DataFrame(rows, schema=_RATIOS)

    def timed(self) -> Mapping[int, EngineTimed]:
        """Return T(N) by question, of those that have it."""
        return {at: each for at, each in self._timed.items() if isinstance(each, EngineTimed)}

    def _said(
        self, asked: Row, predictor: str, epsilons: Sequence[float]
    ) -> Iterator[tuple[float, Row]]:
        if predictor == "work_model":
            timed = self._timed[asked["asked"]]
            for epsilon in epsilons:
                if isinstance(timed, NearfreeError):
                    yield epsilon, {"refusal": str(timed)}
                else:
                    yield epsilon, timed.answer(epsilon)
            return
        said = {"refusal": REFUSED[predictor]} if predictor in REFUSED else self._resolved(asked)
        for epsilon in epsilons:
            yield epsilon, said

    def _resolved(self, asked: Row) -> Row:
        """Return the principle's answer by rules; it stands on what the engine loaded."""
        try:
            found = principle_of_engine(self._rules(asked), asked["baseline"], asked["grid"][-1])
        except NearfreeError as error:
            return {"refusal": str(error)}
        loaded = self._log.forwards(asked["platform"])[asked["setting_key"]].loaded
        return found | {"calibration": [loaded.event_id]}

    def _rules(self, asked: Row) -> EngineRules:
        return self._log.rules(self._log.forward(asked["platform"], asked["setting_key"]))

    @cached_property
    def _timed(self) -> dict[int, EngineTimed | NearfreeError]:
        found: dict[int, EngineTimed | NearfreeError] = {}
        for asked in self._asked:
            try:
                rules = self._rules(asked)
                curves = self._log.curves(asked["platform"])
                found[asked["asked"]] = timed_forward(
                    rules, asked["grid"], asked["platform"], curves
                )
            except NearfreeError as error:
                found[asked["asked"]] = error
        return found


def timed_forward(
    rules: EngineRules,
    grid: Sequence[int],
    platform: str,
    curves: Sequence[EngineCurve],
) -> EngineTimed:
    """Return T(N) of a forward over a grid; the errors are those of `calibrated`."""
    known = calibrated(rules, grid, platform, curves)
    return EngineTimed(
        rules=rules,
        calibration=known,
        grid=tuple(grid),
        latency_us=tuple(known.constants.latency_us(terms(rules, n)) for n in grid),
    )
