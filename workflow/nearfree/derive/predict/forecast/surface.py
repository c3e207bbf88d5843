"""T over (b, N, L): the work model's surface of a model, and the cost of K positions."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.exits import exits, total_exits
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.total import SUM, Total, total
from nearfree.derive.work_model.family import Integers
from nearfree.errors import ConfigError

NEAR_FREE, DIP, BEYOND = "near-free", "above, though N_max is larger", "beyond N_max"
"""Verdicts on K positions. K may exceed the tolerance where a larger N does not: T(N) is a
staircase that may fall."""
SCHEMA = {
    "deployment": pl.Int64,
    "positions": pl.Int64,
    "baseline": pl.Int64,
    "ratio": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n_max": pl.Int64,
    "censored": pl.Boolean,
    "verdict": pl.String,
    "refusal": pl.String,
}


def surface(
    deployments: Sequence[Deployment], answerer: Answerer, grid: Sequence[int], epsilon: float
) -> tuple[pl.DataFrame, pl.DataFrame, Total]:
    """Return T(N) of deployments point by point, and their boundaries; the grid rises from 1.

    Returns
    -------
    points
        deployment, n, latency_us, ratio = T(N) / T(1), and ratio_full = T(N) / T(N0) from the
        paper's baseline N0 = ceil(E / (b k)) on, null below it and where the grid lacks it.
    boundaries
        The rows of `total_exits` by deployment and baseline.
    total
        T(N) module by module.
    """
    latency = total(Questions(deployments, grid), answerer)
    full_baselines = [deployment.full_baseline for deployment in deployments]
    frames = []
    for baselines in ([1] * len(deployments), full_baselines):
        baseline_column = pl.Series("baseline", baselines, dtype=pl.Int64)
        rows = total_exits(latency, baselines, [epsilon], SUM)
        frames.append(rows.sort("deployment").with_columns(baseline_column))
    boundaries = pl.concat(frames).unique(["deployment", "baseline"], maintain_order=True)
    boundaries = boundaries.sort("deployment", "baseline")
    return _points(latency, full_baselines), boundaries, latency


def _points(latency: Total, full_baselines: Sequence[int]) -> pl.DataFrame:
    model, grid = latency.model_us, latency.grid
    places = np.searchsorted(grid, full_baselines)
    on_grid = np.isin(full_baselines, grid)
    full_us = np.where(
        on_grid, model[np.arange(len(full_baselines)), np.minimum(places, len(grid) - 1)], np.nan
    )
    from_full = np.where(
        grid[None, :] >= np.array(full_baselines)[:, None], model / full_us[:, None], np.nan
    )
    return pl.DataFrame(
        {
            "deployment": np.repeat(np.arange(len(full_baselines)), len(grid)),
            "n": np.tile(grid, len(full_baselines)),
            "latency_us": model.ravel(),
            "ratio": (model / model[:, :1]).ravel(),
            "ratio_full": from_full.ravel(),
        }
    ).with_columns(pl.col("latency_us", "ratio", "ratio_full").fill_nan(None))


def cost_of_positions(forecast: Forecast, positions: int, epsilon: float) -> pl.DataFrame:
    """Return the cost of K positions in one forward of each deployment, by the work model's sum.

    One row per deployment: T(K) / T(1) with its interval, a verdict, and N_max without its
    interval; `censored` says that N_max is the grid's end.

    Raises
    ------
    ConfigError
        K is not on the grid.
    """
    latency = forecast.total
    place = np.flatnonzero(latency.grid == positions)
    if not len(place):
        raise ConfigError(
            f"{positions} positions are not among the N that are looked at, 1 to "
            f"{latency.grid[-1]}",
            remedy="Raise --largest",
        )
    index = int(place[0])
    baseline_us = latency.model_us[:, :1]
    ratio = latency.model_us / baseline_us
    low, high = latency.moved_us(-1.0) / baseline_us, latency.moved_us(1.0) / baseline_us
    baseline_places: Integers = np.zeros(len(ratio), dtype=np.int64)
    boundary = exits(ratio, low, high, baseline_places, epsilon)
    values = {
        "ratio": ratio[:, index],
        "low": (ratio if index == 0 else low)[:, index],
        "high": (ratio if index == 0 else high)[:, index],
        "n_max": latency.grid[boundary.last],
        "censored": boundary.censored,
    }
    refusals = pl.Series("refusal", latency.refusals, dtype=pl.String)
    frame = pl.DataFrame(
        {"deployment": range(len(ratio)), "positions": positions, "baseline": 1, **values}
    ).with_columns(refusals)
    answered = pl.when(pl.col("refusal").is_null())
    frame = frame.with_columns(answered.then(pl.col(name)).alias(name) for name in values)
    verdict = (
        pl.when(pl.col("ratio").is_null())
        .then(None)
        .when((pl.col("ratio") <= 1.0 + epsilon) | (pl.col("positions") == 1))
        .then(pl.lit(NEAR_FREE))
        .when(pl.col("positions") < pl.col("n_max"))
        .then(pl.lit(DIP))
        .otherwise(pl.lit(BEYOND))
    )
    return frame.with_columns(verdict.alias("verdict")).select(
        pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()
    )
