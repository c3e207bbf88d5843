"""Two frames of one table: every kind of difference is told, and equal ones have none."""

from collections.abc import Callable

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.store import read_table
from nearfree.prove.audit.compare import differences

Change = Callable[[pl.DataFrame], pl.DataFrame]


def boundaries(shared) -> pl.DataFrame:
    """Return a real table."""
    return read_table(shared.layout, "cpu", BOUNDARIES)


def test_equal_frames_have_no_differences(shared):
    """A table is the same as itself."""
    assert list(differences(BOUNDARIES, boundaries(shared), boundaries(shared))) == []


@given(data=st.data())
def test_any_changed_cell_is_told_with_both_values(shared, data):
    """One cell of any column in any row, changed to another value of its type."""
    frame = boundaries(shared)
    column = data.draw(st.sampled_from([c for c in frame.columns if c != "row_id"]))
    place = data.draw(st.integers(0, frame.height - 1))
    old = frame[column].to_list()
    new = list(old)
    new[place] = changed(old[place], frame.schema[column])
    other = frame.with_columns(pl.Series(column, new, dtype=frame.schema[column]))
    (found,) = differences(BOUNDARIES, other, frame)
    assert (found.row_id, found.column) == (frame["row_id"][place], column)
    assert (found.said, found.made) == (new[place], old[place])
    assert found.row_id in str(found)


def changed(value, dtype):
    """Return another value of a type."""
    if isinstance(dtype, pl.List):
        return [*value, "latency:000000000000"]
    if dtype == pl.Boolean:
        return not value
    if dtype == pl.String:
        return f"{value}x"
    return (value or 0) + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f[1:], "is missing"),
        (lambda f: pl.concat([f, f[:1]]), "is there twice"),
        (lambda f: f.with_columns(row_id=pl.col("row_id") + "x"), "does not give"),
        (lambda f: f.reverse(), "another order"),
    ],
)
def test_changed_rows_are_told(shared, change: Change, words: str):
    """A row that is gone, doubled, renamed or moved."""
    frame = boundaries(shared)
    found = [str(each) for each in differences(BOUNDARIES, change(frame), frame)]
    assert any(words in each for each in found)
