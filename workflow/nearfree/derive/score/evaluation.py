"""Predictors on a dataset: answers and scores, with the noise ceiling beside them."""

from collections.abc import Sequence

import polars as pl
from msgspec import Struct

from nearfree.derive.predict.answers import PREDICTORS, Answerer
from nearfree.derive.reference.groups import version_order
from nearfree.derive.reference.left_out import LEFT_OUT, LeftOut
from nearfree.derive.reference.regimes import LEANS_ON
from nearfree.derive.score.scores import score
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.truth.truth import Truth, narrowed, questions

TWIN = "twin_version"
"""The name of the prediction that another version's curve makes."""
_SHAPE = (
    "platform",
    "distribution",
    *(name for name in SETTING_COLUMNS if name not in ("setting_key", "backend")),
)
CONSTANT = "always_baseline"
"""The name of the prediction that no N beyond the baseline is near-free."""
EVERY = (*PREDICTORS, TWIN)
"""What can be scored: the predictors, and another version's curve."""


def twins(known: Truth) -> pl.DataFrame:
    """Return a curve's twin, a row for each curve that has one: curve, twin.

    A twin is of the same platform, module, dtype and shape, and was measured with another version:
    the one before, else the one after. Its backend and kernel are the same, except for `gemm`,
    where any engine's product is as good. A curve without a version has no twin.
    """
    regime = pl.when(pl.col("module") != "gemm").then(
        pl.concat_str("backend", "kernel", separator=" ", ignore_nulls=True)
    )
    alike = [*_SHAPE, "regime"]
    release = [*alike, "backend", "backend_version"]
    versioned = known.settings.filter(pl.col("backend_version").is_not_null()).with_columns(
        regime.alias("regime"),
        pl.col("backend_version").replace_strict(_order(known), return_dtype=pl.Int64)
        .alias("order"),
    )  # fmt: skip
    first = versioned.unique(release, keep="first", maintain_order=True).sort(
        "backend", "order", maintain_order=True
    )
    other = pl.coalesce(
        pl.col("curve").shift(1).over(alike), pl.col("curve").shift(-1).over(alike)
    ).alias("twin")
    return (
        versioned.select("curve", *release)
        .join(
            first.select(*release, other),
            on=release,
            how="inner",
            nulls_equal=True,
            maintain_order="left",
        )
        .filter(pl.col("twin").is_not_null())
        .select("curve", "twin")
    )


def _order(known: Truth) -> dict[str, int]:
    """Return the place of each version among all; what is no version comes first, as text."""
    names = known.settings["backend_version"].drop_nulls().unique().to_list()
    return {name: place for place, name in enumerate(sorted(names, key=version_order))}


def twin_answers(known: Truth, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the twins' N_max as predictions; they claim no interval and rest on no constants."""
    twins = known.boundaries.select(
        pl.col("curve").alias("twin"), "epsilon", pl.col("n_max").cast(pl.Float64)
    )
    return _bare(pairs.join(twins, on="twin", how="inner", maintain_order="left"), TWIN)


def _constant_answers(known: Truth) -> pl.DataFrame:
    """Return each curve's baseline as a prediction."""
    said = known.boundaries.select(
        "curve", "epsilon", pl.col("baseline").cast(pl.Float64).alias("n_max")
    )
    return _bare(said, CONSTANT)


def _bare(said: pl.DataFrame, predictor: str) -> pl.DataFrame:
    """Return answers of `curve`, `epsilon` and `n_max` alone, by a predictor without constants."""
    none = [pl.lit(None, pl.Float64).alias(name) for name in ("low", "high")]
    return said.select(
        pl.col("curve").alias("asked"),
        pl.lit(predictor).alias("predictor"),
        "epsilon",
        "n_max",
        *none,
        pl.lit(None, pl.String).alias("constants"),
        pl.lit(value=False).alias("in_sample"),
    )


def twin_ratios(known: Truth, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the twins' T(N) / T(baseline), of twins with the same baseline alone."""
    based = known.settings.select("curve", "baseline")
    same = pairs.join(based, on="curve", maintain_order="left").join(
        based.rename({"curve": "twin"}), on=["twin", "baseline"], how="inner", maintain_order="left"
    )
    return same.join(
        known.ratios.rename({"curve": "twin"}), on="twin", how="inner", maintain_order="left"
    ).select(pl.lit(TWIN).alias("predictor"), pl.col("curve").alias("asked"), "n", "ratio")


class Evaluation(Struct, frozen=True):
    """Scores, a row a setting, predictor and tolerance, and the constants behind the answers.

    `constants` names, for each predictor that rests on some, every set that its answers used.
    """

    scores: pl.DataFrame
    constants: dict[str, list[str]]


def evaluate(
    known: Truth,
    answerer: Answerer,
    epsilons: Sequence[float],
    predictors: Sequence[str],
    left_out: LeftOut | None = None,
) -> Evaluation:
    """Return how predictors do on a truth, of which they see settings and grids alone.

    Parameters
    ----------
    predictors
        Some of EVERY, and CONSTANT. The twin's rows are of the curves that have one.
    left_out
        What answers as the work model without the platform that is asked of; it is scored too.
    """
    queries = questions(known)
    laws = [name for name in predictors if name not in (TWIN, CONSTANT)]
    frames: list[pl.DataFrame] = []
    constants: dict[str, list[str]] = {}
    sources = [(answerer, laws, "work_model"), (left_out, [LEFT_OUT], LEFT_OUT)]
    for source, names, timed in sources:
        if source is None or not names:
            continue
        answers, predicted = source.answers(queries, epsilons, names), None
        if timed in names and not known.ratios.is_empty():
            predicted = source.ratios(queries).with_columns(pl.lit(timed).alias("predictor"))
        frames.append(score(known, answers, names, predicted))
        constants |= _constants(answers)
    if TWIN in predictors:
        pairs = twins(known)
        paired = narrowed(known, pl.col("curve").is_in(pairs["curve"].implode()))
        frames.append(score(paired, twin_answers(known, pairs), [TWIN], twin_ratios(known, pairs)))
    if CONSTANT in predictors:
        frames.append(score(known, _constant_answers(known), [CONSTANT]))
    return Evaluation(pl.concat(frames), constants)


def _constants(answers: pl.DataFrame) -> dict[str, list[str]]:
    text = pl.col("constants").str.replace(LEANS_ON, "")
    used = answers.select("predictor", text).drop_nulls().unique().sort(pl.all())
    texts: dict[str, list[str]] = {}
    for predictor, text in used.rows():
        texts.setdefault(predictor, []).append(text)
    return texts
