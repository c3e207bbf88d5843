"""T(N) of attention layers and indexers: kernels in waves, at least the time of launches."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.attention_layer import DECODE, VERIFY
from nearfree.derive.work_model.layer import DECODE_LAYER, INDEXER_LOGITS, LAYER

from derive.work_model.forms import (
    H100,
    INDEXER,
    SPARSE_LAYER,
    arrays,
    constants,
    prepared,
    start,
)


def features(grid: list[int], **changes: Any) -> dict[str, Any]:
    """Return features of a layer or an indexer on an H100."""
    given = {**SPARSE_LAYER, "platform": "h100", **changes}
    (part,) = prepared(given)
    n = np.array([grid], dtype=np.float64)
    return {**part.features, "n": n, "tokens": n * given.get("batch", 1)}


@given(constants(LAYER), st.sampled_from([0, 1000, 1_000_000]))
def test_a_latency_is_at_least_its_launches(values: dict[str, float], context: int) -> None:
    """T is finite and at least the time that the host takes for launches."""
    times = LAYER.latency_us(features([1, 8, 4096], context=context), values, "")
    assert np.isfinite(times).all()
    assert (times >= values["host_us"] * (1 - 1e-9)).all()


def test_positions_are_free_while_launching_takes_longer() -> None:
    """A host time of 2 ms hides the compute of 256 positions."""
    times = LAYER.latency_us(features([1, 256]), start(LAYER, host_us=2000.0, sharpness=8.0), "")[0]
    assert times[1] == pytest.approx(times[0], rel=1e-3)


def test_attention_comes_in_waves_of_positions() -> None:
    """132 SMs run 132 positions at once, as FlashMLA's sparse prefill does on H200."""
    values = start(LAYER, host_us=1.0, phi_share=1e9, bandwidth_share=1e9, passes=0.0,
                   tile_us=100.0,
                   index_tflop_s_per_sm=1e9, sharpness=8.0, tflop_s_per_sm=1e9)  # fmt: skip
    times = LAYER.latency_us(features([1, 132, 133]), values, "")[0]
    assert times[1] == pytest.approx(times[0], rel=1e-6)
    assert times[2] == pytest.approx(2 * times[0], rel=1e-3)


def test_only_the_indexer_grows_with_a_long_cache() -> None:
    """A layer with another layer's selection has equal T over all caches longer than that."""
    shared = {"index_heads": None, "index_dim": None}
    values = start(LAYER, host_us=1.0)
    for changes, grows in (({}, True), (shared, False)):
        short, long = (
            LAYER.latency_us(features([64], context=context, **changes), values, "")[0, 0]
            for context in (100_000, 1_000_000)
        )
        assert (long > short * 1.001) == grows


def test_dense_entries_are_all_attended_to() -> None:
    """If 128 positions share an entry and none is selected, attention grows with the cache."""
    dense = {"index_heads": None, "index_dim": None, "selected": None, "span": 128}
    values = start(LAYER, host_us=1.0)
    short, long = (
        LAYER.latency_us(features([512], context=context, **dense), values, "")[0, 0]
        for context in (100_000, 1_000_000)
    )
    assert long > short


def test_an_indexer_serves_positions_by_fours() -> None:
    """4 x 132 positions take as long as one; T rises at 529."""
    given = features([1, 528, 529], **INDEXER, d_model=None, latent=None, rope_dim=None,
                     selected=None, index_heads=None, index_dim=None, projected=None)  # fmt: skip
    values = start(INDEXER_LOGITS, host_us=1.0, bandwidth_share=1e9)
    times = INDEXER_LOGITS.latency_us(given, values, "")[0] - 1.0
    assert times[1] == pytest.approx(times[0], rel=0.05)
    assert times[2] == pytest.approx(2 * times[0], rel=0.1)


def test_layers_of_entries_are_known_by_their_engine() -> None:
    """An engine's own choice has its name and kernel; layers without entries have no kernel."""
    for backend, engine, kernel in (
        ("vllm_mla", "vllm", "FLASHMLA_SPARSE_DSV4"),
        ("sglang_mla", "sglang", "compressed_flashmla"),
    ):
        (part,) = prepared({**SPARSE_LAYER, "platform": "h100", "backend": backend, "span": 4})
        assert part.rows.select("backend", "kernel").row(0) == (engine, kernel)
    (part,) = prepared({**SPARSE_LAYER, "platform": "h100", "backend": "vllm_mla"})
    assert part.rows["kernel"].to_list() == [None]


@given(constants(DECODE_LAYER), st.sampled_from([1, 2, 16]), st.sampled_from([1, 3, 64]))
def test_decoded_positions_cost_what_requests_do(
    values: dict[str, float], batch: int, n: int
) -> None:
    """If each position is a row, N of b requests cost as much as one of b N requests."""
    of_requests = features([1], span=4, api="decode", batch=batch * n)
    of_positions = features([n], span=4, api="decode", batch=batch)
    one, other = (
        DECODE_LAYER.latency_us(time_us, values, "") for time_us in (of_requests, of_positions)
    )
    assert one == pytest.approx(other, rel=1e-12)
    prefilled = {**of_requests, "n": np.ones((1, 1))}
    assert one == pytest.approx(LAYER.latency_us(prefilled, values, ""), rel=1e-12)


@given(constants(DECODE_LAYER), st.sampled_from([1000, 1_000_000]))
def test_rows_of_a_request_read_the_indexer_s_keys_once(
    values: dict[str, float], context: int
) -> None:
    """Rows verified together take at most the time of rows apart; for one row both are equal."""
    apart, together = (
        DECODE_LAYER.latency_us(features([1, 2, 16], context=context, api=api), values, "")[0]
        for api in (DECODE, VERIFY)
    )
    assert together[0] == pytest.approx(apart[0])
    assert (together <= apart * (1 + 1e-12)).all()


def test_long_caches_make_the_difference() -> None:
    """Over a million positions sixteen rows apart read sixteen times the keys of one request."""
    values = start(DECODE_LAYER, host_us=1.0, index_tflop_s_per_sm=1e9, tflop_s_per_sm=1e9,
                   tile_us=0.0, passes=0.0)  # fmt: skip
    apart, together = (
        DECODE_LAYER.latency_us(features([16], context=1_000_000, api=api), values, "")[0, 0]
        for api in (DECODE, VERIFY)
    )
    assert apart > 2 * together


SIZES = st.fixed_dictionaries(
    {
        "n": st.integers(1, 300),
        "batch": st.integers(1, 64),
        "context": st.integers(0, 200_000),
        "heads": st.sampled_from([8, 64, 128]),
        "d_model": st.sampled_from([4096, 7168]),
        "projected": st.sampled_from([44_000_000, 187_000_000]),
        "span": st.sampled_from([1, 4, 128]),
        "selected": st.sampled_from([512.0, 2048.0, math.inf]),
        "pair_width": st.sampled_from([256, 1088]),
        "index_width": st.sampled_from([0, 8192]),
        "index_stored": st.sampled_from([128]),
        "element_bytes": st.sampled_from([1.0, 2.0]),
        "cache_bytes": st.sampled_from([1.0, 2.0]),
    }
)


def _indexed(
    values: dict[str, float], sizes: dict[str, float], n: int, tokens: float, requests: float
) -> float:
    """Return the time of scores over all entries for b N positions of b requests, in us."""
    seen = (sizes["context"] + (n + 1) / 2) / sizes["span"]
    index_us = 2 * sizes["index_width"] * seen / (values["index_tflop_s_per_sm"] * 1e6)
    keys = requests * (sizes["context"] + n) / sizes["span"] * sizes["index_stored"]
    moved = keys * sizes["cache_bytes"] + 8 * tokens * seen
    waves = math.ceil(tokens / (4 * H100["sms"]))
    return waves * 4 * index_us + moved / (values["bandwidth_share"] * H100["beta"])


@given(values=constants(LAYER), sizes=SIZES)
def test_a_layer_takes_what_its_kernels_take(
    values: dict[str, float], sizes: dict[str, float]
) -> None:
    """T is the sum of kernels, at least the host's time, as a scalar formula.

    A layer's N positions are prefilled, decoded as rows apart, or verified together.
    """
    asked_n = int(sizes["n"])
    others = {name: value for name, value in sizes.items() if name != "n"}
    for family, together in ((LAYER, 0), (DECODE_LAYER, 0), (DECODE_LAYER, 1)):
        n = asked_n if family is LAYER else 1
        given_ = arrays([asked_n], **{**H100, **others, "together": together})
        tokens = asked_n * sizes["batch"]
        requests = sizes["batch"] if family is LAYER or together else tokens
        beta = values["bandwidth_share"] * H100["beta"]
        weights = sizes["projected"] * sizes["element_bytes"] / beta
        products = 2 * tokens * sizes["projected"] / (values["phi_share"] * H100["phi"])
        p, most = values["overlap"], max(weights, products)
        total = most * ((weights / most) ** p + (products / most) ** p) ** (1 / p)
        keys = min((sizes["context"] + (n + 1) / 2) / sizes["span"], sizes["selected"])
        fed = values["tflop_s_per_sm"] * 1e6
        one = 2 * min(sizes["heads"], 64) * sizes["pair_width"] * keys / fed + values["tile_us"]
        total += math.ceil(tokens * math.ceil(sizes["heads"] / 64) / H100["sms"]) * one
        total += values["passes"] * tokens * sizes["d_model"] * 2 / beta
        if sizes["index_width"]:
            total += _indexed(values, sizes, n, tokens, requests)
        p, most = values["sharpness"], max(values["host_us"], total)
        expected = most * ((values["host_us"] / most) ** p + (total / most) ** p) ** (1 / p)
        latency_us = family.latency_us(given_, values, family.hypotheses[0])
        assert latency_us.item() == pytest.approx(expected)


@given(values=constants(INDEXER_LOGITS), sizes=SIZES)
def test_an_indexer_takes_its_numbers_and_its_launch(
    values: dict[str, float], sizes: dict[str, float]
) -> None:
    """An SM multiplies four positions at once; keys are read, scores are written and read."""
    n = int(sizes["n"])
    others = {name: value for name, value in sizes.items() if name != "n"}
    indexed = _indexed(values, sizes, n, n * sizes["batch"], sizes["batch"])
    latency_us = INDEXER_LOGITS.latency_us(arrays([n], **{**H100, **others}), values, "")
    assert latency_us.item() == pytest.approx(values["host_us"] + indexed)
