"""A layer's work is the sum of its kernels' work, counted by brute force."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.attention_layer import attended_entries, entry_widths, layer_work
from nearfree.core.setting import Setting

SPARSE = Setting(
    module="attention_layer", backend="sglang", dtype="bfloat16", batch=2, context=60, heads=16,
    d_model=256, latent=64, rope_dim=16, selected=24, index_heads=4, index_dim=8, projected=100_000,
)  # fmt: skip
layers = st.builds(
    lambda context, selected, span, index: structs.replace(
        SPARSE, context=context, selected=selected, span=span, index_heads=index,
        index_dim=8 if index else None,
    ),
    st.integers(0, 50), st.none() | st.integers(1, 40), st.sampled_from([1, 4]),
    st.sampled_from([None, 4]),
)  # fmt: skip


@given(layers, st.integers(1, 10))
def test_flops_are_projections_index_scores_and_attention(setting: Setting, n: int) -> None:
    """2 W a token, 2 H d an indexed entry, and 2 H (2 c + r) an attended entry."""
    context = setting.context or 0
    entries = [(context + i + 1) / setting.span for i in range(n)]
    attended = sum(min(count, setting.selected or math.inf) for count in entries)
    indexed = sum(entries) * 4 * 8 if setting.index_heads else 0
    flop = 2 * 2 * (n * 100_000 + attended * 16 * (2 * 64 + 16) + indexed)
    assert layer_work(setting, n, "test").flop_logical == pytest.approx(flop, abs=2)
    assert attended_entries(setting, n) == pytest.approx(attended)


@given(layers, st.integers(1, 9))
def test_work_rises_with_positions(setting: Setting, n: int) -> None:
    """More positions compute and move more, and weights move once."""
    fewer, more = (layer_work(setting, positions, "test") for positions in (n, n + 1))
    assert more.flop_logical > fewer.flop_logical
    assert more.bytes_compulsory > fewer.bytes_compulsory >= 2 * 100_000


def test_grouped_heads_have_keys_and_values() -> None:
    """Without a latent an entry is a key and a value of each key-value head."""
    grouped = structs.replace(SPARSE, latent=None, rope_dim=None, kv_heads=2, head_dim=32)
    assert entry_widths(grouped) == (2 * 2 * 32, 2 * 16 * 32)
    assert entry_widths(SPARSE) == (80, 16 * (80 + 64))


@given(layers, st.integers(1, 10), st.sampled_from([None, "float8"]))
def test_bytes_are_weights_rows_index_keys_and_what_is_attended_to(
    setting: Setting, n: int, kv_dtype: Any
) -> None:
    """All index keys of the cache move, and as many entries as there are or as positions select."""
    given_ = structs.replace(setting, kv_dtype=kv_dtype)
    entries = ((setting.context or 0) + n) / setting.span
    visible = [((setting.context or 0) + i + 1) / setting.span for i in range(n)]
    attended = entries
    if setting.selected is not None:
        attended = min(entries, sum(min(count, setting.selected) for count in visible))
    keys = entries * 8 if setting.index_heads else 0
    cached = 2 * (80 * attended + keys) * (1 if kv_dtype else 2)
    expected_bytes = 100_000 * 2 + cached + 2 * 2 * n * 256 * 2
    assert layer_work(given_, n, "test").bytes_compulsory == pytest.approx(expected_bytes, abs=1)


def test_parts_that_a_layer_lacks_have_no_work() -> None:
    """Without projections, indexer and heads of keys, only rows are read and written."""
    bare = Setting(module="attention_layer", backend="", dtype="bfloat16", d_model=256, batch=2)
    work = layer_work(bare, 3, "test")
    assert (work.flop_logical, work.bytes_compulsory) == (0, 2 * 2 * 3 * 256 * 2)
