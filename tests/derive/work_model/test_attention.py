"""T(N) of attention: the keys that each tile reads, and the waves of prefill."""

import numpy as np
import pytest
from conftest import make_setting
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.modules.attention import attention_work
from nearfree.derive.reference.places import stop_terms
from nearfree.derive.work_model.attention import (
    ATTENTION_CACHED,
    ATTENTION_PREFILL,
    _parts,
)
from nearfree.derive.work_model.family import FLOP_PER_US

from derive.work_model.forms import H100, arrays, prepared, start

VALUES = start(ATTENTION_CACHED, tile_us=0.0)


@given(
    group=st.sampled_from([1, 2, 4, 8]),
    kv_heads=st.integers(1, 8),
    tile=st.sampled_from([16, 64, 128]),
    context=st.integers(64, 9000),
    batch=st.integers(1, 9),
    n=st.integers(1, 700),
    packs=st.booleans(),
)
def test_the_keys_that_tiles_see(
    *, group: int, kv_heads: int, tile: int, context: int, batch: int, n: int, packs: bool
) -> None:
    """The closed form of the keys that tiles read equals a count tile by tile."""
    shape = {"heads": group * kv_heads, "kv_heads": kv_heads, "head_dim": 64, "batch": batch}
    call = make_setting(module="attention", backend="any", context=context, **shape)
    rows = group if packs else 1
    work = attention_work(call, n, "counted", tile_rows=tile, group=rows)
    features = arrays([n], **H100, **shape, context=context, tile_rows=tile,
                      rows_per_position=rows)  # fmt: skip
    on_chip, moved = _parts(features, VALUES, in_waves=False)
    fed = VALUES["tflop_s_per_sm"] * FLOP_PER_US
    rate = 1.0 / (H100["sms"] / H100["phi"] + 1.0 / fed)
    assert on_chip[0, 0] == pytest.approx(work.flop_executed / (rate * H100["sms"]), rel=1e-9)
    seconds = work.bytes_compulsory * 2 / 4 / (VALUES["bandwidth_share"] * H100["beta"])
    assert moved[0, 0] == pytest.approx(seconds, rel=1e-9), "elements of 2 bytes, not of 4"


def test_no_tile_computes_fewer_keys_than_a_step() -> None:
    """A tile over fewer than 64 keys costs as much as one over 64."""
    shape = {"heads": 8, "kv_heads": 8, "head_dim": 64, "batch": 1, "tile_rows": 64}
    times_us = [
        _parts(arrays([1], **H100, **shape, context=context, rows_per_position=1), VALUES,
               in_waves=False)[0][0, 0]
        for context in (0, 63, 127)
    ]  # fmt: skip
    assert times_us[0] == times_us[1]
    assert times_us[2] == pytest.approx(2 * times_us[1])


def test_tiles_without_a_cache_come_in_waves() -> None:
    """As many tiles as SMs are one wave; one more tile adds a wave."""
    values = start(ATTENTION_CACHED, fixed_us=0.0, sharpness=1.0, bandwidth_share=1e9)
    shape = {"heads": 1, "kv_heads": 1, "head_dim": 64, "context": 0, "tile_rows": 128}
    at = {
        batch: ATTENTION_PREFILL.latency_us(
            arrays([64], **H100, **shape, batch=batch, rows_per_position=1), values, "tile_128"
        )[0, 0]
        for batch in (1, 132, 133)
    }
    assert at[132] == pytest.approx(at[1])
    assert at[133] == pytest.approx(2 * at[1])


def test_over_a_cache_a_full_tile_is_a_step() -> None:
    """If keys are split over all SMs, T rises with each started tile."""
    values = start(ATTENTION_CACHED, fixed_us=0.0, sharpness=1.0, bandwidth_share=1e9)
    shape = {"heads": 8, "kv_heads": 8, "head_dim": 128, "batch": 4, "context": 8192}
    latency_us = ATTENTION_CACHED.latency_us(
        arrays([1, 16, 17], **H100, **shape, tile_rows=16, rows_per_position=1),
        values,
        "split_keys",
    )[0]
    assert latency_us[1] == pytest.approx(latency_us[0], rel=0.01)
    assert latency_us[2] == pytest.approx(2 * latency_us[0], rel=0.01)


@given(heads=st.integers(1, 400), n=st.integers(1, 300))
def test_keys_that_are_not_split_leave_sms_idle(heads: int, n: int) -> None:
    """Without splits each tile reads all keys, in waves of blocks."""
    values = start(ATTENTION_CACHED, fixed_us=0.0, sharpness=1.0, bandwidth_share=1e9)
    shape = {"heads": heads, "kv_heads": heads, "head_dim": 128, "batch": 1, "context": 8192}
    features = arrays([n], **H100, **shape, tile_rows=64, rows_per_position=1)
    split, alone = (
        ATTENTION_CACHED.latency_us(features | {"unsplit": np.full((1, 1), share)}, values, "")[
            0, 0
        ]
        for share in (0.0, 1.0)
    )
    blocks = heads * np.ceil(n / 64)
    assert alone / split == pytest.approx(
        np.ceil(blocks / H100["sms"]) / (blocks / H100["sms"]), rel=1e-6
    )


def test_the_context_may_vary_along_the_grid() -> None:
    """A curve over contexts equals the answers of its points one by one."""
    shape = {"heads": 32, "kv_heads": 8, "head_dim": 128, "batch": 8, "tile_rows": 64}
    contexts = np.array([[128.0, 1024.0, 8192.0]])
    features = arrays([1, 1, 1], **H100, **shape, rows_per_position=4) | {"context": contexts}
    alone = [
        ATTENTION_CACHED.latency_us(
            arrays([1], **H100, **shape, rows_per_position=4, context=context), VALUES, ""
        )[0, 0]
        for context in contexts[0]
    ]
    assert ATTENTION_CACHED.latency_us(features, VALUES, "")[0].tolist() == pytest.approx(alone)


@pytest.mark.parametrize(("last", "fewer"), [(0, "one position alone"), (1, "fewer positions")])
def test_what_stops_a_call_that_splits_no_keys(last: int, fewer: str) -> None:
    """The limit names the N from which keys are no longer split."""
    (part,) = prepared(
        {
            "module": "attention", "backend": "flash_attn", "backend_version": "2.8.3",
            "context": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "api": "varlen",
            "page_size": 256, "platform": "a100", "batch": 1,
        }
    )  # fmt: skip
    assert part.features["unsplit"][0, :3].tolist() == [0.0, 1.0, 1.0]
    alone = part.features["unsplit"].copy()
    alone[0, : last + 1] = 0.0
    moved = replace(part, features=part.features | {"unsplit": alone})
    (term,) = stop_terms(moved, *(np.array([index]) for index in (0, last, last + 1)))
    assert term.endswith(f"split over SMs for {fewer}")
