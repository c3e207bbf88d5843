"""Columns of questions, as arrays of a row each."""

import numpy as np
import polars as pl
from nearfree.derive.work_model.columns import column


def test_what_is_missing_is_said() -> None:
    """Numbers are [rows, 1]; what is null is no number, or what stands for it."""
    rows = pl.DataFrame({"span": [4, None]})
    assert column(rows, "span", 1.0).tolist() == [[4.0], [1.0]]
    assert np.isnan(column(rows, "span")).tolist() == [[False], [True]]
