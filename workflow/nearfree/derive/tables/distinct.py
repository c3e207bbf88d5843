"""Scalar functions over frames: asked once for each distinct row."""

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl


def ask_distinct(
    rows: pl.DataFrame,
    answer: Callable[[dict[str, Any]], Mapping[str, Any]],
    schema: Mapping[str, Any],
) -> pl.DataFrame:
    """Return what a function says of each row, in the rows' order.

    Parameters
    ----------
    rows
        What the function is asked.
    answer
        Takes a row by its columns' names and returns values by the names of `schema`; what it
        leaves out is null. It is called once for each distinct row.
    schema
        The columns of the answers.
    """
    distinct = rows.unique(maintain_order=True)
    answers = [answer(question) for question in distinct.iter_rows(named=True)]
    known = distinct.hstack(pl.DataFrame(answers, schema=schema).rename(_answer))
    found = rows.join(known, on=rows.columns, how="left", nulls_equal=True, maintain_order="left")
    return found.select(pl.col(_answer(name)).alias(name) for name in schema)


def _answer(name: str) -> str:
    return f"answer_{name}"
