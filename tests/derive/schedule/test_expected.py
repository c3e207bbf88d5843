"""Draft lengths by expected tokens per second."""

import math
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.schedule.expected import (
    best_choice,
    independent_acceptance,
    measured_acceptance,
    speedups,
)
from nearfree.errors import ConfigError

RATES = st.floats(0, 1)
CURVES = st.dictionaries(
    st.integers(2, 40), st.floats(0.5, 20), min_size=1, max_size=20
).map(lambda curve: {1: 1.0, **curve})  # fmt: skip
FLAT = dict.fromkeys(range(1, 34), 1.0)


def best_lengths(curves: Any, accepted: Any, *, draft_cost: Any) -> dict[int, Any]:
    """Return the best K and its speedup by batch size."""
    speedup_curves = speedups(curves, accepted, draft_cost=draft_cost)
    return {batch: best_choice(speeds) for batch, speeds in speedup_curves.items()}


def fraction(value: float) -> Fraction:
    """Return a number as an exact fraction."""
    return Fraction(value)


@given(RATES, st.integers(1, 64))
def test_an_independent_rate_is_the_geometric_sum(rate: float, most: int) -> None:
    """Expected tokens are (1 - p^(K+1)) / (1 - p), equation 1 of arXiv 2211.17192."""
    for k, tokens in enumerate(accumulate(independent_acceptance(rate, most=most), initial=1.0)):
        p = fraction(rate)
        exact = (1 - p ** (k + 1)) / (1 - p) if p != 1 else Fraction(k + 1)
        assert tokens == pytest.approx(float(exact), rel=1e-9)


@given(CURVES, st.lists(RATES, min_size=40, max_size=40), st.floats(0, 2))
def test_the_best_length_is_that_of_trying_all(
    curve: dict[int, float], conditional: list[float], cost: float
) -> None:
    """No other K has more expected tokens per second, in exact fractions."""
    accepted = tuple(accumulate(conditional, lambda before, p: before * p))
    lengths = best_lengths({4: curve}, accepted, draft_cost=cost)[4]
    speedups = {
        n - 1: (1 + sum(map(fraction, accepted[: n - 1])))
        / (fraction(curve[n]) + (n - 1) * fraction(cost))
        for n in sorted(curve)
    }
    assert lengths.k in speedups
    assert float(max(speedups.values())) == pytest.approx(lengths.speedup, rel=1e-9)
    assert float(speedups[lengths.k]) == pytest.approx(lengths.speedup, rel=1e-9)


def test_no_acceptance_means_no_draft() -> None:
    """At p = 0 no draft is made, even if drafting is free."""
    assert best_lengths({1: FLAT}, independent_acceptance(0, most=32), draft_cost=0)[1] == (0, 1.0)


def test_full_acceptance_of_free_drafts_takes_all() -> None:
    """At p = 1 and constant T(N) the longest draft is best, K + 1 times as fast."""
    assert best_lengths({1: FLAT}, independent_acceptance(1, most=32), draft_cost=0)[1] == (
        32,
        33.0,
    )


def test_full_acceptance_stops_at_the_stair() -> None:
    """At p = 1 twice the latency is worth it only for more than twice the tokens."""
    curve = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 2.0, 6: 2.0, 7: 2.0, 8: 2.0}
    assert best_lengths({1: curve}, independent_acceptance(1, most=7), draft_cost=0)[1] == (3, 4.0)


def test_of_equal_lengths_the_smallest_is_taken() -> None:
    """If each token costs what it gains, K is 0."""
    curve = {3: 3.0, 2: 2.0, 1: 1.0, 4: 4.0}
    assert best_lengths({1: curve}, independent_acceptance(1, most=8), draft_cost=0)[1] == (0, 1.0)


def test_a_costly_drafter_shortens_the_draft() -> None:
    """With drafting costs of 1/4 per token, p = 0.8 and constant T, K is 3, not 8."""
    speedups = [(1 - 0.8 ** (k + 1)) / 0.2 / (1 + k / 4) for k in range(9)]
    lengths = best_lengths({1: FLAT}, independent_acceptance(0.8, most=8), draft_cost=0.25)[1]
    assert (lengths.k, lengths.speedup) == (3, pytest.approx(max(speedups)))


def test_each_batch_has_its_own_length() -> None:
    """A curve that rises earlier has the smaller K; batch sizes are sorted."""
    curves = {8: {1: 1.0, 2: 1.4, 4: 2.8}, 1: {1: 1.0, 2: 1.0, 4: 1.1}}
    lengths = best_lengths(curves, measured_acceptance([0.8, 0.6, 0.5]), draft_cost=0)
    assert {batch: choice.k for batch, choice in lengths.items()} == {1: 3, 8: 1}
    assert list(lengths) == [1, 8]


@pytest.mark.parametrize(
    "rate", [-0.1, 1.1, math.nan, math.inf, True, "0.5", None, 10**400, [10**5000]]
)
def test_a_rate_is_refused(rate: Any) -> None:
    """A rate that is no probability is refused."""
    with pytest.raises(ConfigError, match="acceptance rate"):
        independent_acceptance(rate, most=4)


@pytest.mark.parametrize(
    ("accepted", "says"),
    [
        ([], "has 0 values"),
        ([0.5] * 5000, "has 5000 values"),
        ([0.5, 0.6], "value 2 of the acceptance curve rises"),
        ([0.9, math.nan], "value 2 of the acceptance curve is nan"),
        ([1.5], "value 1 of the acceptance curve is 1.5"),
        ([None], "value 1 of the acceptance curve is None"),
    ],
)
def test_an_acceptance_curve_is_refused(accepted: list[Any], says: str) -> None:
    """Shares of all rounds must not increase with K; those of rounds that get so far may."""
    with pytest.raises(ConfigError, match=says):
        measured_acceptance(accepted)


@pytest.mark.parametrize(
    ("curves", "cost", "says"),
    [
        ({1: {2: 1.0}}, 0, "does not begin with"),
        ({1: {1: 1.1, 2: 1.2}}, 0, "does not begin with"),
        ({1: {1: 1.0}}, 0, "no N from 2 to 3"),
        ({1: {1: 1.0, 9: 1.0}}, 0, "no N from 2 to 3"),
        ({1: {1: 1.0, 2: 0.0}}, 0, "for T\\(2\\)"),
        ({1: {1: 1.0, 2: math.nan}}, 0, "for T\\(2\\)"),
        ({1: {1: 1.0, 2: 10**400}}, 0, "for T\\(2\\)"),
        ({1: {1: 1.0, 2.0: 1.0}}, 0, "for N"),
        ({0: {1: 1.0, 2: 1.0}}, 0, "no batch size"),
        ({1: {1: 1.0, 2: 1.0}}, -1, "cost of a draft token is -1"),
        ({1: {1: 1.0, 2: 1.0}}, math.inf, "cost of a draft token is inf"),
        ({1: {1: 1.0, 2: 1.0}}, 10**400, "more than 30 digits"),
        ({1: {1: 1.0, 2: 1.0}}, None, "cost of a draft token is None"),
    ],
)
def test_curves_and_costs_are_refused(curves: dict[Any, Any], cost: Any, says: str) -> None:
    """A curve without its baseline, an invalid latency and an invalid cost are refused."""
    with pytest.raises(ConfigError, match=says):
        best_lengths(curves, (0.9, 0.8), draft_cost=cost)


def test_a_round_s_cost_stands_in_the_place_of_a_token_s() -> None:
    """Costs by batch size and K are used as given, at K = 0, too."""
    costs = {4: [0.1, 0.1, 0.2, 0.3]}
    lengths = best_lengths(
        {4: dict.fromkeys(range(1, 5), 1.0)}, independent_acceptance(0, most=3), draft_cost=costs
    )
    assert lengths[4] == (0, pytest.approx(1 / 1.1))
    dear = best_lengths(
        {4: {1: 1.0, 2: 1.0}}, independent_acceptance(0.5, most=1), draft_cost={4: [0.5, 0.5]}
    )
    assert dear[4] == (1, pytest.approx(1.5 / 1.5))


@pytest.mark.parametrize(("costs", "message"), [
    ({4: [0.0, 0.1]}, "what drafts at batch 4 cost is given up to 1 of 2 drafts"),
    ({}, "what drafts at batch 4 cost is given up to -1 of 2 drafts"),
    ({4: [0.0, -0.1, 0.2]}, "what drafts at batch 4 cost is -0.1"),
])  # fmt: skip
def test_costs_that_make_no_sense(costs: dict[int, list[float]], message: str) -> None:
    """A missing or negative cost of a compared K is refused."""
    with pytest.raises(ConfigError) as refused:
        best_lengths(
            {4: {1: 1.0, 2: 1.0, 3: 1.0}}, independent_acceptance(0.5, most=2), draft_cost=costs
        )
    assert message in refused.value.what
