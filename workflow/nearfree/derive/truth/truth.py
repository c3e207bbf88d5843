"""The truth that predictors are scored against: N_max read off curves T(N).

Curves come as two frames with a common key `curve`: `settings` (a row a curve: source, platform,
the columns of a setting, backend_version, kernel, distribution, event_id) and `points` (a row a
point: n, latency_us, and context where that varies along the curve instead of N).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct

from nearfree.core.setting import STORED
from nearfree.derive.laws.laws import ask_distinct
from nearfree.derive.laws.spread import first_awake
from nearfree.derive.tables.columns import SETTING_COLUMNS

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


def last_pass(passes: Flags, baseline: Places | None = None) -> Places:
    """Return the place of N_max in each curve's grid, [rows]: its last point within the tolerance.

    Parameters
    ----------
    passes
        Which points are within the tolerance, [rows, grid]; none that is not a curve's own.
    baseline
        The place of each baseline, [rows], which always passes; the first one if None.
    """
    first = np.zeros(len(passes), dtype=np.int64) if baseline is None else baseline
    places = np.arange(passes.shape[1])[None, :]
    later = passes & (places > first[:, None])
    return np.asarray(np.max(np.where(later, places, first[:, None]), axis=1))


def first_exit(passes: Flags, counts: Flags) -> Places:
    """Return the place before each curve's first violation, [rows]; its last without one.

    Parameters
    ----------
    passes
        Which points are within the tolerance, [rows, grid]; the first is the baseline.
    counts
        Which points are a curve's own, [rows, grid]: the first ones.
    """
    places = np.arange(passes.shape[1])[None, :]
    violates = counts & ~passes & (places > 0)
    ends = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.where(violates, places, ends).min(axis=1) - 1)


ASKED_COLUMNS = ("platform", *SETTING_COLUMNS, "backend_version", "kernel", "baseline", "grid")
"""The columns of a question to a predictor, besides its key `asked`."""
_LAUNCH = "launch"
"""One more, of data that says it: `eager` where kernels were launched one by one."""
EXCLUDED_COLUMNS = {
    "curve": pl.Int64,
    "event_id": pl.String,
    "platform": pl.String,
    "module": pl.String,
    "backend": pl.String,
    "dtype": pl.String,
    **dict.fromkeys(STORED, pl.String),
    "routing": pl.String,
    "kernel": pl.String,
    "reason": pl.String,
}
NO_BASELINE = "no grid N at or above its baseline E/(b k)"
ONE_POINT = "a single grid N from its baseline upwards"
VARIED_CONTEXT = "its context varies, not N"


class Truth(Struct, frozen=True, kw_only=True):
    """What is known of curves; predictors see `questions(truth)` and nothing else of it.

    `settings` is a row a curve: curve, platform, the setting's columns, backend_version, kernel,
    distribution, baseline and grid (the N from the baseline upwards). `boundaries` is a row a curve
    and tolerance: n_max (last pass), next_n (the grid N after it, null at the grid's end),
    first_exit (the last N before the first violation), next_n_first (the grid N after that),
    censored (n_max is the last grid N), undecided (a measurement too loose to tell). `ratios` is
    T(N) / T(baseline) by curve and n, without rows where only the boundary is known; measured ones
    have the ends of their intervals, ratio_low and ratio_high. `excluded` names the curves that
    have no boundary: the columns of EXCLUDED_COLUMNS.
    """

    settings: pl.DataFrame
    boundaries: pl.DataFrame
    ratios: pl.DataFrame
    excluded: pl.DataFrame


def truth(
    settings: pl.DataFrame,
    points: pl.DataFrame,
    epsilons: Sequence[float],
    *,
    awake: bool = True,
) -> Truth:
    """Return what curves say of the boundary at some tolerances.

    The baseline is the smallest grid N, and the smallest one >= ceil(E / (b k)) where routing is
    balanced: from there on every expert is active (paper, sec. 3.3). Where routing is a power law
    it is the first at which nine in ten experts are expected to be. A curve is excluded, by name,
    where its context varies instead of N, or where fewer than two grid N are left.

    Parameters
    ----------
    settings, points
        Curves, as this file's first lines say; n is unique in a curve, latency in microseconds.
    awake
        Whether experts are awake at the baseline; else it is the smallest grid N everywhere.
    """
    from_baseline = _from_baseline(settings, points, awake=awake)
    ratio = pl.col("latency_us") / pl.col("latency_us").first().over("curve")
    ratios = from_baseline.select("curve", "n", ratio.alias("ratio"))
    grids = ratios.group_by("curve").agg(
        pl.col("n").first().alias("baseline"), pl.col("n").alias("grid")
    )
    reason = (
        pl.when(pl.col("curve").is_in(_varied(points).implode()))
        .then(pl.lit(VARIED_CONTEXT))
        .when(pl.col("grid").is_null())
        .then(pl.lit(NO_BASELINE))
        .when(pl.col("grid").list.len() < 2)
        .then(pl.lit(ONE_POINT))
        .alias("reason")
    )
    judged = settings.join(grids, on="curve", how="left", maintain_order="left").with_columns(
        reason
    )
    kept = judged.filter(pl.col("reason").is_null()).drop("reason")
    ratios = ratios.join(kept.select("curve"), on="curve", how="semi", maintain_order="left")
    return Truth(
        settings=kept,
        boundaries=boundaries(ratios, epsilons),
        ratios=ratios,
        excluded=judged.filter(pl.col("reason").is_not_null()).select(*EXCLUDED_COLUMNS),
    )


def narrowed(known: Truth, condition: pl.Expr) -> Truth:
    """Return the part of a truth whose curves meet a condition on what `excluded` has, too."""
    kept = known.settings.filter(condition)
    curves = kept.select("curve")
    return Truth(
        settings=kept,
        boundaries=known.boundaries.join(curves, on="curve", how="semi", maintain_order="left"),
        ratios=known.ratios.join(curves, on="curve", how="semi", maintain_order="left"),
        excluded=known.excluded.filter(condition),
    )


def questions(known: Truth) -> pl.DataFrame:
    """Return what predictors are asked: a row a curve, its key `asked`, without a latency."""
    launch = [_LAUNCH] if _LAUNCH in known.settings.columns else []
    return known.settings.select(pl.col("curve").alias("asked"), *ASKED_COLUMNS, *launch)


def boundaries(ratios: pl.DataFrame, epsilons: Sequence[float]) -> pl.DataFrame:
    """Return the boundaries of curves at each tolerance (paper, sec. 2.2).

    Parameters
    ----------
    ratios
        curve, n, ratio = T(N) / T(baseline); the rows of a curve adjacent, n rising from its
        baseline, where the ratio is 1.
    """
    curves = ratios.group_by("curve", maintain_order=True).agg("n", "ratio")
    lengths = curves["n"].list.len().to_numpy()
    counts = np.arange(lengths.max(initial=1))[None, :] < lengths[:, None]
    grid = np.zeros(counts.shape, dtype=np.int64)
    ratio = np.full(counts.shape, np.inf)
    grid[counts], ratio[counts] = ratios["n"].to_numpy(), ratios["ratio"].to_numpy()
    rows, ends = np.arange(len(grid)), lengths.astype(np.int64) - 1
    frames = []
    for epsilon in epsilons:
        passes = ratio <= 1.0 + epsilon
        last, first = last_pass(passes), first_exit(passes, counts)
        found = {
            "curve": curves["curve"],
            "baseline": grid[:, 0],
            "n_max": grid[rows, last],
            "first_exit": grid[rows, first],
            "next_n": grid[rows, np.minimum(last + 1, ends)],
            "next_n_first": grid[rows, np.minimum(first + 1, ends)],
            "last": last == ends,
            "stays": first == ends,
        }
        frames.append(
            pl.DataFrame(found).select(
                "curve",
                pl.lit(float(epsilon)).alias("epsilon"),
                "baseline",
                "n_max",
                "first_exit",
                pl.when(~pl.col("last")).then("next_n").alias("next_n"),
                pl.when(~pl.col("stays")).then("next_n_first").alias("next_n_first"),
                pl.col("last").alias("censored"),
                pl.lit(value=False).alias("undecided"),
            )
        )
    return pl.concat(frames)


def _from_baseline(settings: pl.DataFrame, points: pl.DataFrame, *, awake: bool) -> pl.DataFrame:
    """Return the points from each curve's baseline upwards, sorted."""
    least = ask_distinct(
        settings.select("routing", "experts", "top_k", "batch"),
        lambda layer: {"least": first_awake(**layer) if awake else 1},
        {"least": pl.Int64},
    )
    fixed = points.join(_varied(points).to_frame(), on="curve", how="anti")
    return (
        fixed.join(settings.select("curve").hstack(least), on="curve", how="inner")
        .filter(pl.col("n") >= pl.col("least"))
        .select("curve", "n", "latency_us")
        .sort("curve", "n")
    )


def _varied(points: pl.DataFrame) -> pl.Series:
    """Return the curves along which the context varies."""
    return points.filter(pl.col("context").is_not_null())["curve"].unique()
