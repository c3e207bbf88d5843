"""Idle compute of attention: the paper's two branches, and query heads that share keys."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.attention import (
    ATTENTION,
    M_ATTN,
    idle_compute,
    principle_terms,
    printed_granularity,
)
from nearfree.core.modules.kind import Granularity
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError

balances = st.floats(0.1, 2000.0)
contexts = st.integers(1, 1 << 20)


def n_idle(balance: float, context: int, group: int = 1, *, extended: bool = True) -> float:
    """Return N_idle of 16-bit elements, with `group` query heads to a key-value head."""
    setting = Setting(module="attention", backend="", dtype="bfloat16", context=context,
                    heads=3 * group, kv_heads=3)  # fmt: skip
    return idle_compute(setting, balance, extended=extended)


@pytest.mark.parametrize(
    ("context", "expected"), [(37, math.inf), (38, 37 * 38.0), (74, 74.0), (1 << 20, 37.0)]
)
def test_both_branches_of_the_paper(context: int, expected: float) -> None:
    """On H20: unbounded up to L = rho s / 2 = 37, then falling towards rho s / 2."""
    assert n_idle(37.0, context) == pytest.approx(expected, rel=1e-3)


@given(balances, contexts, st.integers(1, 64))
def test_intensity_meets_the_balance_point_or_never_does(
    balance: float, context: int, group: int
) -> None:
    """With g query heads to a key-value head FLOPs grow g-fold, and bytes do not."""
    n = n_idle(balance, context, group)

    def intensity(n: float) -> float:
        return 4 * group * n * context / (2 * (context + n) * 2)

    if math.isfinite(n):
        assert intensity(n) == pytest.approx(balance, rel=1e-6)
    else:
        assert intensity(1e15) <= balance * (1 + 1e-6)


@given(balances, contexts)
def test_one_query_head_a_key_value_head_is_the_papers_formula(
    balance: float, context: int
) -> None:
    """With g = 1 the extension is the paper's formula, which has no g."""
    expected = (
        2 * balance * context / (2 * context - 2 * balance) if context > balance else math.inf
    )
    assert n_idle(balance, context) == pytest.approx(expected, rel=1e-6)
    assert n_idle(balance, context, 8, extended=False) == n_idle(balance, context)


def test_a_known_tile_is_padded() -> None:
    """One position in a tile of 64 rows computes 64, shared by its heads; without a tile, one."""
    setting = Setting(module="attention", backend="", dtype="bfloat16", context=4096, heads=8,
                    kv_heads=2, head_dim=128)  # fmt: skip
    untiled, tiled, packed = (
        ATTENTION.executed(setting, 1, "any", **granularity)
        for granularity in ({}, {"rows": 64}, {"rows": 64, "group": 4})
    )
    assert untiled.flop_executed == untiled.flop_logical == 4 * 8 * 128 * 4097
    assert tiled.flop_executed == 64 * untiled.flop_logical
    assert packed.flop_executed == 16 * untiled.flop_logical
    assert (tiled.blocks, packed.blocks, packed.block_rows) == (8, 2, 64)


def test_the_term_is_the_query_tile() -> None:
    """M_attn positions fill a query tile; without a tile the principle has no term."""
    setting = Setting(module="attention", backend="", dtype="bfloat16")
    assert principle_terms(setting, 0.0, Granularity(rows=64)) == {M_ATTN: 64}
    with pytest.raises(EvidenceError, match="no M_attn"):
        principle_terms(setting, 0.0, None)


@pytest.mark.parametrize(
    ("backend", "api", "rows"),
    [("flash_attn_2", None, 64), ("flash_attn", "kvcache", 64), ("flashinfer", None, 16),
     ("flashinfer_fa2", None, 16), ("flash_attn", "varlen", None), ("vllm", None, None)],
)  # fmt: skip
def test_m_attn_as_printed(backend: str, api: str | None, rows: int | None) -> None:
    """M_attn is that of FlashAttention-2 with a cache and FlashInfer's fa2, of 16-bit elements."""
    setting = Setting(module="attention", backend=backend, dtype="float16", api=api)
    if rows is not None:
        assert printed_granularity(setting).rows == rows
        setting = structs.replace(setting, dtype="float8")
    with pytest.raises(EvidenceError, match="prints no M_attn"):
        printed_granularity(setting)
