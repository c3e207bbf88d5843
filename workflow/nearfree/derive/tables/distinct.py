"""Scalar functions over frames: asked once for each distinct row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl


def ask_distinct(
    rows: pl.DataFrame,
    names: Sequence[str],
    answer: Callable[..., Mapping[str, Any]],
    schema: Mapping[str, Any],
) -> pl.DataFrame:
    """Return what a function says of each row, in the rows' order.

    Parameters
    ----------
    names
        The columns that the function is asked with, by name; it is called once for each distinct
        combination of them.
    answer
        Returns values by the names of `schema`; what it leaves out is null.
    schema
        The columns of the answers.
    """
    asked = rows.select(names)
    distinct = asked.unique(maintain_order=True)
    answers = [answer(**question) for question in distinct.iter_rows(named=True)]
    known = distinct.hstack(pl.DataFrame(answers, schema=schema).rename(_answer))
    on = list(names)
    found = asked.join(known, on=on, how="left", nulls_equal=True, maintain_order="left")
    return found.select(pl.col(_answer(name)).alias(name) for name in schema)


def _answer(name: str) -> str:
    return f"answer_{name}"
