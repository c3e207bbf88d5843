"""Scores of the regimes, each predicted with the scored curves left out."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from nearfree.core.predictors import WORK_MODEL
from nearfree.derive.reference.answer import ratio_rows
from nearfree.derive.reference.build import Curves
from nearfree.derive.reference.folds import (
    Fold,
    calibrated_bands,
    kinds_and_halves,
    predictions_of,
    scored_predictions,
)
from nearfree.derive.reference.left_out import SCORED_SCHEMA, answers_at
from nearfree.derive.reference.regimes import select_rows
from nearfree.derive.reference.siblings import Chip
from nearfree.derive.score.scores import score
from nearfree.derive.truth.truth import Truth, narrowed


def regime_scores(
    truth: Truth,
    curves: Sequence[Curves],
    chips: Mapping[str, Chip],
    regimes: Sequence[Fold],
    epsilons: Sequence[float],
    *,
    epsilon: float,
) -> pl.DataFrame:
    """Return the scores of each regime, as from `score`, with a column `regime`.

    R3 is scored on the curves that have a twin, every other regime on all; a curve without an
    answer is a miss. `truth` are the scored curves, `curves` all curves by form, which the regimes
    learn from; groups are made and bands are calibrated at `epsilon`.
    """
    names = truth.settings["curve"].implode()
    frames = []
    for regime in regimes:
        predictions, ratios = answers(regime, curves, chips, epsilons, epsilon)
        predictions, ratios = (
            frame.filter(pl.col("asked").is_in(names)) for frame in (predictions, ratios)
        )
        twins = pl.col("curve").is_in(predictions["asked"].implode())
        scored = narrowed(truth, twins) if regime == "R3" else truth
        timed = ratios.with_columns(pl.lit(WORK_MODEL).alias("predictor"))
        scores = score(scored, predictions, [WORK_MODEL], timed)
        frames.append(scores.with_columns(pl.lit(regime).alias("regime")))
    return pl.concat(frames)


def answers(
    regime: Fold,
    all_curves: Sequence[Curves],
    chips: Mapping[str, Chip],
    epsilons: Sequence[float],
    epsilon: float,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a regime's answers on curves, and its T(N) / T(baseline), as `score` takes them.

    Groups are made and bands are calibrated at `epsilon`.
    """
    folds = list(scored_predictions(predictions_of(regime, all_curves, chips, epsilon)))
    band_by_half = calibrated_bands(folds, epsilon)
    frames, ratios = [pl.DataFrame(schema=SCORED_SCHEMA)], []
    for curves, rows, prediction in folds:
        part = select_rows(curves.part, rows)
        ratio = prediction.latency_us / prediction.latency_us[:, :1]
        halves = kinds_and_halves(part.rows)
        band = np.array([[band_by_half[kind, 1 - half]] for kind, half in halves])
        text = f"{regime}: all but what is asked of"
        frames += [answers_at(part, ratio, value, band, (WORK_MODEL, text)) for value in epsilons]
        ratios.append((part, ratio))
    regime_answers = pl.concat(frames).with_columns(pl.lit(regime).alias("regime"))
    return regime_answers, ratio_rows(ratios)
