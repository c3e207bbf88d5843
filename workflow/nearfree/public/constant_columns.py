"""Columns with one value throughout a table: most of a table's dozens of columns are such."""

from collections.abc import Iterable

import polars as pl


def constant_columns(frame: pl.DataFrame, names: Iterable[str]) -> dict[str, pl.Expr]:
    """Return those of some columns that have one value, or are all null, each as its literal.

    Of a frame without rows every column is one of nulls.
    """
    columns = (frame[name] for name in names)
    return {
        column.name: pl.lit(column.first(), column.dtype).alias(column.name)
        for column in columns
        if not _varies(column)
    }


def _varies(column: pl.Series) -> bool:
    nulls = column.null_count()
    return 0 < nulls < len(column) or bool(column.min() != column.max())
