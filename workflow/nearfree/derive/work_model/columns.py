"""Columns of questions as the forms of T(N) ask for them."""

import numpy as np
import polars as pl

from nearfree.derive.work_model.family import Array


def column(rows: pl.DataFrame, name: str, missing: float = np.nan) -> Array:
    """Return a column of numbers as [rows, 1], and what stands for those that are missing."""
    return np.asarray(rows[name].cast(pl.Float64).fill_null(missing).to_numpy()[:, None])
