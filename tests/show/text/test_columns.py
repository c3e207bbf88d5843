"""Columns of a terminal: aligned, numbers to the right, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.show.text.columns import columns

CELLS = st.one_of(
    st.none(), st.integers(-(10**6), 10**6), st.text("abcXYZ_/=:", min_size=1, max_size=9)
)
TABLES = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1, max_size=6)
)


@given(TABLES)
def test_every_cell_stands_in_its_column(rows: list[list[object]]) -> None:
    """A cell begins or ends where its column does, and lines have no blanks at their ends."""
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = list(columns(rows, indent=3))
    assert len(lines) == len(rows)
    for line, row in zip(lines, texts, strict=True):
        assert line == line.rstrip()
        padded, begin = line.ljust(200), 3
        for cell, width in zip(row, widths, strict=True):
            there = padded[begin : begin + width]
            assert there in (cell.ljust(width), cell.rjust(width))
            begin += width + 2


def test_numbers_stand_to_the_right() -> None:
    """A column of numbers, bounds and intervals is to the right with its head, others left."""
    rows: list[list[object]] = [
        ["name", "N", "interval", "by"], ["a", 5, "[1, 64]", "x y"], ["long", 128, "", "z"],
        ["b", "unbounded", "", ""], ["c", ">= 512", "", ""],
    ]  # fmt: skip
    assert list(columns(rows)) == [
        "  name          N  interval  by",
        "  a             5   [1, 64]  x y",
        "  long        128            z",
        "  b     unbounded",
        "  c        >= 512",
    ]


@pytest.mark.parametrize(("left", "first"), [(0, "  1"), (1, "1  ")])
def test_the_first_columns_may_stay_left(left: int, first: str) -> None:
    """The first columns keep to the left where that is asked for, even of numbers."""
    assert list(columns([["b", "x"], [1, 2], [100, 3]], left=left))[1] == f"  {first}  2"


def test_nothing_has_no_lines() -> None:
    """No rows make no lines."""
    assert list(columns([])) == []
