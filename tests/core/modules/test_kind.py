"""The smallest term: what it is, what it is called, how far the next one is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules import moe_ffn
from nearfree.core.modules.attention import M_ATTN
from nearfree.core.modules.dense_ffn import IDLE
from nearfree.core.modules.kind import smallest_term
from nearfree.core.modules.model import MODEL, ffn_setting, idle_compute, principle_terms
from nearfree.core.routing_names import Controlled
from nearfree.errors import EvidenceError

terms = st.one_of(st.floats(0.1, 1e6), st.just(math.inf))


@given(st.dictionaries(st.sampled_from("abc"), terms, min_size=1))
def test_it_is_the_minimum_of_the_terms(given: dict[str, float]) -> None:
    """Of equal ones the first names it; the margin is the next one over the smallest."""
    found, ordered = smallest_term(given), sorted(given.values())
    assert found.value == ordered[0]
    assert found.names == tuple(name for name in given if given[name] == ordered[0])
    if len(ordered) > 1 and math.isfinite(ordered[0]):
        assert found.margin == ordered[1] / ordered[0]
    else:
        assert found.margin is None


@pytest.mark.parametrize(
    ("balance", "batch", "expected", "name"),
    [
        (37.0, 1, 37, IDLE),
        (37.0, 4, 9, IDLE),
        (153.0, 1, 64, M_ATTN),
        (295.2, 1, 64, M_ATTN),
        (295.2, 8, 37, IDLE),
    ],
)
def test_dense_models_of_the_deployment_table(
    balance: float, batch: int, expected: int, name: str
) -> None:
    """min(rho s / 2b, M_attn) is what tab:practical_lookup prints (paper, sec. 4.1)."""
    ffn = ffn_setting(dtype="bfloat16", batch=batch, experts=None, top_k=None, routing=None, d_ff=1)
    found = smallest_term(principle_terms(ffn, balance, None, None, 64))
    assert (round(found.value), found.names[0]) == (expected, name)
    assert idle_compute(ffn, balance) == balance / batch


@pytest.mark.parametrize(
    ("routing", "top_k", "expected", "name"),
    [
        ("balanced", 8, 64, M_ATTN),
        ("balanced", 32, 64, M_ATTN),
        ("balanced", 64, 64, moe_ffn.SLACK),
        ("skewed", 8, 16, moe_ffn.SKEWED_SLACK),
    ],
)
def test_moe_models_of_the_deployment_table(
    routing: Controlled, top_k: int, expected: int, name: str
) -> None:
    """min(M_moe E / k, tau, M_attn), or min(M_moe, M_attn) if skewed (paper, sec. 4.2)."""
    ffn = ffn_setting(
        dtype="bfloat16", batch=1, experts=256, top_k=top_k, routing=routing, d_ff=512
    )
    found = smallest_term(principle_terms(ffn, None, 16, 256, 64))
    assert (found.value, found.names[0]) == (expected, name)


def test_the_work_of_a_model_is_that_of_its_modules() -> None:
    """A whole model has no work of its own to count."""
    ffn = ffn_setting(dtype="bfloat16", batch=1, experts=None, top_k=None, routing=None, d_ff=1)
    with pytest.raises(EvidenceError, match="that of its modules"):
        MODEL.executed(ffn, 1, "")
