"""Differences between a table and its recomputed rows, each as one line."""

import polars as pl
import pytest
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.prove.audit.recompute import Difference, differences

IDS = [f"granularity:{letter * 12}" for letter in "abcd"]
A, B, C, D = IDS


def frame(*ids: str, **values: object) -> pl.DataFrame:
    """Return rows with these ids, whose other cells are empty, but for some columns."""
    rows = pl.DataFrame([{"row_id": row_id} for row_id in ids], schema=GRANULARITY.dtypes)
    return rows.with_columns(pl.lit(value).alias(name) for name, value in values.items())


def told(on_disk: pl.DataFrame, recomputed: pl.DataFrame) -> list[str]:
    """Return the differences between two frames, as text."""
    return [str(difference) for difference in differences(GRANULARITY, on_disk, recomputed)]


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (
            Difference("boundaries:1", "n_max", 8.125, None),
            "boundaries:1 says n_max = 8.125, and the log gives None",
        ),
        (
            Difference("boundaries:1", "", "is missing, and the log gives it", None),
            "boundaries:1 is missing, and the log gives it",
        ),
    ],
)
def test_a_difference_names_its_row(difference: Difference, text: str) -> None:
    """A cell is named with both values, a whole row with what is wrong with it."""
    assert str(difference) == text


@pytest.mark.parametrize("ids", [(), (A,), (A, B, C)])
def test_equal_rows_do_not_differ(ids: tuple[str, ...]) -> None:
    """Rows that are equal, empty cells among them, have no differences."""
    assert told(frame(*ids), frame(*ids)) == []


def test_rows_that_one_side_lacks_are_told_as_such() -> None:
    """A missing and an unknown row are told alone: rows that both have keep their order."""
    missing, unknown = "is missing, and the log gives it", "is a row that the log does not give"
    assert told(frame(A, C), frame(A, B, C, D)) == [f"{B} {missing}", f"{D} {missing}"]
    assert told(frame(A, B, C), frame(A, C)) == [f"{B} {unknown}"]
    assert told(frame(A), frame(B)) == [f"{A} {unknown}", f"{B} {missing}"]
    assert told(frame(), frame(A)) == [f"{A} {missing}"]


def test_duplicates_are_told_once_in_order() -> None:
    """A row that is there twice or more is told once, in the order of the table."""
    twice = [f"{row_id} is there twice" for row_id in (D, B, A)]
    assert told(frame(D, B, C, A, A, B, D, D), frame(D, B, C, A)) == twice


def test_rows_in_another_order_are_told_of_the_table() -> None:
    """Rows that both have, in another order, are one difference of the table."""
    order = "granularity has its rows in another order than the log gives"
    assert told(frame(B, A, C), frame(A, B, C)) == [order]
    missing = f"{D} is missing, and the log gives it"
    assert told(frame(C, A), frame(A, C, D)) == [missing, order]


def test_cells_are_told_by_column_then_row() -> None:
    """Each cell that differs is told, by columns; of a row that is there twice the first counts."""
    old, new = frame(B, A, path="x", place="p"), frame(B, A, path="y", place="p")
    assert told(old, new) == [f"{row} says path = x, and the log gives y" for row in (B, A)]
    odd = frame(A, path="x", place=None, package="v")
    assert told(odd, frame(A, path="y", place="p", package="v")) == sorted(
        [
            f"{A} says path = x, and the log gives y",
            f"{A} says place = None, and the log gives p",
        ],
        key=lambda text: [*GRANULARITY.dtypes].index(text.split()[2]),
    )
    doubled = pl.concat([frame(A, path="x"), frame(A, path="y")])
    assert told(doubled, frame(A, path="x")) == [f"{A} is there twice"]
    changed = f"{A} says path = x, and the log gives y"
    assert told(doubled, frame(A, path="y")) == [f"{A} is there twice", changed]
