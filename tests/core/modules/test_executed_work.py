"""Executed work: closed forms, worked examples, and counts of every tile, row and key."""

from typing import Any

import pytest
from backends.adapters.shapes import make_moe, make_sdpa
from conftest import make_setting
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.attention import attention_work
from nearfree.core.modules.dense_ffn import dense_work, gemm_work
from nearfree.core.modules.moe_ffn import moe_work
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.setting import Setting

SMALL = st.integers(1, 40)


@given(SMALL, SMALL, SMALL, SMALL)
def test_dense_work_is_the_papers(batch: int, n: int, d_model: int, d_ff: int) -> None:
    """A dense FFN does 4 b N d_model d_ff FLOPs; both weights and all rows move once."""
    work = dense_work(make_setting(batch=batch, d_model=d_model, d_ff=d_ff), n, "rule")
    assert work.flop_logical == work.flop_executed == 4 * batch * n * d_model * d_ff
    matrices = [(d_model, d_ff), (d_ff, d_model)]
    elements = sum(
        inputs * outputs + batch * n * (inputs + outputs) for inputs, outputs in matrices
    )
    assert work.bytes_compulsory == 4 * elements
    assert (work.blocks, work.tiles, work.waves, work.basis) == (None, None, None, "rule")


@given(SMALL, SMALL, SMALL, SMALL)
def test_a_product_and_a_gated_ffn_move_each_row_and_weight(
    batch: int, n: int, d_model: int, d_ff: int
) -> None:
    """One product has one matrix; a gated FFN three, and a pass of its own joins its rows.

    The pass reads gate and up and writes one row, which the third product reads.
    """
    tokens = batch * n
    product = gemm_work(make_setting(module="gemm", batch=batch, d_model=d_model, d_ff=d_ff), n, "")
    assert product.flop_logical == product.flop_executed == 2 * tokens * d_model * d_ff
    assert product.bytes_compulsory == 4 * (d_model * d_ff + tokens * (d_model + d_ff))
    gated = dense_work(make_setting(batch=batch, d_model=d_model, d_ff=d_ff, gated=True), n, "")
    assert gated.flop_logical == gated.flop_executed == 6 * tokens * d_model * d_ff
    rows = tokens * (d_model + 2 * d_ff) + tokens * (2 * d_ff + d_ff) + tokens * (d_ff + d_model)
    assert gated.bytes_compulsory == 4 * (3 * d_model * d_ff + rows)


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_bytes_follow_the_dtype(dtype: str, size: int) -> None:
    """Each element counts with the bytes of its dtype, in every module."""
    works = [
        dense_work(make_setting(dtype=dtype), 1, ""),
        moe_work(make_moe(dtype=dtype), [1, 1, 0, 0, 0, 0], ""),
        attention_work(make_sdpa(dtype=dtype), 1, "", tile_rows=1),
    ]
    elements = (
        2 * 64 * 128 + 2 * (64 + 128),
        2 * 3 * 32 * 24 + 2 * 32 + 2 * (2 * 32 + 6 * 24),
        2 * 2 * (2 * 41 + 4) * 16,
    )
    assert [work.bytes_compulsory for work in works] == [size * count for count in elements]


def test_stored_elements_count_in_their_own_format() -> None:
    """Weights, keys and values count in their stored format with its scales; rows do not.

    An int4 element with a 16-bit scale for 128 of them takes 4.125 bits.
    """
    dense = dense_work(make_setting(weights="int4"), 1, "").bytes_compulsory
    assert dense == 2 * 64 * 128 * 4.125 / 8 + 4 * 2 * (64 + 128)
    experts = moe_work(make_moe(weights="float8"), [1, 1, 0, 0, 0, 0], "").bytes_compulsory
    assert experts == 2 * 3 * 32 * 24 + 4 * (2 * 32 + 2 * (2 * 32 + 6 * 24))
    cached = attention_work(make_sdpa(kv_dtype="float8"), 1, "", tile_rows=1).bytes_compulsory
    assert cached == 2 * 2 * (2 * 41 + 4 * 4) * 16


def test_routing_of_the_paper() -> None:
    """Seven tokens on 3 of 8 experts: balanced spreads 21 pairs evenly, skewed fills three."""
    setting = make_moe(experts=8, top_k=3)
    assert routed_pairs(setting, 7) == [3, 3, 3, 3, 3, 2, 2, 2]
    skewed = make_moe(experts=8, top_k=3, batch=7, routing="skewed")
    assert routed_pairs(skewed, 1) == [7, 7, 7, 0, 0, 0, 0, 0]


def test_a_padded_moe() -> None:
    """Pairs of 17, 3 and 0 in blocks of 16 are two blocks, one block and none."""
    work = moe_work(make_moe(experts=3), [17, 3, 0], "", block_rows=16)
    assert (work.blocks, work.block_rows) == (3, 16)
    assert work.flop_executed == 6 * 48 * 32 * 24
    assert work.flop_logical == 6 * 20 * 32 * 24
    assert work.bytes_compulsory == 4 * (2 * 3 * 32 * 24 + 10 * 2 * 32 + 20 * (2 * 32 + 6 * 24))
    assert (work.tiles, work.waves) == (None, None)


@given(st.lists(st.integers(0, 90), min_size=1, max_size=12), st.integers(1, 64))
def test_padding_is_less_than_a_block_an_expert(pairs: list[int], block: int) -> None:
    """Each expert adds less than a block; without a block nothing is added."""
    setting = make_moe(experts=len(pairs), top_k=1)
    bare, padded = moe_work(setting, pairs, ""), moe_work(setting, pairs, "", block_rows=block)
    per_row = 6 * 32 * 24
    touched = sum(count > 0 for count in pairs)
    assert bare.flop_executed == bare.flop_logical == padded.flop_logical == per_row * sum(pairs)
    assert 0 <= padded.flop_executed - bare.flop_executed <= per_row * touched * (block - 1)
    assert padded.bytes_compulsory == bare.bytes_compulsory
    assert (bare.blocks, bare.block_rows) == (None, None)


def test_blocks_that_are_not_aligned() -> None:
    """A kernel that gives each pair a block runs as many blocks as there are pairs."""
    pairs = [2, 2, 1]
    work = moe_work(make_moe(experts=3), pairs, "", block_rows=16, blocks=sum(pairs))
    assert (work.blocks, work.flop_executed) == (5, 6 * 5 * 16 * 32 * 24)
    assert work.flop_logical == 6 * 5 * 32 * 24


@pytest.mark.parametrize(
    ("columns", "sms", "tiles", "waves"),
    [(16, 4, 9, 2.25), (48, 3, 3, 1.0), (20, None, 9, None), (None, 4, None, None)],
)
def test_tiles_of_the_first_projection(
    columns: int | None, sms: int | None, tiles: int | None, waves: float | None
) -> None:
    """Tiles are blocks times the columns of [pairs, 2 d_ff]; waves are tiles over the SMs."""
    work = moe_work(make_moe(experts=3), [17, 3, 0], "", block_rows=16, columns=columns, sms=sms)
    assert (work.tiles, work.waves) == (tiles, waves)


def test_work_without_blocks_has_no_tiles() -> None:
    """Where nothing is padded there are no blocks, so no tiles and no waves."""
    work = moe_work(make_moe(experts=3), [17, 3, 0], "", columns=16, sms=4)
    assert (work.blocks, work.tiles, work.waves) == (None, None, None)


@st.composite
def attended(draw: st.DrawFn) -> tuple[Setting, int, dict[str, Any]]:
    """Draw an attention setting, N, and how a kernel tiles it."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    setting = make_sdpa(
        batch=draw(st.integers(1, 2)),
        context=draw(st.integers(1, 60)),
        kv_heads=kv_heads,
        heads=kv_heads * group,
        head_dim=draw(st.sampled_from([1, 8])),
        mask=draw(st.sampled_from([None, "causal", "block"])),
    )
    tiling = {
        "tile_rows": draw(st.integers(1, 40)),
        "tile_keys": draw(st.integers(1, 40)),
        "group": draw(st.sampled_from([1, group])),
        "padded": draw(st.booleans()),
        "causal_skip": draw(st.booleans()),
    }
    return setting, draw(st.integers(1, 30)), tiling


def attends_to(setting: Setting, query: int, key: int) -> bool:
    """Return whether a new position attends to a key: in a block it attends to all."""
    return setting.mask == "block" or key <= (setting.context or 0) + query


def executed_pairs(setting: Setting, n: int, tiling: dict[str, Any]) -> tuple[int, int]:
    """Return the row-key pairs of a head's row axis that are computed, and its tiles, by hand."""
    context, group = setting.context or 0, tiling["group"]
    rows, keys = list(range(n * group)), range(context + n)
    pairs = tiles = 0
    for first_row in range(0, len(rows), tiling["tile_rows"]):
        tile = rows[first_row : first_row + tiling["tile_rows"]]
        tiles += 1
        for start in range(0, len(keys), tiling["tile_keys"]):
            visible = any(attends_to(setting, row // group, start) for row in tile)
            if visible or not tiling["causal_skip"]:
                row_count = tiling["tile_rows"] if tiling["padded"] else len(tile)
                pairs += row_count * tiling["tile_keys"]
    return pairs, tiles


@given(attended())
def test_executed_flops_are_those_of_every_visible_tile(
    case: tuple[Setting, int, dict[str, Any]],
) -> None:
    """Executed FLOPs are 4 head_dim a computed row and key, over all tiles, heads and requests."""
    setting, n, tiling = case
    work = attention_work(setting, n, "", **tiling)
    pairs, tiles = executed_pairs(setting, n, tiling)
    axes = setting.batch * (setting.heads or 0) // tiling["group"]
    assert work.flop_executed == 4 * (setting.head_dim or 0) * axes * pairs
    assert (work.blocks, work.block_rows) == (axes * tiles, tiling["tile_rows"])


@given(attended())
def test_logical_flops_are_those_of_visible_keys(
    case: tuple[Setting, int, dict[str, Any]],
) -> None:
    """Logical FLOPs are 4 head_dim a query head and visible key, whatever the tiles are."""
    setting, n, tiling = case
    work = attention_work(setting, n, "", **tiling)
    context, heads, head_dim = setting.context or 0, setting.heads or 0, setting.head_dim or 0
    visible = sum(
        attends_to(setting, query, key) for query in range(n) for key in range(context + n)
    )
    assert work.flop_logical == 4 * head_dim * setting.batch * heads * visible
    assert work.flop_executed >= work.flop_logical
    cached = 2 * (setting.kv_heads or 0) * (context + n)
    assert work.bytes_compulsory == 4 * setting.batch * head_dim * (cached + 2 * heads * n)


@given(attended())
def test_tiles_of_one_row_and_key_waste_nothing(case: tuple[Setting, int, dict[str, Any]]) -> None:
    """With one row and one key a tile, executed and logical work are equal."""
    setting, n, _ = case
    work = attention_work(setting, n, "", tile_rows=1)
    assert work.flop_executed == work.flop_logical


@pytest.mark.parametrize(("splits", "tiles", "waves"), [(1, 16, 2.0), (3, 48, 6.0)])
def test_splits_are_tiles_of_their_own(splits: int, tiles: int, waves: float) -> None:
    """Keys that are split into parts give as many times the thread blocks, and the same FLOPs."""
    split, unsplit = (
        attention_work(make_sdpa(), 33, "", tile_rows=32, splits=parts, sms=8)
        for parts in (splits, 1)
    )
    assert (split.tiles, split.waves, split.blocks) == (tiles, waves, 16)
    assert split.flop_executed == unsplit.flop_executed


def test_a_cpu_has_no_waves() -> None:
    """Without SMs there are neither thread blocks nor waves."""
    work = attention_work(make_sdpa(), 33, "", tile_rows=32)
    assert (work.tiles, work.waves) == (None, None)
