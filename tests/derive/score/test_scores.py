"""Scores: hits at their limits, unanswered questions, and sums of groups."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.derive.score.scores import GROUP_KEYS, groups, score
from nearfree.derive.truth.truth import Truth

from derive.curves import make_answers, make_truth

GRID = (1, 2, 4, 8, 16, 32)
INF = float("inf")


def known(n_max: int, epsilon: float = 0.2) -> Truth:
    """Return the truth of a curve that is constant up to n_max."""
    return make_truth(({}, {n: 10.0 if n <= n_max else 20.0 for n in GRID}), epsilons=(epsilon,))


def judged(truth: Truth, **answer: Any) -> dict[str, Any]:
    """Return the score of one answer."""
    return score(truth, make_answers(answer), ["principle"]).row(0, named=True)


@pytest.mark.parametrize(
    ("n_max", "predicted", "hit", "within_1_31", "within_2", "error"),
    [
        (8, 8.0, True, True, True, 0.0),
        (8, 15.999, True, True, True, 0.0),
        (8, 7.999, False, True, True, -0.0002),
        (8, 16.0, False, True, True, 0.0),
        (8, 8 / 1.32, False, False, True, -0.4005),
        (8, 16 * 1.30, False, True, True, 0.3785),
        (8, 4.0, False, False, True, -1.0),
        (8, 3.999, False, False, False, -1.0004),
        (8, 32.0, False, False, False, 1.0),
        (8, INF, False, False, False, INF),
        (32, 32.0, True, True, True, 0.0),
        (32, 1e9, True, True, True, 0.0),
        (32, INF, True, True, True, 0.0),
        (32, 16.0, False, False, True, -1.0),
        (1, 0.5, False, False, True, -1.0),
    ],
)
def test_what_a_hit_is(
    n_max: int,
    predicted: float,
    error: float,
    *,
    hit: bool,
    within_1_31: bool,
    within_2: bool,
) -> None:
    """A hit lies in [N_max, next N), unbounded at the grid's end; factors widen both ends."""
    row = judged(known(n_max), n_max=predicted)
    assert (row["hit"], row["within_1_31"], row["within_2"]) == (hit, within_1_31, within_2)
    assert row["log2_error"] == pytest.approx(error, abs=1e-4)
    assert row["hit_first_exit"] == hit


@pytest.mark.slow
@given(st.floats(1.0, 1000.0))
@settings(deadline=None)
def test_each_prediction_hits_one_boundary(predicted: float) -> None:
    """Any prediction hits exactly one N_max of the grid."""
    hit = [n for n in GRID if judged(known(n), n_max=predicted)["hit"]]
    assert hit == [max(n for n in GRID if n <= predicted)]


@given(st.floats(0.1, 1000.0), st.sampled_from(GRID))
def test_the_factors_are_distances_to_the_interval(predicted: float, n_max: int) -> None:
    """A hit has error 0; within a factor of two means at most one doubling."""
    row = judged(known(n_max), n_max=predicted)
    assert not row["hit"] or row["log2_error"] == 0
    assert row["within_2"] == (-1 <= row["log2_error"] < 1)


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_refusal_is_a_miss(value: float | None) -> None:
    """A refusal is a miss by every measure, without error or interval."""
    row = judged(known(32), n_max=value, low=1.0, high=64.0)
    assert not any(row[name] for name in ("answered", "hit", "within_1_31", "within_2"))
    assert (row["log2_error"], row["covered"], row["width"]) == (None, None, None)


def test_an_unanswered_question_is_a_miss() -> None:
    """Each unanswered question is a miss."""
    truth = make_truth(*[({}, {1: 1.0, 2: 5.0})] * 3)
    score_rows = score(truth, make_answers({"n_max": 1.0}), ["principle", "idle_compute"])
    assert score_rows.height == 6
    assert score_rows.filter("answered").select("curve", "predictor").rows() == [(0, "principle")]
    assert score_rows["hit"].sum() == 1


def test_an_undecided_boundary_is_a_miss() -> None:
    """An undecided boundary is a miss for any prediction."""
    sure = known(8)
    columns = sure.boundaries.with_columns(pl.lit(value=True).alias("undecided"))
    vague = Truth(
        settings=sure.settings, boundaries=columns, ratios=sure.ratios, excluded=sure.excluded
    )
    row = judged(vague, n_max=8.0, low=4.0, high=16.0)
    assert row["answered"]
    assert not any(row[name] for name in ("hit", "hit_first_exit", "within_1_31", "within_2"))
    assert (row["log2_error"], row["covered"]) == (None, None)
    assert groups(score(vague, make_answers({}), ["principle"]), [])[0]["undecided"] == 1


def test_the_first_exit_is_scored_beside_the_last_pass() -> None:
    """If a curve exits and returns, both boundaries are scored."""
    times = dict.fromkeys(GRID, 10.0) | {4: 20.0, 32: 20.0}
    truth = make_truth(({}, times))
    assert [judged(truth, n_max=n)["hit"] for n in (2.0, 16.0)] == [False, True]
    assert [judged(truth, n_max=n)["hit_first_exit"] for n in (2.0, 16.0)] == [True, False]


@pytest.mark.parametrize(
    ("n_max", "low", "high", "covered"),
    [
        (8, 8.0, 15.0, True),
        (8, 4.0, 8.0, True),
        (8, 4.0, 7.9, False),
        (8, 15.9, 64.0, True),
        (8, 16.0, 64.0, False),
        (32, 100.0, INF, True),
        (8, None, None, None),
    ],
)
def test_coverage(n_max: int, low: float | None, high: float | None, *, covered: bool) -> None:
    """An interval covers a boundary if it meets [N_max, next N)."""
    row = judged(known(n_max), n_max=8.0, low=low, high=high)
    assert row["covered"] is covered
    assert row["width"] == (None if low is None or high is None else high / low)


def test_the_error_of_t_of_n() -> None:
    """T(N) is compared above the baseline and up to 4 N_max."""
    truth = make_truth(({}, {1: 10.0, 2: 10.0, 4: 11.0, 8: 20.0, 16: 20.0, 32: 20.0}))
    assert truth.boundaries["n_max"].to_list() == [4]
    rows = {1: 9.0, 2: 1.0, 4: 1.1, 8: 2.2, 16: 2.6, 32: 99.0}
    predicted = pl.DataFrame({"n": list(rows), "ratio": list(rows.values())}).select(
        pl.lit("principle").alias("predictor"), pl.lit(0).alias("asked").cast(pl.Int64), "n",
        "ratio",
    )  # fmt: skip
    (score_rows,) = score(truth, make_answers({"n_max": 4.0}), ["principle"], predicted).to_dicts()
    assert score_rows["t_ratio_error"] == pytest.approx((0 + 0.1) / 2)


TRUTH = make_truth(
    ({}, {1: 1.0, 2: 1.0, 4: 5.0}),
    ({}, {1: 1.0, 2: 1.0, 4: 5.0}),
    ({"platform": "a100"}, {1: 1.0, 2: 1.0, 4: 5.0}),
    epsilons=(0.1, 0.2),
)
ANSWERS = make_answers(
    {"asked": 0, "epsilon": 0.1, "n_max": 2.0, "low": 1.0, "high": 4.0},
    {"asked": 0, "n_max": 8.0, "low": 4.0, "high": 16.0, "in_sample": True},
    {"asked": 1, "n_max": 5.0},
    {"asked": 2, "n_max": 2.0},
)
SCORES = score(TRUTH, ANSWERS, ["principle"])


def test_groups_count_every_setting() -> None:
    """Shares are of all settings; columns that are not grouped by are null."""
    (group,) = groups(SCORES.filter(pl.col("epsilon") == 0.2), ["predictor"])
    assert group == {
        **dict.fromkeys(GROUP_KEYS), "predictor": "principle", "epsilon": 0.2,
        "settings": 3, "answered": 3, "refused": 0, "undecided": 0, "hits": 1,
        "hit_share": pytest.approx(1 / 3), "hits_first_exit": 1,
        "within_1_31": pytest.approx(2 / 3), "within_2": pytest.approx(2 / 3),
        "median_abs_log2": pytest.approx(0.3219, abs=1e-4), "t_ratio_error": None,
        "intervals": 1, "interval_coverage": 0.0, "interval_width": 4.0,
    }  # fmt: skip
    refused = groups(SCORES.filter(pl.col("epsilon") == 0.1), ["platform"])
    assert [(g["platform"], g["settings"], g["answered"], g["hit_share"]) for g in refused] == [
        ("a100", 1, 0, 0.0),
        ("h20", 2, 1, 0.5),
    ]
    assert refused[0]["median_abs_log2"] is None


@pytest.mark.parametrize("by", [[], ["epsilon"], ["platform", "in_sample"], ["routing", "dtype"]])
def test_groups_add_up(by: list[str]) -> None:
    """In any grouping each setting is counted once."""
    group_rows = groups(SCORES, by)
    for count in ("settings", "answered", "refused", "hits", "intervals"):
        pooled = groups(SCORES, [])[0]
        assert sum(int(str(group[count])) for group in group_rows) == pooled[count]
    for group in group_rows:
        assert {*GROUP_KEYS, "epsilon", *by} <= set(group)
        assert all(group[key] is None for key in GROUP_KEYS if key not in by)


def test_pooled_tolerances_have_no_tolerance() -> None:
    """A group over several tolerances has none itself."""
    (pooled,) = groups(SCORES, ["predictor"])
    assert (pooled["epsilon"], pooled["settings"]) == (None, 6)
