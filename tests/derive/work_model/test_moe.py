"""T(N) of MoE layers: counts of blocks, and the cost of larger blocks."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import make_setting
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.moe_ffn import local_experts, rank_pairs
from nearfree.core.modules.routing import routed_pairs
from nearfree.derive.laws.spread import spread_of
from nearfree.derive.work_model.moe import (
    MOE_LIBRARY,
    MOE_TRITON,
    active_experts,
    blocks_of,
    blocks_per_sm,
    latency_us,
    moe_features,
    pairs_of,
    with_loads,
)

from derive.questions import MOE
from derive.work_model.forms import H100, arrays, constants, facts_of, start

LAYER = {
    "experts": 256,
    "local_experts": 256,
    "ep": 1,
    "top_k": 8,
    "skewed": 0,
    "d_model": 4096,
    "d_ff": 512,
    "matrices": 3,
}


@given(
    experts=st.integers(1, 300),
    share=st.floats(0.0, 1.0),
    batch=st.integers(1, 9),
    n=st.integers(1, 600),
    block=st.sampled_from([1, 16, 32, 64, 128, 48]),
    routing=st.sampled_from(["balanced", "skewed"]),
    ep=st.integers(1, 9),
)
def test_blocks_are_those_of_each_expert(
    *, experts: int, share: float, batch: int, n: int, block: int, routing: str, ep: int
) -> None:
    """A rank's experts have the sum of ceil(pairs / M) row blocks; one rank has all of them."""
    top_k, ep = max(1, round(share * experts)), min(ep, experts)
    layer = make_setting(
        module="moe_ffn", experts=experts, top_k=top_k, routing=routing, batch=batch, ep=ep
    )
    features = arrays(
        [n], batch=batch, experts=experts, ep=ep, local_experts=local_experts(experts, ep),
        top_k=top_k, skewed=routing == "skewed",
    )  # fmt: skip
    counted = rank_pairs(layer, n)
    every = routed_pairs(layer, n)
    assert len(counted) == local_experts(experts, ep)
    assert sum(every) / ep <= sum(counted) <= sum(every)
    blocks = blocks_of(features, np.full((1, 1), float(block)))
    assert blocks.tolist() == [[sum(-(-pairs // block) for pairs in counted)]]
    assert pairs_of(features).tolist() == [[sum(counted)]]
    assert active_experts(features).tolist() == [[sum(pairs > 0 for pairs in counted)]]
    if ep == 1:
        assert counted == routed_pairs(layer, n)


def timed(n: list[int], values: dict[str, float], block_m: int, **changes: Any) -> np.ndarray:
    """Return T(N) with one block size for every N."""
    time_us: np.ndarray = latency_us(blocked(n, block_m, **changes), values, "rules")[0]
    return time_us


def blocked(n: list[int], block_m: int, **changes: Any) -> dict[str, Any]:
    """Return the features of a layer with one block size for every N."""
    sizes = {"block_m": block_m, "block_n": 128, "block_k": 128, "num_warps": 4, "num_stages": 3}
    sizes |= {name: changes.pop(name) for name in sizes if name in changes}
    on_sm = {"sm": 90, "smem_bytes": 228 * 1024}
    features = arrays(n, **{**H100, **LAYER, **on_sm, **changes})
    full = {name: np.full(features["n"].shape, float(size)) for name, size in sizes.items()}
    return with_loads(features | full)


@given(values=constants(MOE_TRITON), n=st.integers(32, 512), steps=st.sampled_from([(16, 64)]))
def test_a_larger_block_never_helps_experts_that_fill_none(
    values: dict[str, float], n: int, steps: tuple[int, int]
) -> None:
    """If no expert fills a block, a larger block only adds padding."""
    small, large = (timed([n], values, block)[0] for block in steps)
    assert large >= small * (1 - 1e-12)


def test_a_step_of_the_block_is_seen() -> None:
    """If padded compute counts, T rises at the N where the block does."""
    values = start(MOE_TRITON, tflop_s_per_sm=500.0, tile_us=0.0)
    slow = {"phi": H100["phi"] / 8}
    assert timed([256], values, 64, **slow)[0] > 1.5 * timed([256], values, 16, **slow)[0]


@pytest.mark.parametrize(("block_k", "constant"), [(32, "narrow_k"), (64, "half_k")])
def test_narrow_steps_of_k_are_slower(block_k: int, constant: str) -> None:
    """Narrow steps of K have a constant that slows them, and no other step."""
    plain = start(MOE_TRITON, narrow_k=1.0, half_k=1.0)
    slower = plain | {constant: 2.0}
    assert timed([64], slower, 16, block_k=block_k)[0] > timed([64], plain, 16, block_k=block_k)[0]
    assert timed([64], slower, 16, block_k=128)[0] == timed([64], plain, 16, block_k=128)[0]


def test_narrow_is_in_bytes() -> None:
    """A step of 64 one-byte weights is as narrow as one of 32 two-byte weights."""
    values = start(MOE_TRITON, narrow_k=2.0, half_k=1.0)
    wide = timed([64], values, 16, block_k=128, weight_bytes=1.000244)[0]
    assert timed([64], values, 16, block_k=64, weight_bytes=1.000244)[0] > wide


@pytest.mark.parametrize(
    ("sm", "smem", "block", "blocks"),
    [
        (80, 164, (16, 32, 64, 4, 3), 12),
        (80, 164, (64, 128, 64, 8, 3), 2),
        (90, 228, (16, 64, 128, 4, 4), 3),
        (90, 228, (64, 64, 32, 4, 3), 8),
        (90, 228, (64, 128, 64, 8, 3), 3),
        (90, 228, (128, 256, 64, 8, 4), 1),
        (120, 100, (16, 64, 128, 4, 4), 1),
    ],
)
def test_an_sm_holds_as_many_blocks_as_were_compiled(
    sm: int, smem: int, block: tuple[int, ...], blocks: int
) -> None:
    """In 16 bits the blocks per SM are within one of those that Triton compiled."""
    rows, columns, depth, warps, stages = block
    features = blocked(
        [64], rows, block_n=columns, block_k=depth, num_warps=warps, num_stages=stages, sm=sm,
        smem_bytes=smem * 1024,
    )  # fmt: skip
    assert abs(blocks_per_sm(features).item() - blocks) <= 1


@given(
    rows=st.sampled_from([16, 32, 64, 128, 256]),
    columns=st.sampled_from([16, 64, 256]),
    depth=st.sampled_from([16, 64, 256]),
    warps=st.sampled_from([1, 4, 8, 16]),
    stages=st.integers(1, 5),
    sm=st.sampled_from([80, 89, 90, 100, 103, 120]),
    kib=st.sampled_from([100, 164, 228]),
    weight_bytes=st.sampled_from([1.0, 2.0]),
)
def test_an_sm_holds_what_its_memory_registers_and_threads_allow(
    *, rows: int, columns: int, depth: int, warps: int, stages: int, sm: int, kib: int,
    weight_bytes: float,
) -> None:  # fmt: skip
    """An SM's blocks follow from a step's buffers and 1 KiB, and sums and 40 registers a thread.

    An SM holds at least one block. Asynchronous instructions, with 64 rows or more on 9.0 to 10.3,
    need a buffer per stage.
    """
    features = blocked(
        [64], rows, block_n=columns, block_k=depth, num_warps=warps, num_stages=stages, sm=sm,
        smem_bytes=kib * 1024, weight_bytes=weight_bytes,
    )  # fmt: skip
    buffers = stages if sm in (90, 100, 103) and rows >= 64 else max(1, stages - 1)
    memory = kib * 1024 // (buffers * (rows + columns) * depth * weight_bytes + 1024)
    threads = 32 * warps
    registers = 65536 // (rows * columns + 40 * threads)
    assert blocks_per_sm(features).item() == max(1, min(memory, registers, 2048 // threads, 32))


def test_a_load_waits_where_few_blocks_hide_it() -> None:
    """With a load latency fewer stages are slower; without one they change nothing."""
    values = start(MOE_TRITON, load_us=3.0)
    free = values | {"load_us": 0.0}
    two, four = (
        [
            timed([1], constants_, 16, num_stages=stages, skewed=1)[0]
            for constants_ in (values, free)
        ]
        for stages in (2, 4)
    )
    assert two[0] > four[0] > two[1] == four[1]


@pytest.mark.parametrize(("gated", "matrices"), [(None, 3), (True, 3), (False, 2)])
def test_a_gated_expert_has_three_matrices(gated: bool | None, matrices: int) -> None:  # noqa: FBT001
    """Gate, up and down; an expert is gated unless a question says otherwise."""
    rows = facts_of({**MOE, "gated": gated})
    assert moe_features(rows, np.ones((1, 1)), triton=True)["matrices"].tolist() == [[matrices]]


def test_routing_decides_which_experts_are_read() -> None:
    """Skewed routing reads as many experts as balanced at one token, and fewer later."""
    values = start(MOE_TRITON)
    balanced = timed([1, 32], values, 16)
    skewed = timed([1, 32], values, 16, skewed=1)
    assert skewed[0] == pytest.approx(balanced[0])
    assert skewed[1] < 0.7 * balanced[1]


@pytest.mark.parametrize(
    "changes",
    [{"routing": "power_law:1.2"}, {"routing": "loads:0123456789ab", "shares": [[0.25] * 4] * 2}],
)
def test_uneven_loads_fill_what_is_expected(changes: dict[str, Any]) -> None:
    """A row has its law's blocks and active experts; rows with even loads are unchanged.

    A frame without a column of shares has no uneven row.
    """
    sizes = {"experts": 4, "top_k": 2, "batch": 3}
    question = {**MOE, **sizes, **changes}
    shares = question.pop("shares", None)
    rows = facts_of(question, {**MOE, **sizes})
    if shares:
        rows = rows.with_columns(pl.Series("shares", [shares, None]))
    n = np.array([[1.0, 5.0, 40.0]] * 2)
    features = moe_features(rows, n, triton=True)
    law = spread_of(changes["routing"], shares)
    assert law is not None
    tokens = (3, 15, 120)
    blocks, awake = blocks_of(features, np.full(n.shape, 16.0)), active_experts(features)
    assert blocks[0].tolist() == [law.blocks(4, 2, token, 16) for token in tokens]
    assert awake[0].tolist() == [law.awake(4, 2, token) for token in tokens]
    assert blocks[1].tolist() == [4, 4, 16]
    assert awake[1].tolist() == [4, 4, 4]


def test_pairs_that_are_not_aligned_have_a_block_each() -> None:
    """Each unaligned pair has a block, but not under a power law, whose curves shared blocks."""
    sizes = {"experts": 64, "top_k": 2}
    loads, law = "loads:0123456789ab", "power_law:1.2"
    names = ("skewed", "balanced", loads, law)
    rows = facts_of(*({**MOE, **sizes, "routing": name} for name in names))
    shares = [[1 / 4] * 4 + [0.0] * 60]
    rows = rows.with_columns(pl.Series("shares", [None, None, shares, None]))
    n = np.array([[1.0, 5.0, 8.0]] * len(names))
    features = moe_features(rows, n, triton=True) | {"unaligned": np.ones(n.shape)}
    blocks = blocks_of(features, np.full(n.shape, 16.0))
    assert blocks[:3].tolist() == [[2, 10, 16]] * 3
    spread = spread_of(law)
    assert spread is not None
    assert blocks[3].tolist() == [spread.blocks(64, 2, pairs, 16) for pairs in (1, 5, 8)]


@given(values=constants(MOE_LIBRARY), n=st.integers(1, 4096))
def test_a_library_takes_its_best_tile(values: dict[str, float], n: int) -> None:
    """A library is as fast as the best row tile of 16 to 128, with 128 columns and K 64."""
    features = with_loads(arrays([n], **H100, **LAYER))
    latency_us = MOE_LIBRARY.latency_us(features, values, "best_tile")[0, 0]
    even = values | {"narrow_k": 1.0, "half_k": 1.0, "load_us": 0.0}
    tile_us = [timed([n], even, tile, block_k=64)[0] for tile in (16, 32, 64, 128)]
    assert latency_us == pytest.approx(min(tile_us), rel=1e-12)


LAYERS = st.fixed_dictionaries(
    {
        "n": st.integers(1, 4096),
        "active": st.integers(1, 256),
        "pairs": st.integers(1, 30000),
        "blocks": st.integers(1, 3000),
        "d_model": st.sampled_from([2048, 2880, 7168]),
        "d_ff": st.sampled_from([384, 768, 2048]),
        "matrices": st.sampled_from([2, 3]),
        "weight_bytes": st.sampled_from([0.53125, 1.0, 2.0]),
        "element_bytes": st.sampled_from([1.0, 2.0]),
        "pass_bytes": st.sampled_from([0.0, 1e7]),
        "eager": st.sampled_from([0, 1]),
        "block_m": st.sampled_from([16, 64, 128]),
        "block_n": st.sampled_from([32, 128, 256]),
        "block_k": st.sampled_from([32, 64, 128, 256]),
        "num_warps": st.sampled_from([4, 8]),
        "num_stages": st.sampled_from([1, 2, 4]),
    }
)


@given(values=constants(MOE_TRITON), layer=LAYERS)
def test_a_layer_takes_what_its_blocks_and_its_bytes_take(
    values: dict[str, float], layer: dict[str, float]
) -> None:
    """T equals a scalar formula: compute or L2, memory bandwidth, and waiting for loads.

    An expert's columns and depth are padded to whole blocks; a gate doubles the up product.
    """
    facts = H100 | {"sm": 90, "smem_bytes": 228 * 1024} | layer
    features = arrays([int(facts.pop("n"))], **facts)
    if not facts["eager"]:
        del features["eager"]
    d_model, d_ff, stored = facts["d_model"], facts["d_ff"], facts["weight_bytes"]
    rows, wide, deep = (facts[f"block_{name}"] for name in "mnk")
    count, pairs, sms = facts["blocks"], facts["pairs"], facts["sms"]
    step = int(deep * stored)
    slower = values["narrow_k"] if step <= 64 else values["half_k"] if step <= 128 else 1.0
    up = (facts["matrices"] - 1) * d_ff
    tiles = [int(-(-columns // wide)) for columns in (up, d_model)]
    depths = [-(-depth // deep) * deep for depth in (d_model, d_ff)]
    elements = count * wide * sum(tile * depth for tile, depth in zip(tiles, depths, strict=True))
    fed = values["tflop_s_per_sm"] * 1e6 * sms
    compute = slower * 2 * rows * elements * (1 / facts["phi"] + 1 / fed)
    inputs = pairs * (d_model * tiles[0] + d_ff * tiles[1])
    loaded = stored * elements + facts["element_bytes"] * inputs
    on_chip = max(compute, loaded / (values["l2_over_memory"] * facts["beta"]))
    on_chip += values["tile_us"] * count * sum(tiles) / sms
    read = slower * stored * facts["matrices"] * d_model * d_ff * facts["active"]
    tokens = features["tokens"].item()
    moved = 2 * (tokens * d_model + pairs * (3 * d_model + 2 * up + 2 * d_ff))
    moved += facts["pass_bytes"]
    beta = values["bandwidth_share"] * facts["beta"]
    parts = [on_chip, (read + values["routed_traffic"] * moved) / beta]
    places = blocks_per_sm(features).item() * sms
    ahead = max(1, facts["num_stages"] - 1)
    waves = [-(-count * tile // places) for tile in tiles]
    follow = [depth / deep / ahead + 1 for depth in (d_model, d_ff)]
    parts.append(values["load_us"] * (waves[0] * follow[0] + waves[1] * follow[1]))
    p, most = values["sharpness"], max(parts)
    core = most * sum((part / most) ** p for part in parts) ** (1 / p)
    fixed = 0.0 if facts["eager"] else values["fixed_us"]
    assert latency_us(features, values, "").item() == pytest.approx(fixed + core)
