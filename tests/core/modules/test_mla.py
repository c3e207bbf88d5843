"""Latent attention: its work counted by brute force, and where its intensity meets rho."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.kind import Granularity
from nearfree.core.modules.mla import (
    ABSORBED,
    MLA,
    NAIVE,
    idle_compute,
    mla_work,
    principle_terms,
    stored_elements,
)
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.errors import ConfigError, EvidenceError

DEEPSEEK = Setting(
    module="mla", backend="flashmla", dtype="bfloat16", batch=2, context=100, heads=16,
    latent=512, rope_dim=64, nope_dim=128, value_dim=128, api=ABSORBED,
)  # fmt: skip
shapes = st.builds(
    lambda heads, context, api, selected, mask: structs.replace(
        DEEPSEEK, heads=heads, context=context, api=api, selected=selected, mask=mask
    ),
    st.integers(1, 8), st.integers(0, 40), st.sampled_from([ABSORBED, NAIVE, None]),
    st.none() | st.integers(1, 30), st.sampled_from([None, "block"]),
)  # fmt: skip


def attended_keys(setting: Setting, n: int) -> list[int]:
    """Return how many keys each new position attends to, one after the other."""
    context = setting.context or 0
    visible = [context + n if setting.mask == "block" else context + i + 1 for i in range(n)]
    return [min(count, setting.selected or count) for count in visible]


@given(shapes, st.integers(1, 12))
def test_work_is_what_each_position_does(setting: Setting, n: int) -> None:
    """FLOPs are 2 (key + value) a head and pair; a shared cache is read once."""
    work = mla_work(setting, n, "test")
    key, value = (192, 128) if setting.api == NAIVE else (576, 512)
    pairs = sum(attended_keys(setting, n))
    assert work.flop_logical == 2 * 2 * (setting.heads or 0) * (key + value) * pairs
    assert work.flop_executed == work.flop_logical
    stored = (setting.heads or 0) * 320 if setting.api == NAIVE else 576
    cache_reads = (
        min(pairs, (setting.context or 0) + n) if setting.selected else (setting.context or 0) + n
    )
    queries = n * (setting.heads or 0) * (key + value)
    assert work.bytes_compulsory == 2 * 2 * (stored * cache_reads + queries)


@given(shapes, st.integers(1, 12), st.integers(1, 64))
def test_tiles_hold_every_row(setting: Setting, n: int, rows: int) -> None:
    """Padding adds whole tiles of rows; executed pairs are never fewer than logical ones."""
    work = mla_work(setting, n, "test", rows=rows)
    assert work.flop_executed >= work.flop_logical
    heads = setting.heads or 0
    axes, shared = (heads, 1) if setting.api == NAIVE else (1, heads)
    packed = n * -(-shared // rows) if setting.selected else -(-n * shared // rows)
    assert work.blocks == packed * axes * 2


def test_a_latent_is_576_elements() -> None:
    """A cached position of DeepSeek-V3 is 512 + 64 elements a layer, whatever the heads."""
    for heads in (1, 16, 128):
        assert stored_elements(structs.replace(DEEPSEEK, heads=heads)) == 576


def test_heads_fill_the_tile() -> None:
    """64 rows of FlashMLA hold 4 positions of 16 heads: the fifth begins a tile."""
    blocks = [mla_work(DEEPSEEK, n, "test", rows=64).blocks for n in (1, 4, 5, 8, 9)]
    assert blocks == [2, 2, 4, 4, 6]
    all_heads = structs.replace(DEEPSEEK, heads=128)
    assert [mla_work(all_heads, n, "test", rows=64).blocks for n in (1, 2)] == [4, 8]


@given(st.floats(0.1, 3000.0), st.integers(1, 1 << 20), st.integers(1, 128),
       st.sampled_from([ABSORBED, NAIVE]))  # fmt: skip
def test_intensity_meets_the_balance_point_or_never_does(
    balance: float, context: int, heads: int, api: str
) -> None:
    """N_idle is where 2 H (key + value) N L FLOPs over s stored (L + N) bytes are rho."""
    setting = structs.replace(DEEPSEEK, context=context, heads=heads, api=api)
    n = idle_compute(setting, balance)
    flop, stored = (2 * heads * 1088, 576) if api == ABSORBED else (2 * heads * 320, heads * 320)

    def intensity(n: float) -> float:
        return flop * n * context / (2 * stored * (context + n))

    if math.isfinite(n):
        assert intensity(n) == pytest.approx(balance, rel=1e-6)
    else:
        assert intensity(1e15) <= balance * (1 + 1e-6)


def test_many_heads_leave_no_idle_compute() -> None:
    """On an H100 (rho 295) 128 absorbed heads fill compute at 1.2 positions, 16 at 10."""
    setting = structs.replace(DEEPSEEK, context=1 << 20)
    assert idle_compute(structs.replace(setting, heads=128), 295.0) == pytest.approx(1.22, rel=1e-2)
    assert idle_compute(setting, 295.0) == pytest.approx(9.76, rel=1e-2)


def test_each_query_reads_its_own_selected_positions() -> None:
    """Where each position reads its own selection, N_idle is unbounded or zero whatever N is."""
    sparse = structs.replace(DEEPSEEK, context=1 << 16, selected=2048)
    assert idle_compute(sparse, 295.0) == math.inf
    assert idle_compute(sparse, 20.0) == 1.0
    setting = structs.replace(sparse, context=1024)
    assert idle_compute(setting, 295.0) == idle_compute(
        structs.replace(setting, selected=None), 295.0
    )


def test_the_term_is_the_tile() -> None:
    """R / H positions fill a tile; one where positions are selected; no rule gives no term."""
    assert principle_terms(DEEPSEEK, 0.0, Granularity(rows=4)) == {"M_mla": 4}
    sparse = structs.replace(DEEPSEEK, selected=2048)
    assert principle_terms(sparse, 0.0, Granularity(rows=4)) == {"M_mla": 1}
    with pytest.raises(EvidenceError, match="no tile of latent attention"):
        principle_terms(DEEPSEEK, 0.0, None)


def test_a_setting_needs_its_widths() -> None:
    """The fields that the work uses are required; selection is optional."""
    check_setting(DEEPSEEK)
    with pytest.raises(ConfigError, match="lacks latent, value_dim"):
        check_setting(structs.replace(DEEPSEEK, latent=None, value_dim=None))
    assert MLA.laws is not None
    assert "selected" not in MLA.laws.needs
