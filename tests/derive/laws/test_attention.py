"""Idle compute of attention: the paper's two branches, and query heads that share keys."""

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.laws.attention import idle_compute

balances = st.floats(0.1, 2000.0)
contexts = st.integers(1, 1 << 20)


def n_idle(balance: float, element_bytes: int, context: int, group: Any = 1) -> float:
    """Return N_idle of numbers."""
    formula = idle_compute(pl.lit(balance), pl.lit(element_bytes), pl.lit(context), group)
    return float(pl.select(formula.alias("n")).item())


@pytest.mark.parametrize(
    ("context", "expected"), [(37, math.inf), (38, 37 * 38.0), (74, 74.0), (1 << 20, 37.0)]
)
def test_both_branches_of_the_paper(context: int, expected: float) -> None:
    """On H20: unbounded up to L = rho s / 2 = 37, then falling towards rho s / 2."""
    assert n_idle(37.0, 2, context) == pytest.approx(expected, rel=1e-3)


@given(balances, contexts, st.integers(1, 64))
def test_intensity_meets_the_balance_point_or_never_does(
    balance: float, context: int, group: int
) -> None:
    """With g query heads to a key-value head FLOPs grow g-fold, and bytes do not."""
    n = n_idle(balance, 2, context, group)

    def intensity(n: float) -> float:
        return 4 * group * n * context / (2 * (context + n) * 2)

    if math.isfinite(n):
        assert intensity(n) == pytest.approx(balance, rel=1e-6)
    else:
        assert intensity(1e15) <= balance * (1 + 1e-6)


@given(balances, contexts)
def test_one_head_a_key_value_head_is_the_papers(balance: float, context: int) -> None:
    """With g = 1 the extension is the paper's formula."""
    expected = (
        2 * balance * context / (2 * context - 2 * balance) if context > balance else math.inf
    )
    assert n_idle(balance, 2, context, pl.lit(1)) == pytest.approx(expected, rel=1e-6)
