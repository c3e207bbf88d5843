"""The staircases: intensity and FLOPs, executed and logical."""

import polars as pl
import pytest
from nearfree.show.figures.families import Rows
from nearfree.show.figures.work import STAIRS, flop_against_n, intensity_against_n

from show.figures.marks import ATTENTION, MOE, marks
from show.figures.studies import BLOCK


def test_flops_are_the_tables(moe: Rows) -> None:
    """Each row of work is a point of the executed and of the logical line."""
    points = marks(flop_against_n(moe.work, MOE))
    for line, column in (("executed, counted", "flop_executed"), ("logical", "flop_logical")):
        drawn = {(p["row_id"], p["value"]) for p in points if p["line"] == line}
        assert drawn == set(moe.work.select("row_id", column).rows())


def test_intensity_is_the_tables(moe: Rows) -> None:
    """The executed line is the table's intensity; the logical one uses the same bytes."""
    points = marks(intensity_against_n(moe.work, MOE))
    by_id = {row["row_id"]: row for row in moe.work.to_dicts()}
    assert len(points) == 2 * moe.work.height
    for point in points:
        row = by_id[point["row_id"]]
        if point["line"] == "logical":
            assert point["value"] == pytest.approx(row["flop_logical"] / row["bytes"])
        else:
            assert point["value"] == pytest.approx(row["intensity_flop_per_byte"])


def test_the_padded_backend_is_a_staircase(moe: Rows) -> None:
    """Up to one block a padded expert executes equal FLOPs; without padding they rise."""
    points = marks(flop_against_n(moe.work, MOE))
    of = {
        backend: [
            p["value"]
            for p in points
            if p["panel"] == f"k = 2: skewed, {backend}"
            and p["line"] == "executed, counted"
            and p["n"] <= BLOCK
        ]
        for backend in ("torch_padded", "torch_grouped")
    }
    assert len(set(of["torch_padded"])) == 1
    assert of["torch_grouped"] == sorted(set(of["torch_grouped"]))


def test_counted_and_profiled_are_told_apart(attention: Rows) -> None:
    """Profiled points have a line with another name and colour."""
    points = marks(intensity_against_n(attention.work, ATTENTION))
    assert {point["line"] for point in points} == set(STAIRS)
    assert len({colour for colour, _ in STAIRS.values()}) == len(STAIRS)
    profiled = [point for point in points if point["line"] == "executed, profiled"]
    assert len(profiled) == attention.work.filter(pl.col("source") == "profiled").height


def test_points_without_a_value_are_left_out(attention: Rows) -> None:
    """A profile without FLOPs has no point, nor has zero on a logarithmic axis."""
    unseen = attention.work.with_columns(
        pl.when(pl.col("source") == "profiled")
        .then(pl.when(pl.col("n") == 1).then(0.0))
        .otherwise("flop_executed")
        .alias("flop_executed")
    )
    for draw in (flop_against_n, intensity_against_n):
        points = marks(draw(unseen, ATTENTION))
        assert {point["line"] for point in points} == {"executed, counted", "logical"}
        assert all(point["value"] > 0 for point in points)


def test_older_takes_are_not_drawn(moe: Rows) -> None:
    """Only the newest take is drawn."""
    older = moe.work.with_columns(
        pl.lit(value=False).alias("newest"), pl.format("{}-old", "row_id").alias("row_id")
    )
    points = marks(flop_against_n(pl.concat([older, moe.work]), MOE))
    assert {point["row_id"] for point in points} == set(moe.work["row_id"])
