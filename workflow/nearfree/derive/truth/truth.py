"""The truth that predictors are scored against: N_max read off curves T(N).

Curves come as two frames with a common key `curve`: `settings` (one row per curve: source,
platform, the columns of a setting, backend_version, kernel, distribution, event_id) and `points`
(one row per point: n, latency_us, and context where that varies along the curve instead of N).
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
    """Return the index of N_max in each curve's grid, [rows]: its last point within the tolerance.

    `passes` is the mask of the points within the tolerance, [rows, grid], False at padding.
    `baseline` is the index of each baseline, [rows], which always passes; 0 if None.
    """
    baselines = np.zeros(len(passes), dtype=np.int64) if baseline is None else baseline
    places = np.arange(passes.shape[1])[None, :]
    later = passes & (places > baselines[:, None])
    return np.asarray(np.max(np.where(later, places, baselines[:, None]), axis=1))


def first_exit(passes: Flags, counts: Flags) -> Places:
    """Return the index before each curve's first violation, [rows]; the last index without one.

    `passes` is the mask of the points within the tolerance, [rows, grid], of which the first is the
    baseline; `counts` is that of a curve's own points, which padding follows.
    """
    places = np.arange(passes.shape[1])[None, :]
    violates = counts & ~passes & (places > 0)
    ends = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.where(violates, places, ends).min(axis=1) - 1)


ASKED_COLUMNS = ("platform", *SETTING_COLUMNS, "backend_version", "kernel", "baseline", "grid")
"""The columns of a predictor's query, besides its key `asked`."""
_LAUNCH = "launch"
"""A further column of data that has it: `eager` where kernels were launched one by one."""
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
    """Curves with their boundaries; predictors see only `questions(truth)` of it.

    `settings` has one row per curve: curve, platform, the setting's columns, backend_version,
    kernel, distribution, baseline and grid (the N from the baseline upwards). `boundaries` has one
    row per curve and tolerance: n_max (last pass), next_n (the grid N after it, null at the grid's
    end), first_exit (the last N before the first violation), next_n_first (the grid N after that),
    censored (n_max is the last grid N), undecided (the measurement is too noisy to tell). `ratios`
    is T(N) / T(baseline) by curve and n, without rows where only the boundary is known; measured
    ratios have the ends of their intervals, ratio_low and ratio_high. `excluded` lists the curves
    without a boundary, with the columns of EXCLUDED_COLUMNS.
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
    """Return the truth of some curves: their boundaries at some tolerances.

    The baseline is the smallest grid N. With balanced routing it is the smallest grid N >=
    ceil(E / (b k)), from which on every expert is active (paper, sec. 3.3); with a power law, the
    smallest at which nine in ten experts are expected to be active. A curve is excluded, and
    listed, where its context varies instead of N, or where fewer than two grid N are left.

    Parameters
    ----------
    settings, points
        Curves, as described at the top of this file; n is unique in a curve, latency in
        microseconds.
    awake
        Whether experts are active at the baseline; else it is the smallest grid N everywhere.
    """
    from_baseline = _from_baseline(settings, points, awake=awake)
    ratio = pl.col("latency_us") / pl.col("latency_us").first().over("curve")
    ratios = from_baseline.select("curve", "n", ratio.alias("ratio"))
    grids = ratios.group_by("curve").agg(
        pl.col("n").first().alias("baseline"), pl.col("n").alias("grid")
    )
    reason = (
        pl.when(pl.col("curve").is_in(_varied_context(points).implode()))
        .then(pl.lit(VARIED_CONTEXT))
        .when(pl.col("grid").is_null())
        .then(pl.lit(NO_BASELINE))
        .when(pl.col("grid").list.len() < 2)
        .then(pl.lit(ONE_POINT))
        .alias("reason")
    )
    with_reason = settings.join(grids, on="curve", how="left", maintain_order="left").with_columns(
        reason
    )
    included = with_reason.filter(pl.col("reason").is_null()).drop("reason")
    ratios = ratios.join(included.select("curve"), on="curve", how="semi", maintain_order="left")
    return Truth(
        settings=included,
        boundaries=boundaries(ratios, epsilons),
        ratios=ratios,
        excluded=with_reason.filter(pl.col("reason").is_not_null()).select(*EXCLUDED_COLUMNS),
    )


def narrowed(truth: Truth, condition: pl.Expr) -> Truth:
    """Return the part of a truth whose curves meet a condition on columns that `excluded` has."""
    selected = truth.settings.filter(condition)
    curves = selected.select("curve")
    return Truth(
        settings=selected,
        boundaries=truth.boundaries.join(curves, on="curve", how="semi", maintain_order="left"),
        ratios=truth.ratios.join(curves, on="curve", how="semi", maintain_order="left"),
        excluded=truth.excluded.filter(condition),
    )


def questions(truth: Truth) -> pl.DataFrame:
    """Return the queries to predictors, without latencies: one row per curve, with key `asked`."""
    launch = [_LAUNCH] if _LAUNCH in truth.settings.columns else []
    return truth.settings.select(pl.col("curve").alias("asked"), *ASKED_COLUMNS, *launch)


def boundaries(ratios: pl.DataFrame, epsilons: Sequence[float]) -> pl.DataFrame:
    """Return the boundaries of curves at each tolerance (paper, sec. 2.2).

    `ratios` are curve, n, and ratio = T(N) / T(baseline); the rows of a curve are adjacent, n
    rising from its baseline, where the ratio is 1.
    """
    curves = ratios.group_by("curve", maintain_order=True).agg("n", "ratio")
    lengths = curves["n"].list.len().to_numpy()
    own_points = np.arange(lengths.max(initial=1))[None, :] < lengths[:, None]
    grid = np.zeros(own_points.shape, dtype=np.int64)
    ratio = np.full(own_points.shape, np.inf)
    grid[own_points], ratio[own_points] = ratios["n"].to_numpy(), ratios["ratio"].to_numpy()
    rows, ends = np.arange(len(grid)), lengths.astype(np.int64) - 1
    frames = []
    for epsilon in epsilons:
        passes = ratio <= 1.0 + epsilon
        last, before_exit = last_pass(passes), first_exit(passes, own_points)
        columns = {
            "curve": curves["curve"],
            "baseline": grid[:, 0],
            "n_max": grid[rows, last],
            "first_exit": grid[rows, before_exit],
            "next_n": grid[rows, np.minimum(last + 1, ends)],
            "next_n_first": grid[rows, np.minimum(before_exit + 1, ends)],
            "last": last == ends,
            "stays": before_exit == ends,
        }
        frames.append(
            pl.DataFrame(columns).select(
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
    least_n = ask_distinct(
        settings.select("routing", "experts", "top_k", "batch"),
        lambda layer: {"least": first_awake(**layer) if awake else 1},
        {"least": pl.Int64},
    )
    varied_n = points.join(_varied_context(points).to_frame(), on="curve", how="anti")
    return (
        varied_n.join(settings.select("curve").hstack(least_n), on="curve", how="inner")
        .filter(pl.col("n") >= pl.col("least"))
        .select("curve", "n", "latency_us")
        .sort("curve", "n")
    )


def _varied_context(points: pl.DataFrame) -> pl.Series:
    """Return the curves along which the context varies."""
    return points.filter(pl.col("context").is_not_null())["curve"].unique()
