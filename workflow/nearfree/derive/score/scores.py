"""Scores of predictors: one row per setting, predictor and tolerance, and groups of rows.

A hit is a real-valued prediction in [N_max, next grid N), unbounded above where N_max is the last
grid N. A refusal is a miss, and so is a setting that its measurement left undecided.
"""

from collections.abc import Sequence

import polars as pl

from nearfree.core.predictors import PREDICTORS
from nearfree.core.setting import STORED
from nearfree.derive.tables.columns import ORIGINS, amount, count, flag, number, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.truth.truth import Truth
from nearfree.errors import ConfigError

GROUP_KEYS = ("predictor", "platform", "module", "backend", "backend_version", "in_sample")
"""Columns of every group; None where scores are not grouped by them."""
MORE_KEYS = ("epsilon", "dtype", *STORED, "routing", "kernel", "operation", "gpus",
             "regime", "selected", "cached")  # fmt: skip
"""Further columns to group by; `cached` says whether attention reads a cache."""
NEAR = 1.31
_UP_TO = 4
"""T(N) is compared up to this many times N_max."""


def score(
    truth: Truth,
    answers: pl.DataFrame,
    predictors: Sequence[str],
    predicted: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the score of each predictor at each boundary: one row each, answered or refused.

    Columns of the result, besides the setting's and the predictor's:

    hit, within_1_31, within_2
        Whether the prediction is in [N_max, next N), or within that factor of it.
    hit_first_exit
        The same for the first exit; null where the source prints the last pass alone.
    log2_error
        Doublings from the prediction to the nearest end of that interval, 0 inside it, negative
        below; null where refused.
    covered
        Whether the prediction's interval [low, high] meets [N_max, next N), in which the true
        boundary lies; touching is enough. Null without an interval.
    width
        high / low.
    t_ratio_error
        Median over the grid N in (baseline, 4 N_max] of |predicted / true ratio - 1|, where the
        ratio is T(N) / T(baseline); null for a predictor that has no T(N).

    Parameters
    ----------
    answers
        One row per query, predictor and tolerance: asked (the truth's curve), predictor, epsilon,
        n_max (+inf: unbounded; null: refused), low and high (null without an interval), in_sample.
    predictors
        The queried predictors; a missing answer counts as refused.
    predicted
        predictor, asked, n, ratio: T(N) / T(baseline) of the predictors that have it.
    """
    answered = answers.select(
        pl.col("asked").alias("curve"), "predictor", "epsilon",
        pl.col("n_max").fill_nan(None).alias("predicted"), "low", "high", "in_sample",
        *(name for name in ("regime",) if name in answers.columns),
    )  # fmt: skip
    settings = truth.settings.select(
        *("curve", "platform", "module", "backend", "backend_version", "dtype", *STORED),
        *("routing", "kernel", "selected"),
        (pl.col("context") > 0).alias("cached"),
    )
    expected = truth.boundaries.join(pl.DataFrame({"predictor": predictors}), how="cross")
    joined = expected.join(
        answered,
        on=["curve", "predictor", "epsilon"],
        how="left",
        validate="1:1",
        maintain_order="left",
    ).join(settings, on="curve", how="inner", maintain_order="left")
    exit_ = _within(1.0, pl.col("first_exit"), pl.col("next_n_first")) & ~pl.col("undecided")
    judged = [
        *judgement(),
        pl.col("in_sample").fill_null(value=False),
        pl.when(pl.col("first_exit").is_not_null()).then(exit_).alias("hit_first_exit"),
    ]
    if predicted is None:
        errors = pl.lit(None, pl.Float64).alias("t_ratio_error")
        return joined.with_columns(*judged, errors)
    errors_of = _ratio_errors(truth, predicted)
    return joined.with_columns(*judged).join(
        errors_of, on=["curve", "predictor", "epsilon"], how="left", maintain_order="left"
    )


def judgement() -> list[pl.Expr]:
    """Return the columns of `score` that depend only on a prediction and the last pass.

    They read the columns predicted (+inf: unbounded; null: refused), low, high, n_max, next_n and
    undecided.
    """
    predicted, n_max, next_n = pl.col("predicted"), pl.col("n_max"), pl.col("next_n")
    decided, answered = ~pl.col("undecided"), predicted.is_not_null()
    meets = (pl.col("high") >= n_max) & (next_n.is_null() | (pl.col("low") < next_n))
    error = (
        pl.when(predicted < n_max)
        .then((predicted / n_max).log(2))
        .when(predicted >= next_n)
        .then((predicted / next_n).log(2))
        .when(answered)
        .then(0.0)
    )
    return [
        answered.alias("answered"),
        (_within(1.0, n_max, next_n) & decided).alias("hit"),
        (_within(NEAR, n_max, next_n) & decided).alias("within_1_31"),
        (_within(2.0, n_max, next_n) & decided).alias("within_2"),
        pl.when(decided).then(error).alias("log2_error"),
        pl.when(decided & answered).then(meets).alias("covered"),
        pl.when(answered).then(pl.col("high") / pl.col("low")).alias("width"),
    ]


def _within(factor: float, n: pl.Expr, next_n: pl.Expr) -> pl.Expr:
    """Return whether a prediction is within a factor of [n, next_n); a refusal is not."""
    predicted = pl.col("predicted")
    below = next_n.is_null() | (predicted < factor * next_n)
    return ((factor * predicted >= n) & below).fill_null(value=False)


def _ratio_errors(truth: Truth, predicted: pl.DataFrame) -> pl.DataFrame:
    pairs = predicted.rename({"asked": "curve"}).join(
        truth.ratios.rename({"ratio": "true"}), on=["curve", "n"], how="inner"
    )
    error = (pl.col("ratio") / pl.col("true") - 1).abs().fill_nan(None)
    settings = truth.boundaries.select("curve", "epsilon", "baseline", "n_max")
    return (
        pairs.select("curve", "predictor", "n", error.alias("t_ratio_error"))
        .join(settings, on="curve", how="inner")
        .filter((pl.col("n") > pl.col("baseline")) & (pl.col("n") <= _UP_TO * pl.col("n_max")))
        .group_by("curve", "predictor", "epsilon")
        .agg(pl.col("t_ratio_error").median())
    )


def groups(scores: pl.DataFrame, by: Sequence[str]) -> list[dict[str, object]]:
    """Return scores by group: GROUP_KEYS (None where not grouped by), epsilon, counts and shares.

    settings, answered, refused, undecided, hits and intervals are counts of rows: of settings at
    one tolerance, or of settings times tolerances where those are pooled. hit_share, within_1_31
    and within_2 are shares of all settings. hits_first_exit is null where a source prints the last
    pass alone. median_abs_log2 and t_ratio_error are medians over the settings that have them.
    interval_coverage is a share of `intervals`, the settings that were answered with an interval;
    interval_width is the median width of those. A number that does not exist is None; an error or a
    width can be infinite. Raises ConfigError if the scores lack a column: `regime` without regimes,
    or one that only collectives have.
    """
    missing = [name for name in by if name not in scores.columns]
    if missing:
        raise ConfigError(
            f"these scores have no {' and no '.join(missing)} to group by",
            remedy="Leave it out of --by; `regime` needs --regime or --curves, the others --module "
            "collective",
        )
    epsilons = scores["epsilon"].unique()
    pooled = scores.group_by(by).agg(*_aggregates()) if by else scores.select(_aggregates())
    constant = {"epsilon": epsilons[0] if epsilons.len() == 1 else None}
    keys = (*GROUP_KEYS, "epsilon", *(key for key in by if key in MORE_KEYS and key != "epsilon"))
    rows = [
        {key: row.get(key, constant.get(key)) for key in keys} | row for row in pooled.to_dicts()
    ]
    return sorted(rows, key=lambda row: [_rank(row[key]) for key in by])


def _rank(value: object) -> tuple[bool, int, object]:
    """Return the sort key of a value in its column: predictors in their order, None last."""
    place = PREDICTORS.index(value) if value in PREDICTORS else len(PREDICTORS)
    return value is None, place, value if value is not None else ""


def _aggregates() -> list[pl.Expr]:
    first_exit = pl.col("hit_first_exit")
    return [
        pl.len().alias("settings"),
        pl.col("answered").sum(),
        (~pl.col("answered")).sum().alias("refused"),
        pl.col("undecided").sum(),
        pl.col("hit").sum().alias("hits"),
        pl.col("hit").mean().alias("hit_share"),
        pl.when(first_exit.null_count() == 0).then(first_exit.sum()).alias("hits_first_exit"),
        pl.col("within_1_31").mean(),
        pl.col("within_2").mean(),
        pl.col("log2_error").abs().median().alias("median_abs_log2"),
        pl.col("t_ratio_error").median(),
        pl.col("covered").count().alias("intervals"),
        pl.col("covered").mean().alias("interval_coverage"),
        pl.col("width").median().alias("interval_width"),
    ]


SCORES = Table(
    name="scores",
    row="one predictor's record on one module of a platform at one tolerance",
    key=("platform", "origin", "module", "predictor", "basis", "epsilon"),
    formula="counts over the rows that were judged",
    code="nearfree.derive.score.scores",
    body={
        "platform": text("the kind of machine"),
        "origin": text("where the boundaries come from", one_of=ORIGINS),
        "module": text("gemm, dense_ffn, moe_ffn, attention, model or engine"),
        "predictor": text("the predictor"),
        "basis": text("the source of hardware facts", nullable=True),
        "epsilon": amount("tolerance"),
        "settings": count("boundaries that it was held against"),
        "answered": count("of them, those that it answered", at_least=0),
        "missed": count("of them, those that it refused or that are undecided", at_least=0),
        "hits": count("predictions between N_max and the next N of the grid", at_least=0),
        "hit_share": number("hits of all settings"),
        "within_1_31": number("share of all settings within a factor of 1.31"),
        "within_2": number("share of all settings within a factor of two"),
        "covered": number("share of stated intervals that meet the true one", nullable=True),
        "width": number("median high / low of stated intervals", nullable=True),
        "in_sample": flag("whether any constant was calibrated on this platform"),
        "refusals": count("different reasons for a refusal", at_least=0),
        "refusal": text("the first of them", nullable=True),
        "within": count("of models: predictions inside the measured interval", nullable=True,
                        at_least=0),
        "measured_width": number("of models: the widest of those intervals, its upper end over its "
                                 "lower", nullable=True),
        "limiters": count("of models: settings whose limiter is known on both sides",
                          nullable=True, at_least=0),
        "same_limiter": count("of those, where both name the same module", nullable=True,
                              at_least=0),
        "foretold": count("of models: predictions on record before the first sample",
                          nullable=True, at_least=0),
    },
)  # fmt: skip
_KEYS = ["platform", "origin", "module", "predictor", "basis", "epsilon"]


def score_rows(validation: pl.DataFrame, composition: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `scores`.

    Parameters
    ----------
    validation, composition
        Tables of one scope; the second has further columns of models.
    """
    reasons = pl.col("refusal").drop_nulls()
    validated = validation.group_by(_KEYS, maintain_order=True).agg(
        pl.len().alias("settings"),
        pl.col("answered").sum(),
        (~pl.col("answered") | pl.col("undecided")).sum().alias("missed"),
        pl.col("hit").sum().alias("hits"),
        pl.col("hit").mean().alias("hit_share"),
        pl.col("within_1_31", "within_2", "covered").mean(),
        pl.col("width").median(),
        pl.col("in_sample").any(),
        reasons.n_unique().alias("refusals"),
        reasons.min().alias("refusal"),
        pl.col("row_id").sort().alias("from_ids"),
    )
    model_totals = composition.group_by(_KEYS[:2] + _KEYS[3:], maintain_order=True).agg(
        pl.col("within").sum(),
        pl.col("measured_width").max(),
        pl.col("same_limiter").count().alias("limiters"),
        pl.col("same_limiter").sum(),
        pl.col("foretold").sum(),
        pl.col("row_id").sort().alias("judged"),
    )
    pair_keys = [name for name in _KEYS if name != "module"]
    models, modules = (
        validated.filter(module="model"),
        validated.filter(pl.col("module") != "model"),
    )
    joined = models.join(model_totals, on=pair_keys, how="left", nulls_equal=True).with_columns(
        pl.concat_list("from_ids", pl.col("judged").fill_null([])).alias("from_ids")
    )
    rows = pl.concat([modules, joined.drop("judged")], how="diagonal")
    integer_columns = {name: pl.Int64 for name, c in SCORES.body.items() if c.dtype == pl.Int64()}
    return rows.select(*SCORES.body, "from_ids").cast(integer_columns)  # type: ignore[arg-type]
