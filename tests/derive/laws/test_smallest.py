"""The smallest term: what it is, what it is called, how far the next one is."""

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.laws import attention, dense, moe
from nearfree.derive.laws.smallest import smallest

terms = st.one_of(st.none(), st.floats(0.1, 1e6), st.just(math.inf))
ONE = pl.DataFrame({"row": [0]})


@given(st.lists(st.tuples(terms, terms, terms), min_size=1, max_size=5))
def test_it_is_the_minimum_of_the_terms_that_apply(rows: list[tuple[float | None, ...]]) -> None:
    """Null terms do not take part; the margin is the next one over the smallest."""
    frame = pl.DataFrame(rows, schema=dict.fromkeys("abc", pl.Float64), orient="row")
    found = smallest(frame, {name: pl.col(name) for name in "abc"}).to_dicts()
    for row, said in zip(rows, found, strict=True):
        there = sorted(each for each in row if each is not None)
        assert said["n_max"] == (there[0] if there else None)
        name = "abc"[row.index(there[0])] if there else None
        assert said["limiting_term"] == name
        if len(there) > 1 and math.isfinite(there[0]):
            assert said["margin"] == pytest.approx(there[1] / there[0])
        else:
            assert said["margin"] is None


@pytest.mark.parametrize(
    ("balance", "batch", "expected", "name"),
    [
        (37.0, 1, 37, "dense"),
        (37.0, 4, 9, "dense"),
        (153.0, 1, 64, "M_attn"),
        (295.2, 1, 64, "M_attn"),
        (295.2, 8, 37, "dense"),
    ],
)
def test_dense_models_of_the_deployment_table(
    balance: float, batch: int, expected: int, name: str
) -> None:
    """min(rho s / 2b, M_attn) is what tab:practical_lookup prints (paper, sec. 4.1)."""
    n_dense = pl.lit(dense.principle(balance, batch, 2))
    found = smallest(ONE, {"dense": n_dense, attention.M_ATTN: pl.lit(64)}).row(0, named=True)
    assert (round(found["n_max"]), found["limiting_term"]) == (expected, name)


@pytest.mark.parametrize(
    ("routing", "top_k", "expected", "name"),
    [
        ("balanced", 8, 64, "M_attn"),
        ("balanced", 32, 64, "M_attn"),
        ("balanced", 64, 64, moe.SLACK),
        ("skewed", 8, 16, moe.SKEWED_SLACK),
    ],
)
def test_moe_models_of_the_deployment_table(
    routing: str, top_k: int, expected: int, name: str
) -> None:
    """min(M_moe E / k, tau, M_attn), or min(M_moe, M_attn) if skewed (paper, sec. 4.2)."""
    numbers = {"m_moe": 16, "tau": 256, "experts": 256, "top_k": top_k, "batch": 1}
    slack = moe.slack_terms(
        routing=pl.lit(routing), **{key: pl.lit(each) for key, each in numbers.items()}
    )
    found = smallest(ONE, {**slack, attention.M_ATTN: pl.lit(64)}).row(0, named=True)
    assert (found["n_max"], found["limiting_term"]) == (expected, name)
