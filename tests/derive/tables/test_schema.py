"""Schemas: a frame that does not fit is refused by table and column, before it is written."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.validation import VALIDATION
from nearfree.derive.tables.boundaries import BOUNDARIES, SENSITIVITY
from nearfree.derive.tables.columns import (
    SETTING_COLUMNS,
    Column,
    amount,
    count,
    flag,
    number,
    text,
)
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.schema import EventIds, Table
from nearfree.derive.tables.settings import SETTINGS
from nearfree.derive.tables.store import read_table
from nearfree.errors import TableError
from nearfree.log.names import Layout

TABLES = (
    PLATFORMS, SETTINGS, LATENCY, GRANULARITY, BOUNDARIES, SENSITIVITY, PREDICTIONS, VALIDATION,
)  # fmt: skip
SMALL = Table(
    name="small",
    row="a small row",
    key=("name", "n"),
    formula="as it was given",
    code="nearfree.derive.tables.schema",
    body={
        "name": text("its name"),
        "n": count("how many", nullable=True),
        "time_us": amount("how long"),
        "share": amount("how much", nullable=True),
        "shift": number("where to", nullable=True),
        "kind": text("which", one_of=("a", "b")),
        "good": flag("whether"),
    },
)
ROW: dict[str, Any] = {
    "name": "x", "n": 1, "time_us": 2.5, "share": 0.5, "shift": -1.0, "kind": "a", "good": True,
    "from_ids": ["e#1"],
}  # fmt: skip


def build(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return rows of the small table, made from one known event."""
    return SMALL.build(SMALL.frame(rows), {"e#1"})


def test_a_good_row_is_identified() -> None:
    """A row gets an id from the table's name and its key, and columns in the table's order."""
    frame = build(ROW, ROW | {"name": "y", "n": None})
    assert frame.columns == ["row_id", *SMALL.body, "from_ids"]
    assert frame["row_id"].str.contains(r"^small:[0-9a-f]{12}$").all()
    assert frame["row_id"].n_unique() == 2


def test_an_id_depends_on_the_key_alone() -> None:
    """A value outside of the key does not change a row's id, one inside does."""
    (one,), (same,), (other,) = (
        build(row)["row_id"] for row in (ROW, ROW | {"time_us": 9.0}, ROW | {"n": 2})
    )
    assert one == same != other


def test_rows_are_sorted_by_their_key() -> None:
    """The order in which rows are made does not show in the table."""
    rows = [ROW | {"name": name, "n": n} for name in "ba" for n in (3, None, 1)]
    assert build(*rows).equals(build(*rows[::-1]))
    assert build(*rows)["n"].to_list() == [None, 1, 3] * 2


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"n": 0}, "n"),
        ({"time_us": 0.0}, "time_us"),
        ({"time_us": -1.0}, "time_us"),
        ({"time_us": float("nan")}, "time_us"),
        ({"time_us": float("inf")}, "time_us"),
        ({"time_us": None}, "time_us"),
        ({"share": float("nan")}, "share"),
        ({"name": None}, "name"),
        ({"kind": "c"}, "kind"),
        ({"good": None}, "good"),
    ],
)
def test_a_value_out_of_range_is_refused(change: dict[str, Any], column: str) -> None:
    """A value that its column does not take is refused by table, column and value."""
    shown = "" if change[column] is None else str(change[column])
    with pytest.raises(TableError, match=rf"(?i)the table small column {column}: .*{shown}"):
        build(ROW, ROW | {"name": "y"} | change)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("n", ["one"]),
        ("n", [1.5]),
        ("time_us", ["fast"]),
        ("good", ["yes"]),
        ("name", [[1]]),
        ("from_ids", ["e#1"]),
        ("from_ids", [[7]]),
    ],
)
def test_a_value_of_another_type_is_refused(column: str, values: list[Any]) -> None:
    """A column of another type is refused by table and column, and never rounded."""
    frame = SMALL.frame([ROW]).with_columns(pl.Series(column, values))
    with pytest.raises(TableError, match=f"the table small .*column {column}"):
        SMALL.build(frame, {"e#1"})


@pytest.mark.parametrize("change", [{"n": "one"}, {"time_us": "fast"}, {"from_ids": "e#1"}])
def test_a_row_of_another_type_is_refused(change: dict[str, Any]) -> None:
    """A row with a value of another type is refused by table and column."""
    with pytest.raises(TableError, match=f"the table small .*{next(iter(change))}"):
        build(ROW | change)


@pytest.mark.parametrize("column", [*SMALL.body, "from_ids"])
def test_a_missing_column_is_refused(column: str) -> None:
    """A frame without one of the table's columns is refused by its name."""
    with pytest.raises(TableError, match=f"the table small lacks the column {column}"):
        SMALL.build(SMALL.frame([ROW]).drop(column), {"e#1"})


def test_a_key_that_stands_twice_is_refused() -> None:
    """Two rows with one key are refused by a column, even if the key has a null."""
    for row in (ROW, ROW | {"n": None}):
        with pytest.raises(TableError, match="the table small") as caught:
            build(row, row | {"time_us": 9.0})
        assert "column small" not in str(caught.value)


def test_a_row_that_stands_twice_is_refused() -> None:
    """A table with a repeated row is refused."""
    with pytest.raises(TableError, match="the table small"):
        SMALL.check(pl.concat([build(ROW), build(ROW)]))


def test_a_row_made_from_nothing_is_refused() -> None:
    """A row with an unknown id in `from_ids` is refused by the id."""
    with pytest.raises(TableError, match="the table small is made from 'e#2', which is not there"):
        build(ROW, ROW | {"name": "y", "from_ids": ["e#1", "e#2"]})


def test_a_refused_frame_names_a_remedy() -> None:
    """A refusal says that nothing was written, and what to do."""
    with pytest.raises(TableError) as caught:
        build(ROW | {"n": 0})
    assert "Nothing was written" in caught.value.remedy


def test_an_empty_table_is_a_table() -> None:
    """A table without rows still has its columns and types."""
    frame = build()
    assert frame.is_empty()
    assert dict(frame.schema) == SMALL.dtypes


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.name)
def test_every_column_says_what_it_means(kind: Table) -> None:
    """Each column of each table has a meaning, and each key is made of its columns."""
    columns: dict[str, Column] = kind.columns
    assert all(column.meaning for column in columns.values())
    assert set(kind.key) <= set(columns)
    assert kind.row


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.name)
def test_units_are_in_the_names(kind: Table) -> None:
    """Times, rates and sizes carry their unit in the column's name."""
    for name in kind.columns:
        for word, units in {
            "latency": ("_us",),
            "bandwidth": ("_gb_s",),
            "peak": ("_tflops",),
            "balance": ("_flop_per_byte",),
            "memory": ("_gb",),
        }.items():
            assert not name.startswith(word) or name.endswith(units)


def change_value(frame: pl.DataFrame, column: str, value: object) -> pl.DataFrame:
    """Return a frame with one value in the first row of a column."""
    first = pl.int_range(pl.len()) == 0
    changed = pl.when(first).then(pl.lit(value, dtype=frame.schema[column])).otherwise(column)
    return frame.with_columns(changed.alias(column))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.name)
def test_each_schema_refuses_each_bad_value(
    table: Callable[..., pl.DataFrame], kind: Table
) -> None:
    """In a real table, a value that a column does not take is refused by that column."""
    frame = table(kind, "public" if kind is GRANULARITY else "cpu")
    for name, column in kind.body.items():
        if name in SETTING_COLUMNS and kind is not SETTINGS:
            continue
        bad: list[object] = [] if column.nullable else [None]
        bad += [column.above] if column.above is not None else []
        bad += [column.at_least - 1] if column.at_least is not None else []
        bad += ["nonsense"] if column.one_of is not None else []
        for value in bad:
            with pytest.raises(TableError, match=f"the table {kind.name} column {name}: "):
                kind.check(change_value(frame, name, value))


def test_nothing_is_written_of_a_broken_table(empty: Layout) -> None:
    """A refused table leaves no file, and the earlier one stays."""
    with pytest.raises(TableError):
        build(ROW | {"n": 0})
    with pytest.raises(TableError, match="is missing"):
        read_table(empty, "cpu", SMALL)
    assert not empty.root.exists()


SEGMENTS = ("cpu/a/1-00000000.1", "cpu/a/1-00000000.2", "cpu/b/1-00000000.1")
ids = st.tuples(st.sampled_from(SEGMENTS), st.integers(1, 30))


def text(ids: tuple[str, int]) -> str:
    """Return an event's id."""
    return f"{ids[0]}#{ids[1]}"


@given(st.lists(ids), st.lists(ids))
def test_what_is_absent_is_told_as_sets_tell_it(
    known: list[tuple[str, int]], named: list[tuple[str, int]]
) -> None:
    """Absent ids are those named but never given, in any order."""
    there = EventIds((segment, [place]) for segment, place in known)
    absent = there.absent(pl.Series([text(name) for name in named], dtype=pl.String))
    assert sorted(absent) == sorted(text(name) for name in named if name not in known)


def test_what_is_no_id_is_absent() -> None:
    """A text without a line number names no event."""
    ends = ("", "#", "#x", "#1#1", "#01", "#+1", "#0", "#99999999999999999999")
    odd = ["", "#1", *(f"{SEGMENTS[0]}{end}" for end in ends)]
    there = EventIds([(SEGMENTS[0], [1, 2])])
    assert set(there.absent(pl.Series(odd))) == set(odd)
