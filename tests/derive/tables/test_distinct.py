"""A scalar function over a frame."""

from typing import Any

import polars as pl
from nearfree.derive.tables.distinct import ask_distinct


def test_each_distinct_row_is_asked_once() -> None:
    """Answers stand in the rows' order, nulls are values, and what is left out is null."""
    asked = []

    def answer(row: dict[str, Any]) -> dict[str, object]:
        asked.append(tuple(row.values()))
        return {} if row["a"] is None else {"a": row["a"] + 1, "said": row["b"]}

    rows = pl.DataFrame({"a": [1, None, 1, 2, None], "b": ["x", "x", "x", "y", "x"], "c": range(5)})
    found = ask_distinct(rows.select("a", "b"), answer, {"a": pl.Int64, "said": pl.String})
    assert found.rows() == [(2, "x"), (None, None), (2, "x"), (3, "y"), (None, None)]
    assert asked == [(1, "x"), (None, "x"), (2, "y")]
    assert ask_distinct(rows.clear(), answer, {"said": pl.String}).is_empty()
