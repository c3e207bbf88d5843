"""The laws of an MoE layer: the paper's numbers, and what the extensions change."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.kind import Granularity
from nearfree.core.modules.moe_ffn import (
    SKEWED_SLACK,
    SLACK,
    VALIDITY,
    idle_compute,
    principle_terms,
    printed_granularity,
)
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError

counts = st.integers(1, 512)
balances = st.floats(0.1, 2000.0)
widths = st.integers(16, 16384)


def layer(routing: str = "balanced", **fields: Any) -> Setting:
    """Return a layer of 16-bit elements; `fields` replace its defaults."""
    defaults = {"dtype": "bfloat16", "experts": 8, "top_k": 1, "d_ff": 512, "gated": False}
    return Setting(module="moe_ffn", backend="", routing=routing, **{**defaults, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(("top_k", "expected"), [(8, 1453), (32, 362), (64, 181)])
def test_balanced_n_idle_is_that_of_the_deployment_table(top_k: int, expected: int) -> None:
    """H20, 256 experts of width 512: what tab:practical_lookup prints."""
    assert round(idle_compute(layer(experts=256, top_k=top_k), 37.0)) == expected


@pytest.mark.parametrize("top_k", [8, 16, 32, 64])
def test_skewed_n_idle_is_that_of_the_deployment_table(top_k: int) -> None:
    """With skewed routing the table prints 45 for every k."""
    n_idle = idle_compute(layer("skewed", experts=256, top_k=top_k), 37.0)
    assert n_idle == pytest.approx(45, abs=0.5)


@given(st.tuples(counts, counts, counts), widths, balances, st.sampled_from([2, 3]))
def test_intensity_meets_the_balance_point_or_never_does(
    sizes: tuple[int, int, int], d_ff: int, balance: float, matrices: int
) -> None:
    """At N_idle FLOPs over bytes are rho; unbounded, they stay below it for any N."""
    batch, experts, top_k = sizes
    setting = layer(batch=batch, experts=experts, top_k=top_k, d_ff=d_ff, gated=matrices == 3)
    n = idle_compute(setting, balance)

    def intensity(n: float) -> float:
        flop = 2 * matrices * batch * n * top_k * d_ff
        weights = matrices * experts * d_ff
        return flop / (2 * (weights + batch * n * (1 + 3 * top_k + 2 * top_k)))

    if math.isfinite(n):
        assert n > 0
        assert intensity(n) == pytest.approx(balance, rel=1e-6)
    else:
        assert intensity(1e15) <= balance * (1 + 1e-9)


def test_the_paper_has_two_matrices() -> None:
    """The paper's form has two matrices, whatever the setting's gate."""
    ungated, gated, unspecified = (layer(gated=gate) for gate in (False, True, None))
    paper_n_idle = {
        idle_compute(setting, 37.0, extended=False) for setting in (ungated, gated, unspecified)
    }
    assert paper_n_idle == {idle_compute(ungated, 37.0)}
    assert idle_compute(gated, 37.0) == idle_compute(unspecified, 37.0) not in paper_n_idle


def test_n_idle_at_the_edge_of_the_unbounded_branch() -> None:
    """Where 4 k d_ff equals rho s (1 + 3 k + eta k) there is no boundary; just above, there is."""
    edge = layer(dtype="float8", d_ff=6)
    assert idle_compute(edge, 4.0) == math.inf
    assert math.isfinite(idle_compute(edge, 3.999))


@given(counts, counts, counts, counts, counts)
def test_the_terms_are_those_of_the_law(
    m_moe: int, tau: int, experts: int, top_k: int, batch: int
) -> None:
    """Balanced: M_moe E / (b k) and tau / b; skewed: M_moe / b and tau / b; the paper: b = 1."""
    sizes = {"experts": experts, "top_k": top_k}
    rows = Granularity(rows=m_moe, until=tau)
    balanced = principle_terms(layer(batch=batch, **sizes), 0.0, rows)
    assert balanced == {SLACK: m_moe * experts / (batch * top_k), VALIDITY: tau / batch}
    skewed = principle_terms(layer("skewed", batch=batch, **sizes), 0.0, rows)
    assert skewed == {SKEWED_SLACK: m_moe / batch, VALIDITY: tau / batch}
    for routing in ("balanced", "skewed"):
        paper = principle_terms(layer(routing, batch=batch, **sizes), 0.0, rows, extended=False)
        assert paper == principle_terms(layer(routing, **sizes), 0.0, rows)


def test_a_block_without_a_limit_has_no_term_of_validity() -> None:
    """Where no tau is known, as for skewed routing in the paper, the block is the only term."""
    assert list(principle_terms(layer("skewed"), 0.0, Granularity(rows=16))) == [SKEWED_SLACK]
    with pytest.raises(EvidenceError, match="no M_moe"):
        principle_terms(layer(), 0.0, None)


@pytest.mark.parametrize(
    ("backend", "dtype", "rows"),
    [("vllm", "bfloat16", 16), ("vllm_0_9_1", "float8", 16), ("sglang", "float8", 64)],
)
def test_m_moe_as_printed(backend: str, dtype: Any, rows: int) -> None:
    """By engine and element type; tau = E under balanced routing alone."""
    setting = Setting(module="moe_ffn", backend=backend, dtype=dtype, experts=9, routing="balanced")
    granularity = printed_granularity(setting)
    assert (granularity.rows, granularity.until) == (rows, 9)
    assert printed_granularity(structs.replace(setting, routing="skewed")).until is None


@pytest.mark.parametrize(
    ("backend", "dtype", "kernel"),
    [("trtllm", "bfloat16", None), ("vllmx", "bfloat16", None), ("vllm", "float32", None),
     ("vllm", "bfloat16", "x_cutlass")],
)  # fmt: skip
def test_an_unprinted_m_moe_is_refused_by_name(backend: str, dtype: Any, kernel: Any) -> None:
    """Another engine, element type or kernel has no M_moe and is named."""
    setting = Setting(module="moe_ffn", backend=backend, dtype=dtype)
    with pytest.raises(EvidenceError, match="prints no M_moe"):
        printed_granularity(setting, kernel)
