"""The smallest term: its value, its names and its margin."""

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
def test_the_smallest_term_is_the_minimum(terms_by_name: dict[str, float]) -> None:
    """Equal terms are all named; the margin is the next larger term over the smallest."""
    smallest, ordered = smallest_term(terms_by_name), sorted(terms_by_name.values())
    assert smallest.value == ordered[0]
    assert smallest.names == tuple(
        name for name in terms_by_name if terms_by_name[name] == ordered[0]
    )
    if len(ordered) > 1 and math.isfinite(ordered[0]):
        assert smallest.margin == ordered[1] / ordered[0]
    else:
        assert smallest.margin is None


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
    smallest = smallest_term(principle_terms(ffn, balance, None, None, 64))
    assert (round(smallest.value), smallest.names[0]) == (expected, name)
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
    smallest = smallest_term(principle_terms(ffn, None, 16, 256, 64))
    assert (smallest.value, smallest.names[0]) == (expected, name)


def test_a_whole_model_has_no_work_of_its_own() -> None:
    """The work of a whole model is that of its modules: there is none to count for it."""
    ffn = ffn_setting(dtype="bfloat16", batch=1, experts=None, top_k=None, routing=None, d_ff=1)
    with pytest.raises(EvidenceError, match="that of its modules"):
        MODEL.executed(ffn, 1, "")
