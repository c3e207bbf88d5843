"""Predictors on a data set: asked, answered, scored, with the noise ceiling beside them."""

from collections.abc import Sequence

import polars as pl
from msgspec import Struct

from nearfree.derive.predict.answers import PREDICTORS
from nearfree.derive.score.ceiling import TWIN, twin_answers, twin_ratios, twins
from nearfree.derive.score.scores import Answering, score
from nearfree.derive.truth.truth import Truth, narrowed, questions
from nearfree.derive.work_model.left_out import LEFT_OUT

EVERY = (*PREDICTORS, TWIN)
"""What can be scored: the predictors, and another version's curve."""


class Evaluation(Struct, frozen=True):
    """Scores, a row a setting, predictor and tolerance, and the constants behind the answers.

    `constants` names, for each predictor that rests on some, every set that its answers used.
    """

    scores: pl.DataFrame
    constants: dict[str, list[str]]


def evaluate(
    known: Truth,
    answering: Answering,
    epsilons: Sequence[float],
    predictors: Sequence[str],
    left_out: Answering | None = None,
) -> Evaluation:
    """Return how predictors do on a truth, of which they see settings and grids alone.

    Parameters
    ----------
    predictors
        Some of EVERY. The twin's rows are of the curves that have one.
    left_out
        What answers as the work model without the platform that is asked of; it is scored too.
    """
    asked = questions(known)
    laws = [name for name in predictors if name != TWIN]
    frames: list[pl.DataFrame] = []
    constants: dict[str, list[str]] = {}
    if laws:
        answers = answering.answers(asked, epsilons, laws)
        timed = "work_model" in laws and not known.ratios.is_empty()
        predicted = (
            answering.ratios(asked).with_columns(pl.lit("work_model").alias("predictor"))
            if timed
            else None
        )
        frames.append(score(known, answers, laws, predicted))
        constants = _constants(answers)
    if left_out is not None:
        answers = left_out.answers(asked, epsilons, [LEFT_OUT])
        predicted = left_out.ratios(asked).with_columns(pl.lit(LEFT_OUT).alias("predictor"))
        frames.append(score(known, answers, [LEFT_OUT], predicted))
        constants |= _constants(answers)
    if TWIN in predictors:
        pairs = twins(known)
        paired = narrowed(known, pl.col("curve").is_in(pairs["curve"].implode()))
        frames.append(score(paired, twin_answers(known, pairs), [TWIN], twin_ratios(known, pairs)))
    return Evaluation(pl.concat(frames), constants)


def _constants(answers: pl.DataFrame) -> dict[str, list[str]]:
    used = answers.select("predictor", "constants").drop_nulls().unique().sort(pl.all())
    found: dict[str, list[str]] = {}
    for predictor, text in used.rows():
        found.setdefault(predictor, []).append(text)
    return found
