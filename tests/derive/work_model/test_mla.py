"""T(N) of latent attention: tiles that heads share, latents that are read once, and prefill."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.work_model.family import Array
from nearfree.derive.work_model.mla import (
    MLA_CACHED,
    MLA_PREFILL,
    MLA_SELECTED,
    mla_features,
)
from nearfree.derive.work_model.prepare import Prepared

from derive.work_model.forms import H100, MLA, arrays, constants, facts_of, prepared, start

FAMILIES = (MLA_PREFILL, MLA_CACHED, MLA_SELECTED)


def features(
    n: list[int], *, heads: int = 16, tile: float = 64.0, **facts: float
) -> dict[str, Any]:
    """Return features of absorbed latent attention of one request on an H100."""
    features = arrays(n, **H100, **{"batch": 1.0, "context": 0.0, "selected": np.inf} | facts)
    rows = pl.DataFrame([{**MLA, "heads": heads, "selected": None}])
    wide = np.ones_like(features["n"])
    widths = mla_features(rows, 0.0 * wide)
    tiles = {"tile_rows": tile * wide, "rows_per_position": heads * wide, "row_axes": wide,
             "splits": wide}  # fmt: skip
    return features | {key: item for key, item in widths.items() if key != "selected"} | tiles


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@given(values=st.data())
def test_a_latency_is_positive_and_rises_with_batch(family: Any, values: Any) -> None:
    """For any constants T is positive and finite, and does not fall with more requests."""
    drawn = values.draw(constants(family))
    one, two = (
        family.latency_us(features([1, 2, 8, 64], batch=batch, context=512.0, selected=256.0),
                          drawn, family.hypotheses[0])
        for batch in (4.0, 8.0)
    )  # fmt: skip
    assert np.isfinite(one).all()
    assert (one > 0).all()
    assert (two >= one * (1 - 1e-9)).all()


def test_positions_are_free_until_heads_fill_the_tile() -> None:
    """With 16 heads and tiles of 64 rows 4 positions compute as long as one, and 5 longer."""
    values = start(MLA_CACHED, fixed_us=0.0, sharpness=1.0, bandwidth_share=1e9, reread=0.0)
    times = MLA_CACHED.latency_us(features([1, 4, 5], context=65536.0), values, "")[0]
    assert times[1] == pytest.approx(times[0], rel=1e-4)
    assert times[2] == pytest.approx(2 * times[0], rel=1e-3)


def test_a_latent_is_read_once_whatever_the_heads() -> None:
    """Without compute T is the time of reading L + N latents of 576 elements, and N queries."""
    values = start(MLA_CACHED, fixed_us=0.0, sharpness=1.0, bandwidth_share=1.0, reread=0.0,
                   tile_us=0.0, tflop_s_per_sm=1e12)  # fmt: skip
    given = features([1], heads=16, context=100_000.0) | {"phi": np.array([[1e18]])}
    expected = 2 * (100_001 * 576 + 16 * 1088) / 3.35e6
    assert MLA_CACHED.latency_us(given, values, "")[0, 0] == pytest.approx(expected, rel=1e-6)


def test_a_further_tile_reads_the_cache_again_in_a_share() -> None:
    """128 heads fill two tiles at N = 1; with reread 1 the cache is read twice."""
    once, twice = (
        MLA_CACHED.latency_us(
            features([1], heads=128, context=1e6),
            start(MLA_CACHED, fixed_us=0.0, sharpness=1.0, reread=share, tile_us=0.0,
                  tflop_s_per_sm=1e12) | {"bandwidth_share": 1e-3}, "",
        )[0, 0]
        for share in (0.0, 1.0)
    )  # fmt: skip
    assert twice == pytest.approx(2 * once, rel=1e-2)


def test_a_kernel_that_splits_no_keys_waits_for_one_tile() -> None:
    """SGLang's extend kernel has a tile per head: 16 of 132 SMs work, for one tile's time."""
    given = features([2], context=65536.0)
    values = start(MLA_CACHED, fixed_us=0.0, bandwidth_share=1e9, tile_us=0.0, reread=0.0)
    latency_us = MLA_CACHED.latency_us({**given, "splits": 0.0 * given["n"]}, values, "")[0, 0]
    assert latency_us == pytest.approx(132 * MLA_CACHED.latency_us(given, values, "")[0, 0])


def test_selected_positions_end_the_growth_with_the_cache() -> None:
    """T over a cache of 100,000 or a million positions is that of the selected ones."""
    values = start(MLA_SELECTED)
    short, long = (
        MLA_SELECTED.latency_us(features([1, 64], context=context, selected=2048.0), values, "")
        for context in (1e5, 1e6)
    )
    assert short.tolist() == long.tolist()


def test_selected_positions_come_in_waves_of_sms() -> None:
    """On 132 SMs 132 positions of 64 heads take as long as one; the next adds a wave."""
    values = start(MLA_SELECTED, fixed_us=0.0, bandwidth_share=1e9)
    given = features([1, 132, 133], heads=64, context=1e5, selected=2048.0)
    times = MLA_SELECTED.latency_us(given, values, "")[0]
    assert times[1] == pytest.approx(times[0])
    assert times[2] == pytest.approx(2 * times[0])


def test_naive_heads_are_wider_in_memory_and_narrower_in_work() -> None:
    """A position stores 16 (192 + 128) elements and a pair has 320; absorbed it is 576 and 1088."""
    rows = pl.DataFrame([{**MLA, "api": api, "selected": None} for api in ("naive", "absorbed")])
    features = mla_features(rows, np.zeros((2, 1)))
    assert features["stored_width"].ravel().tolist() == [16 * 320, 576]
    assert features["pair_width"].ravel().tolist() == [320, 1088]
    assert features["widening"].ravel().tolist() == [0, 0]


def _engine(**changes: Any) -> Prepared:
    question = {**MLA, "backend": "vllm_mla", "kernel": None, "backend_version": "0.20.2",
             "platform": "h100", "api": None, **changes}  # fmt: skip
    (part,) = prepared(question)
    return part


def _times(part: Prepared) -> Array:
    return MLA_CACHED.latency_us(part.features, start(MLA_CACHED), "")


def test_beyond_an_engines_threshold_latents_are_widened_first() -> None:
    """Up to 0.30 vLLM decodes one position on an A100 and prefills two: T jumps there."""
    part = _engine(platform="a100", context=32768)
    grid = part.features["n"][0].astype(int).tolist()
    widening = part.features["widening"][0]
    assert widening[grid.index(1)] == 0
    assert widening[grid.index(2)] == 2 * 512 * 16 * (128 + 128)
    times = _times(part)[0]
    assert times[grid.index(2)] > 1.5 * times[grid.index(1)]
    assert part.rows["ran"].to_list() == ["triton_decode"]


def test_an_engines_release_is_asked_for() -> None:
    """A question without a release, or without a known kernel, is refused with the reason."""
    from nearfree.derive.work_model.prepare import Refused, prepare

    from derive.questions import RESOLVER

    question = {**MLA, "backend": "vllm_mla", "kernel": None, "platform": "h100"}
    rows = facts_of({**question, "backend_version": None}, {**question, "backend_version": "0.1.0"})
    parts = [part for part in prepare(rows, RESOLVER) if isinstance(part, Refused)]
    refusals = pl.concat([part.rows for part in parts]).sort("asked")["refusal"].to_list()
    assert "no release of vllm_mla is given" in refusals[0]
    assert "compute capability 9.0 is not known" in refusals[1]


def _overlap(sharpness: float, one: float, other: float) -> float:
    most = max(one, other)
    return float(
        most * ((one / most) ** sharpness + (other / most) ** sharpness) ** (1 / sharpness)
    )


SHAPES = st.fixed_dictionaries(
    {
        "n": st.integers(1, 300),
        "batch": st.integers(1, 64),
        "context": st.integers(0, 9000),
        "heads": st.integers(1, 128),
        "row_axes": st.integers(1, 16),
        "rows_per_position": st.sampled_from([1, 16, 128]),
        "tile_rows": st.sampled_from([16, 64, 128]),
        "pair_width": st.sampled_from([320, 1088]),
        "query_width": st.sampled_from([5120, 17408]),
        "stored_width": st.sampled_from([576, 5120]),
        "cache_bytes": st.sampled_from([1.0, 2.0]),
        "splits": st.sampled_from([0, 1]),
        "widening": st.sampled_from([0.0, 2.0 * 512 * 16 * 256]),
        "selected": st.sampled_from([64, 2048]),
    }
)


@given(values=constants(MLA_CACHED), shape=SHAPES)
def test_latent_attention_takes_what_its_tiles_and_its_bytes_take(
    values: dict[str, float], shape: dict[str, float]
) -> None:
    """Each form equals a scalar formula: tiles over SMs, bytes that are read, and their overlap."""
    facts = H100 | {"element_bytes": 2.0} | shape
    n = int(facts.pop("n"))
    given_ = arrays([n], **facts)
    sms, tile, packed = facts["sms"], facts["tile_rows"], facts["rows_per_position"]
    batch, context = facts["batch"], facts["context"]
    rate = 1 / (sms / facts["phi"] + 1 / (values["tflop_s_per_sm"] * 1e6))
    beta = values["bandwidth_share"] * facts["beta"]

    def total(chip: float, moved: float) -> Any:
        return pytest.approx(values["fixed_us"] + _overlap(values["sharpness"], chip, moved))

    rows = int(n * packed)
    lasts = [min(last, rows) for last in range(tile, rows + tile, tile)]
    keys = max(64.0, sum(context + last / packed for last in lasts) / len(lasts))
    products = 2 * tile * facts["pair_width"]
    share = batch * facts["row_axes"] * len(lasts) / sms
    queries = batch * n * facts["query_width"] * 2
    cached = batch * (context + n) * facts["stored_width"] * facts["cache_bytes"]

    chip = np.ceil(share) * (products * keys / rate + values["tile_us"])
    latency_us = MLA_PREFILL.latency_us(given_, values, "")
    assert latency_us.item() == total(chip, (queries + cached) / beta)

    share = share if facts["splits"] else np.ceil(share)
    chip = share * (products * keys / rate + values["tile_us"])
    read = 1 + values["reread"] * (len(lasts) - 1)
    if facts["widening"]:
        chip = share * products * keys * sms / facts["phi"]
        chip += batch * context * facts["widening"] / facts["phi"]
        read = 2.0
    time_us = MLA_CACHED.latency_us(given_, values, "")
    assert time_us.item() == total(chip, (queries + read * cached) / beta)

    keys = min(context + (n + 1) / 2, facts["selected"])
    waves = np.ceil(batch * n * np.ceil(facts["heads"] / tile) / sms)
    chip = waves * (products * keys / rate + values["tile_us"])
    read = batch * n * keys * facts["stored_width"] * facts["cache_bytes"]
    assert MLA_SELECTED.latency_us(given_, values, "").item() == total(chip, read / beta)
