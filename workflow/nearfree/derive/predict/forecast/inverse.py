"""The inverse question: where K positions are near-free, and what they cost elsewhere."""

import numpy as np
import polars as pl

from nearfree.derive.predict.forecast.exits import exits
from nearfree.derive.predict.forecast.forecast import Forecast
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
    "verdict": pl.String,
    "refusal": pl.String,
}


def inverse(asked: Forecast, positions: int, epsilon: float) -> pl.DataFrame:
    """Return what K positions cost in each deployment, by the work model's sum.

    Parameters
    ----------
    positions
        K, positions in one forward, on the grid.
    epsilon
        The tolerance.

    Returns
    -------
    A row a deployment: T(K) / T(1) with its interval, and a verdict; the largest N that is
    near-free is the forward question's N_max, whose interval is left to it.

    Raises
    ------
    ConfigError
        K is not on the grid.
    """
    found = asked.total
    place = np.flatnonzero(found.grid == positions)
    if not len(place):
        raise ConfigError(
            f"{positions} positions are not among the N that are looked at, 1 to {found.grid[-1]}",
            remedy="Raise --largest",
        )
    at = int(place[0])
    base = found.model_us[:, :1]
    ratio = found.model_us / base
    low, high = found.moved_us(-1.0) / base, found.moved_us(1.0) / base
    begin: Places = np.zeros(len(ratio), dtype=np.int64)
    last = exits(ratio, low, high, begin, epsilon).last
    known = np.array([reason is None for reason in found.refusals])
    frame = pl.DataFrame(
        {
            "deployment": range(len(ratio)),
            "positions": positions,
            "baseline": 1,
            "ratio": _where(known, ratio[:, at]),
            "low": _where(known, ratio[:, at] if at == 0 else low[:, at]),
            "high": _where(known, ratio[:, at] if at == 0 else high[:, at]),
            "n_max": _where(known, found.grid[last].astype(float)),
            "refusal": found.refusals,
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
