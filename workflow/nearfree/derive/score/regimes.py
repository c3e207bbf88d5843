"""How well each regime answers, in what a score reads of an answer."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from nearfree.derive.reference.build import Curves
from nearfree.derive.reference.folds import Fold, bands, digests, only_scored, predicted
from nearfree.derive.reference.left_out import ANSWERED, judged
from nearfree.derive.reference.record import rows_of_bands
from nearfree.derive.reference.regimes import rows_of
from nearfree.derive.reference.siblings import Chip
from nearfree.derive.score.scores import score
from nearfree.derive.truth.truth import Truth, narrowed

_PREDICTOR = "work_model"
_RATIOS = {"asked": pl.Int64, "n": pl.Int64, "ratio": pl.Float64}


def regime_scores(
    known: Truth,
    every: Sequence[Curves],
    chips: Mapping[str, Chip],
    regimes: Sequence[Fold],
    epsilons: Sequence[float],
    *,
    epsilon: float,
) -> pl.DataFrame:
    """Return how each regime did, as `score` gives it, with a column `regime`.

    R3 is scored on the curves that have a twin, every other one on all; what is not answered is a
    miss.

    Parameters
    ----------
    known
        What the curves say that are scored.
    every
        All curves by form, which are learnt from.
    epsilon
        The one that groups are made and bands are calibrated at.
    """
    names = known.settings["curve"].implode()
    frames = []
    for regime in regimes:
        said, ratios = answers(regime, every, chips, epsilons, epsilon)
        said, ratios = (each.filter(pl.col("asked").is_in(names)) for each in (said, ratios))
        twins = pl.col("curve").is_in(said["asked"].implode())
        scored = narrowed(known, twins) if regime == "R3" else known
        timed = ratios.with_columns(pl.lit(_PREDICTOR).alias("predictor"))
        found = score(scored, said, [_PREDICTOR], timed)
        frames.append(found.with_columns(pl.lit(regime).alias("regime")))
    return pl.concat(frames)


def answers(
    regime: Fold,
    every: Sequence[Curves],
    chips: Mapping[str, Chip],
    epsilons: Sequence[float],
    epsilon: float,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what a regime answers of curves, and its T(N) / T(baseline), as a score reads them.

    Parameters
    ----------
    epsilon
        The one that groups are made and bands are calibrated at.
    """
    told = list(only_scored(predicted(regime, every, chips, epsilon)))
    known = bands(told, epsilon)
    frames, ratios = [pl.DataFrame(schema=ANSWERED)], [pl.DataFrame(schema=_RATIOS)]
    for curves, rows, said in told:
        part = rows_of(curves.part, rows)
        ratio = said.latency_us / said.latency_us[:, :1]
        band = np.array([
            known[row, 1 - each[1] % 2]
            for row, each in zip(rows_of_bands(part.rows), digests(part.rows), strict=True)
        ])[:, None]  # fmt: skip
        text = f"{regime}: all but what is asked of"
        frames += [judged(part, ratio, each, band, (_PREDICTOR, text)) for each in epsilons]
        lists = part.rows.select("asked", pl.col("grid").alias("n")).explode("n")
        ratios.append(lists.with_columns(pl.Series("ratio", ratio[part.counts])).select(*_RATIOS))
    return pl.concat(frames).with_columns(pl.lit(regime).alias("regime")), pl.concat(ratios)
