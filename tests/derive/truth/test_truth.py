"""The truth of curves: last pass, first exit, baseline, and curves without a boundary."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.boundary import Ratio, boundary
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.truth.truth import (
    NO_BASELINE,
    ONE_POINT,
    VARIED_CONTEXT,
    first_exit,
    last_pass,
    narrowed,
    questions,
    truth,
)

from derive.curves import make_curves, make_truth

latencies = st.dictionaries(
    st.integers(1, 600), st.sampled_from([10.0, 11.0, 11.5, 12.0, 12.5, 40.0]), min_size=2
)
EPSILONS = (0.1, 0.2, 0.3)
MOE = {"module": "moe_ffn", "experts": 64, "top_k": 8, "routing": "balanced"}


@given(st.lists(latencies, min_size=1, max_size=5))
def test_a_boundary_is_the_one_of_a_measured_curve(every: list[dict[int, float]]) -> None:
    """Over frames the boundary equals that over one curve."""
    truth = make_truth(*(({}, times) for times in every), epsilons=EPSILONS)
    for row in truth.boundaries.to_dicts():
        times = every[row["curve"]]
        grid = sorted(times)
        ratios = [Ratio(n, r := times[n] / times[grid[0]], r, r) for n in grid]
        one = boundary(ratios, row["epsilon"], grid[0])
        exits = [r.n for r in ratios if r.value > 1 + row["epsilon"]]
        assert row == {
            "curve": row["curve"],
            "epsilon": row["epsilon"],
            "baseline": grid[0],
            "n_max": one.last_pass,
            "first_exit": one.first_exit,
            "next_n": one.next_n,
            "next_n_first": min(exits, default=None),
            "censored": one.last_pass == grid[-1],
            "undecided": False,
        }
    assert truth.boundaries.height == len(every) * len(EPSILONS)


@given(st.lists(latencies, min_size=2, max_size=4), st.integers(0, 99))
def test_the_order_of_points_does_not_matter(every: list[dict[int, float]], seed: int) -> None:
    """Points of a curve may come in any order, and those of several curves mixed."""
    settings, points = make_curves(*(({}, times) for times in every))
    mixed = points.sample(fraction=1.0, shuffle=True, seed=seed)
    truth_rows, expected = truth(settings, mixed, (0.2,)), truth(settings, points, (0.2,))
    assert truth_rows.boundaries.equals(expected.boundaries)
    assert truth_rows.settings.equals(expected.settings)


@pytest.mark.parametrize(
    ("changes", "baseline"),
    [
        ({}, 1),
        (MOE, 8),
        (MOE | {"batch": 2}, 4),
        (MOE | {"top_k": 6}, 16),
        (MOE | {"top_k": 64}, 1),
        (MOE | {"routing": "skewed"}, 1),
        (MOE | {"routing": "power_law"}, 1),
        (MOE | {"routing": "power_law:1.2"}, 16),
        (MOE | {"routing": "power_law:1.2", "batch": 2}, 8),
    ],
)
def test_the_baseline(changes: dict[str, object], baseline: int) -> None:
    """The baseline is the smallest N, for balanced routing the first with every expert active."""
    times = dict.fromkeys((1, 2, 4, 8, 16, 32), 10.0) | {1: 1.0}
    truth = make_truth((dict(changes), times))
    (question_rows,) = questions(truth).to_dicts()
    assert (
        question_rows["baseline"]
        == question_rows["grid"][0]
        == truth.boundaries["baseline"][0]
        == baseline
    )
    assert truth.ratios.filter(pl.col("n") == baseline)["ratio"].to_list() == [1.0]


def test_curves_without_a_boundary_are_named() -> None:
    """A curve that never reaches every expert, has one N, or varies its context is no setting."""
    settings, points = make_curves(
        ({}, {1: 1.0, 2: 2.0}),
        (MOE, {1: 1.0, 4: 1.0}),
        ({"platform": "a100"}, {4: 1.0}),
        ({}, {1: 3.0}),
    )
    along = pl.when(pl.col("curve") == 3).then(512).alias("context").cast(pl.Int64)
    truth_rows = truth(settings, points.with_columns(along), (0.2,))
    assert truth_rows.excluded.select("event_id", "platform", "reason").rows() == [
        ("e#1", "h20", NO_BASELINE),
        ("e#2", "a100", ONE_POINT),
        ("e#3", "h20", VARIED_CONTEXT),
    ]
    for frame in (truth_rows.settings, truth_rows.boundaries, truth_rows.ratios):
        assert set(frame["curve"]) == {0}


def test_a_part_of_a_truth() -> None:
    """A narrowed truth has the chosen curves only, in every frame."""
    every = make_truth(
        ({}, {1: 1.0, 2: 2.0}), ({"platform": "a100"}, {1: 1.0, 2: 2.0}), ({}, {1: 1.0})
    )
    part = narrowed(every, pl.col("platform") == "a100")
    for frame in (part.settings, part.boundaries, part.ratios):
        assert set(frame["curve"]) == {1}
    assert part.excluded.is_empty()


def test_a_question_holds_no_latency() -> None:
    """Questions to predictors do not depend on measured latencies."""
    slow, fast = (make_truth(({}, {1: us, 2: 2 * us, 4: us})) for us in (1.0, 50.0))
    assert questions(slow).equals(questions(fast))
    assert questions(slow).columns == [
        "asked", "platform", *SETTING_COLUMNS, "backend_version", "kernel", "baseline", "grid",
        "launch",
    ]  # fmt: skip


curves = st.lists(st.lists(st.floats(0.5, 2.0), max_size=9), min_size=1, max_size=6)


@given(curves, st.floats(0.01, 0.9))
def test_many_curves_are_read_as_each_alone(drawn: list[list[float]], epsilon: float) -> None:
    """Last pass and first exit equal the scalar form's."""
    counts = np.zeros((len(drawn), 10), dtype=bool)
    ratio = np.full(counts.shape, np.inf)
    for row, values in enumerate(drawn):
        counts[row, : len(values) + 1] = True
        ratio[row, : len(values) + 1] = [1.0, *values]
    passes = ratio <= 1.0 + epsilon
    last, first = last_pass(passes), first_exit(passes, counts)
    for row, values in enumerate(drawn):
        points = [Ratio(n, value, value, value) for n, value in enumerate([1.0, *values], 1)]
        alone = boundary(points, epsilon, 1)
        assert (last[row] + 1, first[row] + 1) == (alone.last_pass, alone.first_exit)


@given(st.integers(0, 4), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_baseline_passes_and_counts_from_there(baseline: int, passes: list[bool]) -> None:
    """What lies before a baseline does not count, and the baseline itself always passes."""
    n_pass = last_pass(np.array([passes]), np.array([baseline]))
    later = [place for place in range(baseline + 1, 5) if passes[place]]
    assert n_pass.tolist() == [max([baseline, *later])]
