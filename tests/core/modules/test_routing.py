"""How tokens fall on experts: the baseline, the experts that any token reaches, power laws."""

import pytest
from conftest import make_setting
from hypothesis import example, given
from hypothesis import strategies as st
from nearfree.core.modules.routing import (
    active_experts,
    bounds,
    exponent_of,
    named_routing,
    power_law_pairs,
    routed_pairs,
    routing_baseline,
)
from nearfree.errors import ConfigError

QUANTILES = st.lists(st.floats(0.0, 0.999), min_size=1, max_size=40).map(sorted)
EXPONENTS = st.sampled_from([0.0, 0.5, 1.0, 1.01, 1.2, 3.0])


def collector_pairs(quantiles: list[float], top_k: int, tokens: int, exponent: float) -> list[int]:
    """Return the pairs of each expert as the collector assigns them, one after the other."""
    lowest, highest = bounds(len(quantiles), top_k, tokens)
    power = 1.0 - exponent
    loads = [
        lowest * (highest / lowest) ** u
        if power == 0.0
        else ((highest**power - lowest**power) * u + lowest**power) ** (1.0 / power)
        for u in quantiles
    ]
    counts = [round(load * tokens * top_k / sum(loads)) for load in loads]
    above = sum(max(count - tokens, 0) for count in counts)
    counts = [min(count, tokens) for count in counts]
    for _ in range(above):
        counts[counts.index(min(counts))] += 1
    while sum(counts) < tokens * top_k:
        counts[counts.index(min(counts))] += 1
    while sum(counts) > tokens * top_k:
        counts[counts.index(max(counts))] -= 1
    return counts


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 300))
def test_the_baseline_is_the_first_full_n(experts: int, batch: int, top_k: int) -> None:
    """Balanced: the baseline is the smallest N at which every expert has a token; else 1."""
    top_k = min(top_k, experts)
    baseline = routing_baseline("balanced", experts, top_k, batch)
    assert baseline * batch * top_k >= experts > (baseline - 1) * batch * top_k
    assert routing_baseline("skewed", experts, top_k, batch) == 1
    assert routing_baseline(None, None, None, batch) == 1
    assert routing_baseline("balanced", None, top_k, batch) == 1, "without experts"
    assert routing_baseline("balanced", experts, None, batch) == 1


@given(st.integers(1, 300), st.integers(1, 300))
def test_active_experts_follow_the_routing(experts: int, top_k: int) -> None:
    """All experts are active if balanced, k if skewed."""
    assert active_experts("balanced", experts, top_k) == experts
    assert active_experts("skewed", experts, top_k) == top_k


@given(QUANTILES, st.integers(1, 40), st.integers(1, 200), EXPONENTS)
@example([0.1, 0.2, 0.999], 2, 100, 1.2)
def test_power_law_pairs_are_the_collectors(
    quantiles: list[float], top_k: int, tokens: int, exponent: float
) -> None:
    """Pairs assigned at once equal those that the collector assigns one after the other."""
    top_k = min(top_k, len(quantiles))
    pairs = power_law_pairs(quantiles, top_k, tokens, exponent)
    assert sorted(pairs) == sorted(collector_pairs(quantiles, top_k, tokens, exponent))
    assert sum(pairs) == tokens * top_k
    assert max(pairs) <= tokens


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 100))
def test_a_steep_power_law_is_balanced(experts: int, top_k: int, tokens: int) -> None:
    """Padded drafts give 1 + K rows a step; drafts cut to edges give rows of their length."""
    setting = make_setting(
        module="moe_ffn", experts=experts, top_k=min(top_k, experts), routing="power_law:99"
    )
    pairs = routed_pairs(setting, max(tokens, 4 * experts))
    assert max(pairs) - min(pairs) <= max(1, max(pairs) // 10)


@pytest.mark.parametrize(
    ("text", "name", "exponent"),
    [
        ("power_law:1.20", "power_law:1.2", 1.2),
        ("power_law:0", "power_law:0", 0.0),
        ("power_law:10", "power_law:10", 10.0),
        ("power_law:01.0100", "power_law:1.01", 1.01),
        ("skewed", "skewed", None),
    ],
)
def test_a_routing_has_one_name(text: str, name: str, exponent: float | None) -> None:
    """However an exponent is written, its routing has one name, which gives the same exponent."""
    assert named_routing(text) == named_routing(name) == name
    assert exponent_of(name) == exponent


@pytest.mark.parametrize(
    "text",
    ["", "even", "router", "power_law", "power_law:", "power_law:-1", "power_law:nan",
     "power_law:1e3", "power_law:100", "power_law:1.23456", "loads:0123456789ab"],
)  # fmt: skip
def test_an_unknown_routing_is_refused(text: str) -> None:
    """A routing that is no bound and no power law is refused with the routings there are."""
    with pytest.raises(ConfigError, match="power_law:EXPONENT"):
        named_routing(text)
