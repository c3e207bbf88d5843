"""The indexer: its work counted by brute force, and where its intensity meets rho."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.indexer import idle_compute, indexer_work, principle_terms
from nearfree.core.modules.kind import Granularity
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError

GLM = Setting(module="indexer", backend="deep_gemm", dtype="float8", batch=3, context=50,
              heads=64, head_dim=128)  # fmt: skip


@given(st.integers(1, 12), st.integers(0, 40), st.sampled_from([None, "block"]))
def test_work_is_what_each_pair_costs(n: int, context: int, mask: str | None) -> None:
    """2 H d FLOPs a pair; keys are read once for all heads, and each score is 4 bytes."""
    work = indexer_work(structs.replace(GLM, context=context, mask=mask), n, "test")
    pairs = sum(context + n if mask else context + i + 1 for i in range(n))
    assert work.flop_logical == work.flop_executed == 3 * 2 * 64 * 128 * pairs
    assert work.bytes_compulsory == 3 * (128 * (context + n) + 64 * 128 * n + 4 * pairs)


@given(st.integers(1, 12), st.integers(1, 8))
def test_a_tile_serves_its_positions(n: int, rows: int) -> None:
    """A pass over the keys serves `rows` positions of a request; the last pass may serve fewer."""
    work = indexer_work(GLM, n, "test", rows=rows)
    assert work.blocks == 3 * math.ceil(n / rows)
    assert work.flop_executed >= work.flop_logical


@given(st.floats(0.1, 3000.0), st.integers(1, 1 << 20), st.integers(1, 64))
def test_intensity_meets_the_balance_point_or_never_does(
    balance: float, context: int, heads: int
) -> None:
    """N_idle is where 2 H d N L FLOPs over s d (L + N) bytes are rho."""
    n = idle_compute(structs.replace(GLM, context=context, heads=heads), balance)

    def intensity(n: float) -> float:
        return 2 * heads * n * context / (context + n)

    if math.isfinite(n):
        assert intensity(n) == pytest.approx(balance, rel=1e-6)
    else:
        assert intensity(1e15) <= balance * (1 + 1e-6)


def test_the_term_is_the_tile() -> None:
    """The positions of one pass bound N; without a rule the principle has no term."""
    assert principle_terms(GLM, 0.0, Granularity(rows=2)) == {"M_index": 2}
    with pytest.raises(EvidenceError, match="no tile of an indexer"):
        principle_terms(GLM, 0.0, None)
