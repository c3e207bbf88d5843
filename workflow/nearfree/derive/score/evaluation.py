"""Predictors on a dataset: answers, scores, and the noise ceiling."""

from collections.abc import Sequence

import polars as pl
from msgspec import Struct

from nearfree.core.predictors import PREDICTORS
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.reference.groups import version_ranks
from nearfree.derive.reference.left_out import LEFT_OUT, LeftOut
from nearfree.derive.reference.regimes import NEAREST_RELEASE, NEAREST_TEXT, R3
from nearfree.derive.score.scores import score
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.truth.truth import Truth, narrowed, questions

TWIN = "twin_version"
"""Name of the predictor that answers with another version's curve."""
_SHAPE = (
    "platform",
    "distribution",
    *(name for name in SETTING_COLUMNS if name not in ("setting_key", "backend")),
)
CONSTANT = "always_baseline"
"""Name of the predictor that says that no N beyond the baseline is near-free."""
EVERY = (*PREDICTORS, TWIN)
"""Predictors that can be scored, with that of another version's curve."""


def twins(truth: Truth) -> pl.DataFrame:
    """Return the twins of curves, one row for each curve that has one: curve, twin.

    A twin has the same platform, module, dtype and shape, and was measured with another version:
    the preceding one, else the following one. Backend and kernel are the same, too, except for
    `gemm`, where any engine's product serves. A curve without a version has no twin.
    """
    kernel_of = pl.when(pl.col("module") != "gemm").then(
        pl.concat_str("backend", "kernel", separator=" ", ignore_nulls=True)
    )
    shape = [*_SHAPE, "regime"]
    release = [*shape, "backend", "backend_version"]
    versioned = truth.settings.filter(pl.col("backend_version").is_not_null())
    ranks = version_ranks(versioned["backend_version"])
    versioned = versioned.with_columns(
        kernel_of.alias("regime"),
        pl.col("backend_version").replace_strict(ranks, return_dtype=pl.Int64).alias("order"),
    )
    releases = versioned.unique(release, keep="first", maintain_order=True).sort(
        "backend", "order", maintain_order=True
    )
    neighbour = pl.coalesce(
        pl.col("curve").shift(1).over(shape), pl.col("curve").shift(-1).over(shape)
    ).alias("twin")
    return (
        versioned.select("curve", *release)
        .join(
            releases.select(*release, neighbour),
            on=release,
            how="inner",
            nulls_equal=True,
            maintain_order="left",
        )
        .filter(pl.col("twin").is_not_null())
        .select("curve", "twin")
    )


def twin_answers(truth: Truth, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the twins' N_max as predictions, without interval or constants."""
    twin_boundaries = truth.boundaries.select(
        pl.col("curve").alias("twin"), "epsilon", pl.col("n_max").cast(pl.Float64)
    )
    return _answer_frame(
        pairs.join(twin_boundaries, on="twin", how="inner", maintain_order="left"), TWIN
    )


def _constant_answers(truth: Truth) -> pl.DataFrame:
    """Return each curve's baseline as a prediction."""
    baselines = truth.boundaries.select(
        "curve", "epsilon", pl.col("baseline").cast(pl.Float64).alias("n_max")
    )
    return _answer_frame(baselines, CONSTANT)


def _answer_frame(n_max: pl.DataFrame, predictor: str) -> pl.DataFrame:
    """Return `curve`, `epsilon` and `n_max` as answers of a predictor without constants."""
    no_interval = [pl.lit(None, pl.Float64).alias(name) for name in ("low", "high")]
    return n_max.select(
        pl.col("curve").alias("asked"),
        pl.lit(predictor).alias("predictor"),
        "epsilon",
        "n_max",
        *no_interval,
        pl.lit(None, pl.String).alias("constants"),
        pl.lit(value=False).alias("in_sample"),
    )


def twin_ratios(truth: Truth, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the twins' T(N) / T(baseline), for twins with the same baseline."""
    baselines = truth.settings.select("curve", "baseline")
    comparable = pairs.join(baselines, on="curve", maintain_order="left").join(
        baselines.rename({"curve": "twin"}),
        on=["twin", "baseline"],
        how="inner",
        maintain_order="left",
    )
    return comparable.join(
        truth.ratios.rename({"curve": "twin"}), on="twin", how="inner", maintain_order="left"
    ).select(pl.lit(TWIN).alias("predictor"), pl.col("curve").alias("asked"), "n", "ratio")


class Evaluation(Struct, frozen=True):
    """Scores by setting, predictor and tolerance, and the constants behind the answers.

    `constants` lists, for each predictor with constants, every set that its answers used, and
    `on_record` counts the curves whose shape the log has of their own release.
    """

    scores: pl.DataFrame
    constants: dict[str, list[str]]
    on_record: int


def evaluate(
    truth: Truth,
    answerer: Answerer,
    epsilons: Sequence[float],
    predictors: Sequence[str],
    left_out: LeftOut | None = None,
) -> Evaluation:
    """Return the scores of predictors on a truth, of which they see only settings and grids.

    `predictors` are some of EVERY, and CONSTANT; TWIN is scored on the curves that have a twin.
    `left_out` is the work model fitted without the queried platform, which is scored too; None for
    none.
    """
    queries = questions(truth)
    laws = [name for name in predictors if name not in (TWIN, CONSTANT)]
    frames: list[pl.DataFrame] = []
    constants: dict[str, list[str]] = {}
    on_record: set[int] = set()
    sources = [(answerer, laws, "work_model"), (left_out, [LEFT_OUT], LEFT_OUT)]
    for source, names, timed_name in sources:
        if source is None or not names:
            continue
        answers, predicted = source.answers(queries, epsilons, names), None
        if timed_name in names and not truth.ratios.is_empty():
            predicted = source.ratios(queries).with_columns(pl.lit(timed_name).alias("predictor"))
        frames.append(score(truth, answers, names, predicted))
        constants |= _constants(answers)
        on_record |= _on_record(truth, answers)
    if TWIN in predictors:
        pairs = twins(truth)
        paired = narrowed(truth, pl.col("curve").is_in(pairs["curve"].implode()))
        frames.append(score(paired, twin_answers(truth, pairs), [TWIN], twin_ratios(truth, pairs)))
    if CONSTANT in predictors:
        frames.append(score(truth, _constant_answers(truth), [CONSTANT]))
    return Evaluation(pl.concat(frames, how="diagonal"), constants, len(on_record))


def _on_record(truth: Truth, answers: pl.DataFrame) -> set[int]:
    """Return the curves that were answered by a public curve of their own release and shape."""
    if "regime" not in answers.columns:
        return set()
    nearest = pl.col("constants").str.extract(NEAREST_RELEASE)
    measured = answers.filter(pl.col("regime") == R3).select(
        pl.col("asked").alias("curve"), nearest.alias("backend_version")
    )
    known = truth.settings.join(measured, on=["curve", "backend_version"], how="semi")
    return {*known["curve"].to_list()}


def _constants(answers: pl.DataFrame) -> dict[str, list[str]]:
    """Return every set of constants that a predictor's answers used, by predictor."""
    text = pl.col("constants").str.replace(NEAREST_TEXT, "")
    used = answers.select("predictor", text).drop_nulls().unique().sort(pl.all())
    return dict(used.group_by("predictor", maintain_order=True).agg("constants").iter_rows())
