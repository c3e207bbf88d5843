"""How well steps of whole models are known: T itself, its growth, and T(N) / T(1).

Every row is answered by an engine's constants that were fitted to other models' rows alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.derive.engine_step.form import CONSTANTS, StepConstants
from nearfree.derive.score.whole_steps import Timed, device
from nearfree.derive.work_model.family import Array

LEAST_FITTED = 6
"""Rows of other models that an engine's constants are fitted to at least."""
BY = ("model", "platform", "precision", "engine", "several", "draft")
"""What errors can be grouped by."""
COVERED = 0.8
"""Share of rows that a band is to cover."""
_WITHIN = 0.2
_SOFT = 0.1
"""Of log T: errors beyond it count less."""


class StepFit:
    """Constants of engines' steps, fitted to rows of one position.

    Parameters
    ----------
    steps
        Rows that are answered, and others, which are left aside.
    bandwidths_gb_s
        beta by platform.
    """

    def __init__(self, steps: Sequence[Timed], bandwidths_gb_s: Mapping[str, float | None]) -> None:
        self._beta = bandwidths_gb_s
        self.used = [
            each for each in steps
            if each.deployment and each.row.positions == 1 and not each.row.holds_draft
        ]  # fmt: skip
        self._known: dict[tuple[str, str | None], StepConstants | None] = {}

    @property
    def engines(self) -> list[str]:
        """The engines that rows were fitted of."""
        return sorted({each.row.engine for each in self.used})

    def of(self, engine: str, without: str | None = None) -> StepConstants | None:
        """Return an engine's constants without the rows of a model; None of too few rows."""
        rows = [e for e in self.used if e.row.engine == engine and _model(e) != without]
        key = engine, without if any(_model(e) == without for e in self.used) else None
        if key not in self._known:
            self._known[key] = _fit(rows, self._beta) if len(rows) >= LEAST_FITTED else None
        return self._known[key]

    def predicted_us(self, step: Timed, *, first: bool = False) -> float:
        """Return T of a row by constants that have not seen its model; NaN where there are none.

        Parameters
        ----------
        first
            Whether T(1) is meant, in the place of T(N).
        """
        constants = self.of(step.row.engine, _model(step))
        if constants is None:
            return float("nan")
        return predicted(step, constants, self._beta, first=first)

    @cached_property
    def _misses(self) -> list[tuple[str, str, float]]:
        """Engine, model, and how far log T is off, of each row that others' constants answer."""
        known = [(each, self.predicted_us(each)) for each in self.used]
        return [
            (each.row.engine, _model(each), float(abs(np.log(us / each.row.t_us))))
            for each, us in known
            if np.isfinite(us)
        ]

    def band(self, engine: str, without: str | None = None) -> float | None:
        """Return how far log T of an engine may be off: what COVERED of its rows stay within.

        None where there are no rows.

        Parameters
        ----------
        without
            A model whose rows are left out, as where its own are to be covered.
        """
        misses = [miss for of, model, miss in self._misses if of == engine and model != without]
        return float(np.quantile(misses, COVERED)) if misses else None

    @property
    def bands(self) -> dict[str, float]:
        """The band of each engine that has one, of all its rows."""
        known = ((engine, self.band(engine)) for engine in self.engines)
        return {engine: band for engine, band in known if band is not None}


def _model(step: Timed) -> str:
    """Return what stands for a model: several names may be of one shape."""
    return step.row.config or step.row.model


def predicted(
    step: Timed,
    constants: StepConstants,
    bandwidths_gb_s: Mapping[str, float | None],
    *,
    first: bool = False,
) -> float:
    """Return T of a row in microseconds, T(1) with `first`; NaN where it is not answered."""
    beta = bandwidths_gb_s.get(step.deployment.platform) if step.deployment else None
    return float("nan") if beta is None else step.predicted_us(constants, beta, first=first)


def _fit(rows: Sequence[Timed], beta: Mapping[str, float | None]) -> StepConstants:
    """Return the constants that miss log T of rows least; far ones count less."""
    from scipy.optimize import least_squares

    measured = np.log([each.row.t_us for each in rows])

    def missed(values: Array) -> Array:
        constants = _constants(values)
        said = np.array([predicted(each, constants, beta) for each in rows])
        return np.asarray(np.log(said) - measured)

    found = least_squares(
        missed,
        [each.start for each in CONSTANTS],
        bounds=([each.low for each in CONSTANTS], [each.high for each in CONSTANTS]),
        x_scale=[each.start for each in CONSTANTS],
        loss="soft_l1",
        f_scale=_SOFT,
    )
    return _constants(found.x)


def _constants(values: Array) -> StepConstants:
    named = zip(CONSTANTS, values.tolist(), strict=True)
    return StepConstants(**{each.name: value for each, value in named})


class WholeScore(Struct, frozen=True):
    """Rows with what was predicted of them or why nothing was, and their growth.

    `bands` say how far log T may be off, by engine, by all its rows.
    """

    rows: pl.DataFrame
    growth: pl.DataFrame
    bands: Mapping[str, float]

    @property
    def answered(self) -> int:
        """How many rows are answered."""
        return self.rows["predicted_us"].count()

    @property
    def refusals(self) -> dict[str, int]:
        """How many rows are not answered, by reason, most first."""
        counted = self.rows["refusal"].drop_nulls().value_counts()
        return dict(counted.sort("count", "refusal", descending=[True, False]).iter_rows())


NO_OTHERS = "no rows of other models to fit the engine's constants to"


def whole_score(steps: Sequence[Timed], fit: StepFit) -> WholeScore:
    """Return the error of T of each row, and of its growth within a source's series.

    Returns
    -------
    rows: BY, `t_us`, and of those that are answered `predicted_us`, `t_error` = |predicted /
    measured - 1|, `covered` by the band of its engine's other models and the `width` of that, both
    empty where there are none, and where the source says T(N) / T(1) `ratio_error`; `refusal` of
    the others. growth: BY, `t_ratio_error`, |predicted / measured - 1| of T over that of the
    smallest b N of its series.
    """
    said = [(each, fit.predicted_us(each)) for each in steps]
    frame = pl.DataFrame([_row(each, us, fit) for each, us in said], schema=_SCHEMA)
    known = [(each, us) for each, us in said if np.isfinite(us)]
    growth = pl.DataFrame(list(_growth(known)), schema=_GROWTH)
    return WholeScore(frame, growth, fit.bands)


_ABOUT = {
    **dict.fromkeys(("model", "platform", "precision", "engine"), pl.String),
    "several": pl.Boolean,
    "draft": pl.Boolean,
}
_SCHEMA = _ABOUT | {
    "line": pl.Int64, "asked": pl.String, "t_us": pl.Float64, "predicted_us": pl.Float64,
    "t_error": pl.Float64, "covered": pl.Boolean, "width": pl.Float64,
    "ratio_error": pl.Float64, "refusal": pl.String,
}  # fmt: skip
_GROWTH = _ABOUT | {"t_ratio_error": pl.Float64}


def platform_of(step: Timed) -> str:
    """Return the platform of a row, by its GPU's name where it is not answered."""
    return step.deployment.platform if step.deployment else device(step.row.gpu)


def _about(step: Timed) -> dict[str, Any]:
    row = step.row
    return {
        "model": row.model,
        "platform": platform_of(step),
        "precision": row.precision,
        "engine": row.engine,
        "several": row.positions > 1,
        "draft": row.holds_draft,
    }


def _row(step: Timed, us: float, fit: StepFit) -> dict[str, Any]:
    row, about = step.row, _about(step) | {"line": step.row.line, "t_us": step.row.t_us}
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


def _growth(known: Sequence[tuple[Timed, float]]) -> Iterator[dict[str, Any]]:
    """Yield the error of T over that of the fewest rows, of every other row of a series."""
    ordered = sorted(known, key=lambda each: (str(each[0].row.series), _tokens(each[0])))
    for _, group in groupby(ordered, key=lambda each: str(each[0].row.series)):
        (first, first_us), *rest = group
        for each, us in rest:
            if _tokens(each) > _tokens(first):
                grown = (us / first_us) / (each.row.t_us / first.row.t_us)
                yield _about(each) | {"t_ratio_error": abs(grown - 1.0)}


def _tokens(step: Timed) -> int:
    return step.row.batch * step.row.positions


def grouped(score: WholeScore, by: Sequence[str]) -> pl.DataFrame:
    """Return the errors of groups of rows, the worst first.

    `settings` counts rows; `t_error_median` and `t_within_20` are of those answered, `within_1_31`
    and `within_2` shares of all; `t_ratio_error` is the median error of growth, `ratio_error` that
    of T(N) / T(1), `interval_width` the median of high / low.

    Parameters
    ----------
    by
        Some of BY; none for all rows together.
    """
    error, every = pl.col("t_error"), pl.lit("all").alias("rows")
    doubled = (pl.col("predicted_us") / pl.col("t_us")).log(2).abs()
    names = list(by) or ["rows"]
    told = score.rows.with_columns(every).group_by(names).agg(
        pl.len().alias("settings"),
        error.count().alias("answered"),
        error.median().alias("t_error_median"),
        (error.drop_nulls() <= _WITHIN).mean().alias("t_within_20"),
        *((doubled <= np.log2(factor)).fill_null(value=False).mean().alias(f"within_{name}")
          for name, factor in (("1_31", 1.31), ("2", 2.0))),
        doubled.median().alias("median_abs_log2"),
        pl.col("covered").mean().alias("interval_coverage"),
        pl.col("width").median().alias("interval_width"),
        pl.col("ratio_error").median(),
    )  # fmt: skip
    grown = score.growth.with_columns(every).group_by(names).agg(
        pl.col("t_ratio_error").median()
    )  # fmt: skip
    joined = told.join(grown, on=names, how="left", nulls_equal=True)
    falling = [True, *(False for _ in names)]
    return joined.sort("t_error_median", *names, descending=falling, nulls_last=True)
