"""N_max of rising curves by definition, and the limiter of a model's boundary."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.derive.predict.forecast.exits import exits, module_exits, total_exits
from nearfree.derive.predict.forecast.total import MINIMUM, SUM

from derive.predict.forecast.pool import (
    EPSILONS,
    GRID,
    NO_PHI,
    POOL,
    SPARSE,
    deployment,
    forecast_of,
    pool,
)

STAIRS = st.lists(st.floats(0.4, 3.0), min_size=1, max_size=12)
PLACES = range(len(POOL))
ONES = [1] * len(PLACES)


def last_pass(values: list[float], baseline: int, epsilon: float) -> int:
    """Return the last index within a tolerance, at or after the baseline's."""
    return max([baseline, *(
        place for place in range(baseline + 1, len(values)) if values[place] <= 1 + epsilon
    )])  # fmt: skip


@given(st.lists(STAIRS, min_size=1, max_size=4), st.sampled_from(EPSILONS), st.data())
@settings(deadline=None)
def test_exits_are_those_of_the_definition(
    stairs: list[list[float]], epsilon: float, data: st.DataObject
) -> None:
    """Last pass, its interval, and the next N equal those of each curve alone."""
    width = min(len(stair) for stair in stairs)
    ratio = np.array([stair[:width] for stair in stairs])
    factors = st.lists(st.floats(1.0, 1.5), min_size=width, max_size=width)
    moved = np.array([data.draw(factors) for _ in stairs])
    baseline = [data.draw(st.integers(0, width - 1)) for _ in stairs]
    exit_rows = exits(ratio, ratio / moved, ratio * moved, np.array(baseline), epsilon)
    for row, begin in enumerate(baseline):
        last, slow, fast = (
            last_pass(values[row].tolist(), begin, epsilon)
            for values in (ratio, ratio * moved, ratio / moved)
        )
        assert exit_rows.last[row] == last
        assert (exit_rows.low[row], exit_rows.high[row]) == (slow, fast)
        assert slow <= last <= fast
        assert bool(exit_rows.censored[row]) == (last == width - 1)
        assert exit_rows.after[row] == min(last + 1, width - 1)
        assert exit_rows.censored[row] or ratio[row, exit_rows.after[row]] > 1 + epsilon


def test_the_boundary_is_that_of_the_curve() -> None:
    """N_max of the sum is the last N of the curve within the tolerance."""
    for epsilon in EPSILONS:
        answers = total_exits(pool().total, ONES, [epsilon], SUM).sort("deployment")
        for place, n_max in zip(PLACES, answers["n_max"], strict=True):
            ratio = pool().curve(place)["ratio"].to_list()
            assert n_max == GRID[last_pass(ratio, 0, epsilon)]


def test_what_limits_has_grown_most() -> None:
    """The limiter of the sum is the module that grew most from N = 1 to the exit."""
    answers = pool().answers.filter(composition=SUM, epsilon=0.2, baseline=1)
    stopped = answers.filter(~pl.col("censored"))
    assert stopped.height > 10
    for row in stopped.to_dicts():
        place, after = row["deployment"], int(row["n_max"])
        grown = pool().total.latency_us[place, :, after] - pool().total.latency_us[place, :, 0]
        assert row["limiting_module"] == pool().total.roles[place][int(grown.argmax())]
        ratio = pool().total.model_us[place, after] / pool().total.model_us[place, 0]
        assert row["margin"] == pytest.approx(ratio / 1.2)
        assert row["margin"] > 1


def test_the_minimum_is_that_of_its_modules() -> None:
    """The minimum is the least N_max of a module alone, which is the limiter."""
    answers = pool().answers.filter(composition=MINIMUM, predictor="work_model", baseline=1)
    for row in answers.filter(epsilon=0.2).to_dicts():
        alone = module_exits(pool().total, row["deployment"], 0.2).to_dicts()
        assert row["n_max"] == min(module_stairs["n_max"] for module_stairs in alone)
        least = [module_stairs for module_stairs in alone if module_stairs["n_max"] == row["n_max"]]
        if row["limiting_module"] is not None:
            assert row["limiting_module"] == least[0]["limiting_module"]
            assert row["limiting_term"] == least[0]["limiting_term"]


def test_modules_alone_are_in_the_order_of_the_forward() -> None:
    """Every module has its own boundary, in the order in which it runs."""
    for place in PLACES:
        alone = module_exits(pool().total, place, 0.2)
        roles = [use.role for use in POOL[place].uses()]
        assert alone["limiting_module"].to_list() == roles
        assert set(alone["n_max"]) <= set(GRID)


def test_where_the_grid_ends_first_nothing_limits() -> None:
    """If the last N is within the tolerance, the boundary is censored."""
    for row in pool().answers.filter(predictor="work_model").to_dicts():
        ends = row["n_max"] == GRID[-1]
        assert row["censored"] == ends
        assert (row["limiting_module"] is None) == ends
        assert (row["limiting_term"] is None) == ends
        assert (row["margin"] is None) == ends


def test_a_step_that_makes_most_of_the_rise_limits_though_a_smaller_one_crosses() -> None:
    """From 2 positions on FlashAttention 2 splits no keys over SMs; that limits, not a tile."""
    query = deployment(platform="rtx_4090", context=4096, served=True)
    answer = forecast_of(query).total
    (at,) = (place for place, role in answer.roles[0].items() if role == "attention")
    times = answer.latency_us[0, at]
    reach = 2 * (times[1] - times[0])
    grown = answer.latency_us.copy()
    grown[0] = grown[0, :, :1]
    grown[0, at] = times[0] + (times[1] - times[0]) * (answer.grid > 1)
    grown[0, at] += 0.2 * reach * (answer.grid > 16)
    epsilon = float(1.1 * (times[1] - times[0]) / grown[0, :, 0].sum())
    (row,) = total_exits(replace(answer, latency_us=grown), [1], [epsilon], SUM).to_dicts()
    assert row["n_max"] == 16
    assert "split over SMs for one position alone" in row["limiting_term"]
    grown[0, at] += reach * (answer.grid > 16)
    (row,) = total_exits(replace(answer, latency_us=grown), [1], [epsilon], SUM).to_dicts()
    assert row["n_max"] == 16
    assert "for one position alone" not in row["limiting_term"]


def test_what_lies_between_modules_has_a_term_of_its_own() -> None:
    """A boundary with a limiter has a reason, in every output."""
    query = deployment(served=True)
    answer = forecast_of(query).total
    (at,) = (place for place, role in answer.roles[0].items() if role == "between")
    grown = answer.latency_us.copy()
    grown[0, at] *= 1.0 + 50.0 * (answer.grid > 8)
    rows = total_exits(replace(answer, latency_us=grown), [1], [0.2], SUM)
    assert rows["n_max"].to_list() == [8.0]
    assert rows["limiting_module"].to_list() == ["between"]
    assert rows["limiting_term"].to_list() == ["more rows pass through the kernels between modules"]


def test_larger_tolerances_reach_further() -> None:
    """N_max does not decrease with the tolerance."""
    answers = pool().answers.filter(predictor="work_model").sort("epsilon")
    keys = ["deployment", "baseline", "composition"]
    assert answers.select((pl.col("n_max").diff().over(keys).fill_null(0) >= 0).all()).item()


def test_a_baseline_beyond_the_grid_is_refused() -> None:
    """Without a T(N) at the baseline the reason names the baseline."""
    many = deployment("ling_2_0_mini")
    assert many.full_baseline == 32
    answer = forecast_of(many, grid=range(1, 32))
    full = answer.answers.filter(baseline=32, predictor="work_model")
    assert full["refusal"].to_list() == ["the baseline N=32 is not on the grid"] * 2
    assert full["n_max"].null_count() == full["limiting_module"].null_count() == 2
    assert answer.answers.filter(baseline=1)["refusal"].null_count() == 5
    alone = forecast_of(many, grid=range(1, 33)).answers.filter(baseline=32, composition=SUM)
    assert alone.select("n_max", "censored").row(0) == (32.0, True)


def test_all_refused_is_a_row_each() -> None:
    """Each refused deployment has its reason at each tolerance."""
    answer = forecast_of(*(deployment(batch=b, platform="cpu") for b in (1, 2))).total
    rows = total_exits(answer, [1, 1], EPSILONS, SUM)
    assert rows.height == 2 * len(EPSILONS)
    assert rows["refusal"].unique().to_list() == [NO_PHI]
    assert rows["n_max"].null_count() == rows.height
    assert total_exits(answer, [1, 1], EPSILONS, MINIMUM).height == rows.height


def test_the_papers_baseline_is_the_first_n_with_every_expert() -> None:
    """The paper's baseline is ceil(E / (b k)) for balanced experts, else 1."""
    for model, experts, top_k in zip(SPARSE, (128, 256, 8), (8, 8, 2), strict=True):
        for batch in (1, 3, 8, 1000):
            full = deployment(model, batch=batch).full_baseline
            assert (full - 1) * batch * top_k < experts <= full * batch * top_k
            assert deployment(model, "skewed", batch=batch).full_baseline == 1
    assert deployment(batch=3).full_baseline == 1
