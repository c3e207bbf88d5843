"""T over (b, N, L): near-free settings by K, and the work model's surface of a model."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.exits import exits, total_exits
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.total import SUM, Total, total
from nearfree.derive.work_model.family import Array, Places
from nearfree.errors import ConfigError

NEAR_FREE, DIP, BEYOND = "near-free", "above, though N_max is larger", "beyond N_max"
"""K itself may leave the tolerance where a larger N does not: T(N) is a staircase that may fall."""
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
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return T(N) of deployments point by point, and their boundaries.

    Parameters
    ----------
    deployments
        One a batch, context and routing.
    grid
        N, rising from 1.

    Returns
    -------
    points
        deployment, n, latency_us, ratio = T(N) / T(1), and ratio_full = T(N) / T(N0) from the
        paper's baseline N0 = ceil(E / (b k)) on, null below it and where the grid lacks it.
    boundaries
        The rows of `total_exits` by deployment and baseline.
    """
    latency = total(Questions(deployments, grid), answerer)
    full = [deployment.full_baseline for deployment in deployments]
    frames = []
    for baselines in ([1] * len(deployments), full):
        beside = pl.Series("baseline", baselines, dtype=pl.Int64)
        rows = total_exits(latency, baselines, [epsilon], SUM)
        frames.append(rows.sort("deployment").with_columns(beside))
    boundaries = pl.concat(frames).unique(["deployment", "baseline"], maintain_order=True)
    return _points(latency, full), boundaries.sort("deployment", "baseline")


def _points(latency: Total, full: Sequence[int]) -> pl.DataFrame:
    model, grid = latency.model_us, latency.grid
    places = np.searchsorted(grid, full)
    on_grid = np.isin(full, grid)
    base = np.where(on_grid, model[np.arange(len(full)), np.minimum(places, len(grid) - 1)], np.nan)
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


def inverse(forecast: Forecast, positions: int, epsilon: float) -> pl.DataFrame:
    """Return what K positions cost in each deployment, by the work model's sum.

    Parameters
    ----------
    positions
        K, positions in one forward, on the grid.

    Returns
    -------
    A row a deployment: T(K) / T(1) with its interval, and a verdict; the largest N that is
    near-free is the forward question's N_max, whose interval is left to it; it is `censored` where
    the grid ends there.

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
    at = int(place[0])
    base = latency.model_us[:, :1]
    ratio = latency.model_us / base
    low, high = latency.moved_us(-1.0) / base, latency.moved_us(1.0) / base
    begin: Places = np.zeros(len(ratio), dtype=np.int64)
    out = exits(ratio, low, high, begin, epsilon)
    known = np.array([reason is None for reason in latency.refusals])
    frame = pl.DataFrame(
        {
            "deployment": range(len(ratio)),
            "positions": positions,
            "baseline": 1,
            "ratio": _where(known, ratio[:, at]),
            "low": _where(known, ratio[:, at] if at == 0 else low[:, at]),
            "high": _where(known, ratio[:, at] if at == 0 else high[:, at]),
            "n_max": _where(known, latency.grid[out.last].astype(float)),
            "censored": _where(known, out.censored.astype(float)),
            "refusal": latency.refusals,
        },
        schema_overrides={"refusal": pl.String},
    )
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


def _where(known: np.ndarray, values: Array) -> list[float | None]:
    return [float(v) if ok else None for ok, v in zip(known, values, strict=True)]
