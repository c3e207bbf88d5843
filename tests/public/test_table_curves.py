"""Rows become curves: repeats are merged, an implausible curve is left out."""

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.public.perf_tables import read_rows
from nearfree.public.table_curves import Member, TableCurves, make_curves

from public.tables import GEMM, member, parquet, rows

FACTS = Config(Path(__file__).parents[2] / "config").platforms


def made(rows: list[dict[str, Any]], table: str = "gemm_perf") -> TableCurves:
    """Return the curves of a table of an H100."""
    points = read_rows(member(table), parquet(rows)).points.with_columns(
        pl.lit("h100").alias("platform"), pl.lit("vllm").alias("backend")
    )
    over_context = table.startswith("generation")
    return make_curves(points, Member("s", "m", "0" * 64), FACTS, over_context=over_context)


def test_rows_in_any_order() -> None:
    """N rises along a curve, for any order of rows."""
    assert made(GEMM[::-1]).events == made(GEMM).events
    assert made(GEMM).events[0].n == (1, 2, 64)


def test_identical_rows_count_once() -> None:
    """A repeated row changes no latency."""
    assert made([*GEMM, GEMM[0]]).events == made(GEMM).events


def test_repeats_stand_for_their_median() -> None:
    """Several latencies of one point become their median."""
    curves = made([*GEMM, {**GEMM[0], "latency": 0.04}, {**GEMM[0], "latency": 0.032}])
    assert curves.events[0].latency_us == (32.0, 31.0, 50.0)
    assert curves.repeats == 1


def test_repeats_that_differ_too_much() -> None:
    """Latencies of one point that differ by over a factor of 2 leave the curve out."""
    curves = made([*GEMM, {**GEMM[0], "latency": 0.061}])
    assert curves.skipped == {"repeats that differ by over a factor of 2": 1}
    assert curves.events == []


@pytest.mark.parametrize("ms", [0.0, -0.03, float("nan"), float("inf"), None])
def test_a_bad_latency_leaves_its_curve_out(ms: float | None) -> None:
    """A latency that is not positive leaves out its own curve only."""
    other = rows("gemm_perf", (1, 0.03), (2, 0.03), k=2048)
    curves = made([*GEMM, {**GEMM[0], "m": 4, "latency": ms}, *other])
    assert curves.skipped == {"a latency that is no positive number": 1}
    assert [event.setting.d_model for event in curves.events] == [2048]


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (1000.0, "as slow as if nanoseconds were microseconds"),
        (0.001, "faster than the hardware allows"),
    ],
)
def test_another_unit_is_not_believed(factor: float, reason: str) -> None:
    """A curve in another unit is left out and named."""
    curves = made([{**row, "latency": row["latency"] * factor} for row in GEMM])
    assert curves.skipped == {reason: 1}
    assert "m: kernel cublas" in curves.examples[reason]


def test_one_point_is_no_curve() -> None:
    """A setting with one N is left out."""
    assert made(GEMM[:1]).skipped == {"one point alone": 1}


def test_what_differs_is_another_curve() -> None:
    """Rows of another kernel, version, batch or context are other curves."""
    base = rows("generation_attention_perf", (127, 0.01), (8191, 0.03))
    changes: list[dict[str, Any]] = [{"kernel_source": "x"}, {"version": "1"}, {"batch_size": 2}]
    more = [{**row, **change} for change in changes for row in base]
    events = made([*base, *more], "generation_attention_perf").events
    assert len(events) == 4
    assert all(event.contexts == (127, 8191) for event in events)


POINTS = st.fixed_dictionaries(
    {
        "m": st.sampled_from([1, 2, 64]),
        "k": st.sampled_from([2048, 4096]),
        "kernel_source": st.sampled_from(["cublas", "other"]),
        "latency": st.sampled_from([0.03, 0.04, 0.05]),
    }
)


@given(st.lists(POINTS, min_size=1, max_size=12))
def test_curves_are_the_rows_grouped_by_all_that_differs(points: list[dict[str, Any]]) -> None:
    """Rows are grouped by all columns that vary, for any number of these."""
    imported = made([{**GEMM[0], **point} for point in points])
    plain: dict[tuple[int, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        plain[point["k"], point["kernel_source"]][point["m"]].append(point["latency"])
    assert [
        (event.setting.d_model, event.kernel, event.n, event.latency_us)
        for event in imported.events
    ] == [
        (
            *key,
            tuple(sorted(curve)),
            tuple(round(1000 * median(curve[n]), 6) for n in sorted(curve)),
        )
        for key, curve in sorted(plain.items())
        if len(curve) > 1
    ]
    repeats = (
        len(times) > 1 for curve in plain.values() if len(curve) > 1 for times in curve.values()
    )
    assert imported.repeats == sum(repeats)
