"""The figures of utilisation: compute and bandwidth, counted and profiled."""

import polars as pl
import pytest
from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.families import Rows
from nearfree.show.figures.work import (
    LINES,
    utilization_against_n,
    utilization_at_one,
)

from show.figures.marks import ATTENTION, DENSE, MOE, marks


@pytest.mark.parametrize("module", [DENSE, MOE, ATTENTION], ids=lambda module: module.name)
def test_shares_are_the_tables(rows: Rows, module: ModuleKind) -> None:
    """Each newest row of work is a point of compute and one of bandwidth."""
    work = rows.of(module.name).work.filter("newest")
    points = marks(utilization_against_n(work, module))
    for resource in ("compute", "bandwidth"):
        drawn = {(p["row_id"], p["share"]) for p in points if p["line"].startswith(resource)}
        assert drawn == set(work.select("row_id", f"{resource}_utilization").rows())
    assert len(points) == 2 * work.height


def test_at_one_only_n_1_is_drawn(dense: Rows) -> None:
    """The figure at N = 1 has the points of N = 1, over batch."""
    points = marks(utilization_at_one(dense.work, DENSE))
    at_one = dense.work.filter("newest", pl.col("n") == 1)
    assert {(p["row_id"], p["own"]) for p in points} == set(at_one.select("row_id", "batch").rows())
    assert {point["panel"] for point in points} == {"cpu"}


def test_at_one_variants_are_panels(moe: Rows) -> None:
    """Routings and backends have a panel each, with k on the axis."""
    points = marks(utilization_at_one(moe.work, MOE))
    assert len({point["panel"] for point in points}) == 4
    places = {(point["panel"], point["line"], point["own"]) for point in points}
    assert len(places) == len(points) == 4 * 2 * 2


def test_counted_and_profiled_are_told_apart(attention: Rows) -> None:
    """Profiled points have a line in their resource's colour with another dash."""
    points = marks(utilization_against_n(attention.work, ATTENTION))
    assert {point["line"] for point in points} == set(LINES)
    for resource in ("compute", "bandwidth"):
        (colour, dash), (other, dotted) = (
            LINES[f"{resource}, {source}"] for source in ("counted", "profiled")
        )
        assert colour == other
        assert dash != dotted


def test_rows_without_utilisation_have_no_point(dense: Rows) -> None:
    """A point without a time or a known peak is left out."""
    unknown = dense.work.with_columns(
        pl.when(pl.col("n") > 1).then("compute_utilization").alias("compute_utilization")
    )
    points = marks(utilization_against_n(unknown, DENSE))
    compute = {point["n"] for point in points if point["line"] == "compute, counted"}
    assert min(compute) == 2
    assert min(point["n"] for point in points) == 1
