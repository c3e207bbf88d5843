"""How tokens fall on experts: the baseline, and the experts that any token reaches."""

from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.routing import active_experts, first_full


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 300))
def test_the_baseline_is_the_first_full_n(experts: int, batch: int, top_k: int) -> None:
    """Balanced: the baseline is the smallest N at which every expert has a token; else 1."""
    top_k = min(top_k, experts)
    first = first_full("balanced", experts, top_k, batch)
    assert first * batch * top_k >= experts > (first - 1) * batch * top_k
    assert first_full("skewed", experts, top_k, batch) == 1
    assert first_full(None, None, None, batch) == 1


@given(st.integers(1, 300), st.integers(1, 300))
def test_active_experts_follow_the_routing(experts: int, top_k: int) -> None:
    """All if balanced, k if skewed."""
    assert active_experts("balanced", experts, top_k) == experts
    assert active_experts("skewed", experts, top_k) == top_k
