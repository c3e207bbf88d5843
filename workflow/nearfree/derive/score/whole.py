"""Scores of steps of whole models: errors of T, of its growth, and of T(N) / T(1).

Every row is predicted with an engine's constants that were fitted to other models' rows only.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.derive.engine_step.form import CONSTANTS, StepConstants
from nearfree.derive.score.whole_steps import TimedStep, platform_name
from nearfree.derive.work_model.family import Array

LEAST_FITTED = 6
"""Least number of other models' rows that an engine's constants are fitted to."""
BY = ("model", "platform", "precision", "engine", "several", "draft")
"""Columns that errors can be grouped by."""
COVERED = 0.8
"""Share of rows that a band covers."""
_WITHIN = 0.2
_SOFT_L1_SCALE = 0.1
"""Error of log T beyond which the fit weighs errors less."""


class StepFit:
    """Constants of engines' steps, fitted to rows with one position per request and no draft.

    Steps without an answer are ignored; `bandwidths_gb_s` is beta by platform.
    """

    def __init__(
        self, steps: Sequence[TimedStep], bandwidths_gb_s: Mapping[str, float | None]
    ) -> None:
        self._beta = bandwidths_gb_s
        self.used = [
            step for step in steps
            if step.deployment and step.row.positions == 1 and not step.row.holds_draft
        ]  # fmt: skip
        self._known: dict[tuple[str, str | None], StepConstants | None] = {}

    @property
    def engines(self) -> list[str]:
        """The engines of the rows."""
        return sorted({step.row.engine for step in self.used})

    def of(self, engine: str, without: str | None = None) -> StepConstants | None:
        """Return an engine's constants, fitted without one model's rows; None of too few rows."""
        rows = [step for step in self.used if step.row.engine == engine and _model(step) != without]
        key = engine, without if any(_model(step) == without for step in self.used) else None
        if key not in self._known:
            self._known[key] = self._fit(rows) if len(rows) >= LEAST_FITTED else None
        return self._known[key]

    def predicted_us(self, step: TimedStep, *, first: bool = False) -> float:
        """Return T of a row in microseconds, by constants fitted without its model; else NaN.

        With `first` it is T(1) instead of T(N).
        """
        return self._us(step, self.of(step.row.engine, _model(step)), first=first)

    def _us(self, step: TimedStep, constants: StepConstants | None, *, first: bool) -> float:
        beta = self._beta.get(step.deployment.platform) if step.deployment else None
        if beta is None or constants is None:
            return float("nan")
        return step.predicted_us(constants, beta, first=first)

    def _fit(self, rows: Sequence[TimedStep]) -> StepConstants:
        """Return the constants with the least soft-L1 error of log T over rows."""
        from scipy.optimize import least_squares

        measured = np.log([row.row.t_us for row in rows])

        def residuals(values: Array) -> Array:
            constants = _constants(values)
            predicted_us = np.array([self._us(row, constants, first=False) for row in rows])
            return np.asarray(np.log(predicted_us) - measured)

        solution = least_squares(
            residuals,
            [row.start for row in CONSTANTS],
            bounds=([row.low for row in CONSTANTS], [row.high for row in CONSTANTS]),
            x_scale=[row.start for row in CONSTANTS],
            loss="soft_l1",
            f_scale=_SOFT_L1_SCALE,
        )
        return _constants(solution.x)

    @cached_property
    def _log_errors(self) -> list[tuple[str, str, float]]:
        """Engine, model and |error of log T| of each row that other models' constants answer."""
        predictions = [(step, self.predicted_us(step)) for step in self.used]
        return [
            (step.row.engine, _model(step), float(abs(np.log(us / step.row.t_us))))
            for step, us in predictions
            if np.isfinite(us)
        ]

    def band(self, engine: str, without: str | None = None) -> float | None:
        """Return the error of log T that COVERED of an engine's rows stay within; None of no rows.

        Rows of the model `without` are left out, to which the band is then applied.
        """
        errors = [
            miss
            for miss_engine, model, miss in self._log_errors
            if miss_engine == engine and model != without
        ]
        return float(np.quantile(errors, COVERED)) if errors else None

    @property
    def bands(self) -> dict[str, float]:
        """The band of each engine that has one, over all its rows."""
        band_by_engine = ((engine, self.band(engine)) for engine in self.engines)
        return {engine: band for engine, band in band_by_engine if band is not None}


def _model(step: TimedStep) -> str:
    """Return the identity of a row's model: its config, as several names may share one shape."""
    return step.row.config or step.row.model


def _constants(values: Array) -> StepConstants:
    pairs = zip(CONSTANTS, values.tolist(), strict=True)
    return StepConstants(**{constant.name: value for constant, value in pairs})


class WholeScore(Struct, frozen=True):
    """Rows with their errors or refusals.

    `bands` are the errors of log T that COVERED of an engine's rows stay within.
    """

    rows: pl.DataFrame
    bands: Mapping[str, float]

    @property
    def answered(self) -> int:
        """The number of answered rows."""
        return self.rows["predicted_us"].count()

    @property
    def refusals(self) -> dict[str, int]:
        """The number of refused rows by reason, the most frequent first."""
        counted = self.rows["refusal"].drop_nulls().value_counts()
        return dict(counted.sort("count", "refusal", descending=[True, False]).iter_rows())


NO_OTHERS = "no rows of other models to fit the engine's constants to"


def whole_score(steps: Sequence[TimedStep], fit: StepFit) -> WholeScore:
    """Return the error of T of each row, and of its growth within a source's series.

    Returns
    -------
    rows: BY and `t_us`; of answered rows `predicted_us`, `t_error` = |predicted / measured - 1|,
    `covered` by the band of the engine's other models and the `width` of that band, both empty
    where there are none, `ratio_error` where the source has T(N) / T(1), and `t_ratio_error`,
    |predicted / measured - 1| of T relative to T at the smallest b N of the series, where b N is
    larger; of other rows `refusal`.
    """
    rows = pl.DataFrame([_row_errors(step, fit) for step in steps], schema=_ROW_SCHEMA)
    us, t_us = pl.col("predicted_us"), pl.col("t_us")
    growth = (us / _at_fewest("predicted_us")) / (t_us / _at_fewest("t_us"))
    grown = pl.when(pl.col("tokens") > _at_fewest("tokens")).then((growth - 1.0).abs())
    return WholeScore(rows.with_columns(grown.alias("t_ratio_error")), fit.bands)


def _at_fewest(name: str) -> pl.Expr:
    """Return a column at the answered row of the fewest tokens of each series."""
    known = pl.col("predicted_us").is_not_null()
    by_tokens = (
        pl.col(name).filter(known).sort_by(pl.col("tokens").filter(known), maintain_order=True)
    )
    return by_tokens.first().over("series")


_ROW_SCHEMA = {
    **dict.fromkeys(("model", "platform", "precision", "engine"), pl.String),
    **dict.fromkeys(("several", "draft"), pl.Boolean),
    "line": pl.Int64, "asked": pl.String, "t_us": pl.Float64, "predicted_us": pl.Float64,
    "t_error": pl.Float64, "covered": pl.Boolean, "width": pl.Float64,
    "ratio_error": pl.Float64, "refusal": pl.String, "series": pl.String, "tokens": pl.Int64,
}  # fmt: skip


def platform_of(step: TimedStep) -> str:
    """Return the platform of a row, or its GPU's name where the row is not answered."""
    return step.deployment.platform if step.deployment else platform_name(step.row.gpu)


def _row_errors(step: TimedStep, fit: StepFit) -> dict[str, Any]:
    row, us = step.row, fit.predicted_us(step)
    about = {
        "model": row.model,
        "platform": platform_of(step),
        "precision": row.precision,
        "engine": row.engine,
        "several": row.positions > 1,
        "draft": row.holds_draft,
        "line": row.line,
        "t_us": row.t_us,
        "series": str(row.series),
        "tokens": row.batch * row.positions,
    }
    if not np.isfinite(us):
        return about | {"refusal": step.refusal or NO_OTHERS}
    ratio = None
    if row.ratio and row.positions > 1:
        ratio = abs(us / fit.predicted_us(step, first=True) / row.ratio - 1.0)
    band = fit.band(row.engine, without=_model(step))
    return about | {
        "asked": step.asked,
        "predicted_us": us,
        "t_error": abs(us / row.t_us - 1.0),
        "covered": None if band is None else bool(abs(np.log(us / row.t_us)) <= band),
        "width": None if band is None else float(np.exp(2 * band)),
        "ratio_error": ratio,
    }


def grouped(score: WholeScore, by: Sequence[str]) -> pl.DataFrame:
    """Return the errors of groups of rows, the worst first.

    `settings` counts rows. `t_error_median` and `t_within_20` refer to answered rows, `within_1_31`
    and `within_2` are shares of all rows. `t_ratio_error` is the median error of growth,
    `ratio_error` that of T(N) / T(1), `interval_width` the median of high / low. `by` are some of
    BY; none for all rows together.
    """
    error = pl.col("t_error")
    doublings = (pl.col("predicted_us") / pl.col("t_us")).log(2).abs()
    names = list(by) or ["rows"]
    errors = score.rows.with_columns(pl.lit("all").alias("rows")).group_by(names).agg(
        pl.len().alias("settings"),
        error.count().alias("answered"),
        error.median().alias("t_error_median"),
        (error.drop_nulls() <= _WITHIN).mean().alias("t_within_20"),
        *((doublings <= np.log2(factor)).fill_null(value=False).mean().alias(f"within_{name}")
          for name, factor in (("1_31", 1.31), ("2", 2.0))),
        doublings.median().alias("median_abs_log2"),
        pl.col("covered").mean().alias("interval_coverage"),
        pl.col("width").median().alias("interval_width"),
        pl.col("ratio_error", "t_ratio_error").median(),
    )  # fmt: skip
    descending = [True, *(False for _ in names)]
    return errors.sort("t_error_median", *names, descending=descending, nulls_last=True)
