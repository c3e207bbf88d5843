"""The formulas of an MoE layer: the paper's numbers, and what its extensions change."""

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.laws.moe import active_experts, idle_compute, slack_terms

counts = st.integers(1, 512)
balances = st.floats(0.1, 2000.0)
widths = st.integers(16, 16384)


def value(expression: pl.Expr) -> Any:
    """Return what an expression of numbers alone is."""
    return pl.select(expression.alias("value")).item()


def n_idle(**given: float) -> float:
    """Return N_idle of numbers."""
    return float(value(idle_compute(**{name: pl.lit(each) for name, each in given.items()})))


H20: dict[str, float] = {"balance": 37.0, "element_bytes": 2, "batch": 1, "d_ff": 512}


@pytest.mark.parametrize(("top_k", "expected"), [(8, 1453), (32, 362), (64, 181)])
def test_balanced_as_in_the_deployment_table(top_k: int, expected: int) -> None:
    """H20, 256 experts of width 512: what tab:practical_lookup prints."""
    found = n_idle(**H20, active_experts=256, top_k=top_k)
    assert round(found) == expected


@pytest.mark.parametrize("top_k", [8, 16, 32, 64])
def test_skewed_as_in_the_deployment_table(top_k: int) -> None:
    """Skewed, it prints 45 whatever k is."""
    assert n_idle(**H20, active_experts=top_k, top_k=top_k) == pytest.approx(45, abs=0.5)


@given(st.tuples(counts, counts, counts), widths, balances, st.sampled_from([2, 3]))
def test_intensity_meets_the_balance_point_or_never_does(
    sizes: tuple[int, int, int], d_ff: int, balance: float, matrices: int
) -> None:
    """At N_idle FLOPs over bytes are rho; unbounded, they stay below it for any N."""
    batch, experts, top_k = sizes
    given = {"batch": batch, "top_k": top_k, "d_ff": d_ff, "balance": balance}
    n = n_idle(**given, element_bytes=2, active_experts=experts, matrices=matrices)

    def intensity(n: float) -> float:
        flop = 2 * matrices * batch * n * top_k * d_ff
        weights = matrices * experts * d_ff
        return flop / (2 * (weights + batch * n * (1 + 3 * top_k + 2 * top_k)))

    if math.isfinite(n):
        assert n > 0
        assert intensity(n) == pytest.approx(balance, rel=1e-6)
    else:
        assert intensity(1e15) <= balance * (1 + 1e-9)


def test_the_edge_of_the_unbounded_branch() -> None:
    """Where 4 k d_ff equals rho s (1 + 3 k + eta k) there is no boundary; just above, there is."""
    edge = {"element_bytes": 1, "batch": 1, "active_experts": 8, "top_k": 1, "d_ff": 6}
    assert n_idle(**edge, balance=4.0) == math.inf
    assert math.isfinite(n_idle(**edge, balance=3.999))


@given(counts, counts)
def test_active_experts_follow_the_routing(experts: int, top_k: int) -> None:
    """All if balanced, k if skewed, and no number for another routing."""
    found = [
        value(active_experts(pl.lit(routing), pl.lit(experts), pl.lit(top_k)))
        for routing in ("balanced", "skewed", "power_law")
    ]
    assert found == [experts, top_k, None]


@given(counts, counts, counts, counts, counts)
def test_the_terms_are_those_of_the_law(
    m_moe: int, tau: int, experts: int, top_k: int, batch: int
) -> None:
    """Balanced: M_moe E / (b k) and tau / b; skewed: M_moe / b and tau / b; else none."""
    numbers = {"m_moe": m_moe, "tau": tau, "experts": experts, "top_k": top_k, "batch": batch}
    literals = {name: pl.lit(each) for name, each in numbers.items()}
    found = {
        routing: [value(term) for term in slack_terms(routing=pl.lit(routing), **literals).values()]
        for routing in ("balanced", "skewed", "power_law")
    }
    slack = pytest.approx(m_moe * experts / (batch * top_k))
    assert found["balanced"] == [slack, None, pytest.approx(tau / batch)]
    assert found["skewed"] == [None, pytest.approx(m_moe / batch), pytest.approx(tau / batch)]
    assert found["power_law"] == [None, None, None]
