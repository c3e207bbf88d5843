"""T over (b, N, L): the work model's surface of a model, with both routings and both baselines."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.exits import total_exits
from nearfree.derive.predict.forecast.total import SUM, Total, total


def surface(
    deployments: Sequence[Deployment], answerer: Answerer, grid: Sequence[int], epsilon: float
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return T(N) of deployments point by point, and their boundaries.

    Parameters
    ----------
    deployments
        One a batch, context and routing.
    grid
        N, rising from 1.
    epsilon
        The tolerance of the boundaries.

    Returns
    -------
    points
        deployment, n, latency_us, ratio = T(N) / T(1), and ratio_full = T(N) / T(N0) from the
        paper's baseline N0 = ceil(E / (b k)) on, null below it and where the grid lacks it.
    boundaries
        The rows of `total_exits` by deployment and baseline.
    """
    found = total(Questions(deployments, grid), answerer)
    full = [each.full_baseline for each in deployments]
    frames = []
    for baselines in ([1] * len(deployments), full):
        beside = pl.Series("baseline", baselines, dtype=pl.Int64)
        rows = total_exits(found, baselines, [epsilon], SUM)
        frames.append(rows.sort("deployment").with_columns(beside))
    boundaries = pl.concat(frames).unique(["deployment", "baseline"], maintain_order=True)
    return _points(found, full), boundaries.sort("deployment", "baseline")


def _points(found: Total, full: Sequence[int]) -> pl.DataFrame:
    model, grid = found.model_us, found.grid
    places = np.searchsorted(grid, full)
    there = np.isin(full, grid)
    base = np.where(there, model[np.arange(len(full)), np.minimum(places, len(grid) - 1)], np.nan)
    from_full = np.where(grid[None, :] >= np.array(full)[:, None], model / base[:, None], np.nan)
    return pl.DataFrame(
        {
            "deployment": np.repeat(np.arange(len(full)), len(grid)),
            "n": np.tile(grid, len(full)),
            "latency_us": model.ravel(),
            "ratio": (model / model[:, :1]).ravel(),
            "ratio_full": from_full.ravel(),
        }
    ).with_columns(pl.col("latency_us", "ratio", "ratio_full").fill_nan(None))
