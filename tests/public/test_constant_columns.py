"""Columns of one value, stored once, restore the frame."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from nearfree.public.perf_tables import constant_columns

COLUMNS = {
    "whole": (pl.Int64, st.none() | st.integers(0, 1)),
    "real": (pl.Float64, st.none() | st.sampled_from([0.5, 1.5])),
    "text": (pl.String, st.none() | st.sampled_from(["", "a"])),
    "truth": (pl.Boolean, st.none() | st.booleans()),
}
ROWS = st.lists(st.fixed_dictionaries({name: values for name, (_, values) in COLUMNS.items()}))


@given(ROWS)
def test_the_others_and_the_literals_are_the_frame(rows: list[dict[str, object]]) -> None:
    """Exactly the columns of one value, null included, are constant; none is lost or changed."""
    schema = {"row": pl.Int64} | {name: dtype for name, (dtype, _) in COLUMNS.items()}
    frame = pl.DataFrame([{"row": at} | row for at, row in enumerate(rows)], schema=schema)
    constants = constant_columns(frame, COLUMNS)
    again = frame.drop(constants).with_columns(constants.values()).select(frame.columns)
    assert again.equals(frame)
    assert again.schema == frame.schema
    assert constants.keys() == {n for n in COLUMNS if len({row[n] for row in rows}) < 2}
