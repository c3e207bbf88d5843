"""The inverse question, whether K positions are near-free, agrees with N_max."""

import numpy as np
import pytest
from decoders.files import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.surface import BEYOND, DIP, NEAR_FREE, cost_of_positions
from nearfree.derive.predict.forecast.total import SUM

from derive.predict.forecast.pool import EPSILONS, GRID, NO_PHI, POOL, deployment, forecast_of, pool

COUNT = len(POOL)


@pytest.mark.slow
@given(st.sampled_from(GRID), st.sampled_from(EPSILONS))
@settings(deadline=None, max_examples=40)
def test_near_free_is_within_the_tolerance(positions: int, epsilon: float) -> None:
    """K positions are near-free if and only if T(K) / T(1) <= 1 + epsilon."""
    rows = cost_of_positions(pool(), positions, epsilon)
    assert rows["deployment"].to_list() == list(range(COUNT))
    for row in rows.to_dicts():
        curve = pool().curve(row["deployment"])
        ratio = curve.filter(n=positions)["ratio"].item()
        assert row["ratio"] == pytest.approx(ratio)
        assert (row["verdict"] == NEAR_FREE) == (ratio <= 1 + epsilon)
        assert row["low"] <= row["ratio"] <= row["high"]
        assert (row["positions"], row["baseline"], row["refusal"]) == (positions, 1, None)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_both_ways_agree(epsilon: float) -> None:
    """The largest near-free K is N_max, and other K are below or above it."""
    forward = pool().answers.filter(composition=SUM, epsilon=epsilon, baseline=1)
    n_max = forward.sort("deployment")["n_max"].to_list()
    largest = [0] * COUNT
    for positions in GRID:
        for place, row in enumerate(cost_of_positions(pool(), positions, epsilon).to_dicts()):
            assert row["n_max"] == n_max[place]
            if row["verdict"] == NEAR_FREE:
                largest[place] = positions
            else:
                assert row["verdict"] == (DIP if positions < n_max[place] else BEYOND)
    assert largest == n_max


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_one_position_is_near_free(epsilon: float) -> None:
    """K = 1 is always near-free, with a ratio of exactly 1."""
    rows = cost_of_positions(pool(), 1, epsilon)
    assert rows["verdict"].unique().to_list() == [NEAR_FREE]
    for name in ("ratio", "low", "high"):
        assert rows[name].to_list() == [1.0] * COUNT


def with_times(*times: float) -> Forecast:
    """Return a forecast with the given T(N)."""
    answer = forecast_of(deployment(), grid=range(1, len(times) + 1))
    zero_us = np.zeros_like(answer.total.latency_us)
    zero_us[0, 0] = times
    return Forecast(
        deployments=answer.deployments,
        total=replace(answer.total, latency_us=zero_us),
        answers=answer.answers,
    )


def test_a_step_below_n_max_is_told_apart() -> None:
    """A K above the tolerance but below N_max has its own verdict."""
    answer = with_times(1.0, 1.3, 1.1, 1.4)
    verdicts = [
        cost_of_positions(answer, positions, 0.2)["verdict"].item() for positions in range(1, 5)
    ]
    assert verdicts == [NEAR_FREE, DIP, NEAR_FREE, BEYOND]


def test_an_n_max_at_the_end_of_the_grid_is_censored() -> None:
    """An N_max at the grid's end is a lower bound."""
    for times, censored in (((1.0, 1.1, 1.2), True), ((1.0, 1.1, 1.3), False)):
        assert cost_of_positions(with_times(*times), 2, 0.2)["censored"].to_list() == [censored]


def test_what_is_not_known_has_its_reason() -> None:
    """Without T(N) there is a reason and no verdict."""
    unknown = deployment(platform="cpu")
    for stop, place in ((forecast_of(deployment(), unknown), 1), (forecast_of(unknown), 0)):
        row = cost_of_positions(stop, 4, 0.2).row(place, named=True)
        assert row["refusal"] == NO_PHI
        assert row["ratio"] is row["n_max"] is row["verdict"] is row["low"] is None
        assert row["censored"] is None
        assert cost_of_positions(stop, 4, 0.2)["refusal"].null_count() == place


@pytest.mark.parametrize("positions", [0, 97, 10**9])
def test_a_k_off_the_grid_is_refused(positions: int) -> None:
    """A K that is not in the grid is refused."""
    error = refusal(lambda: cost_of_positions(pool(), positions, 0.2))
    assert error is not None
    assert str(positions) in error.what
    assert "1 to 96" in error.what
