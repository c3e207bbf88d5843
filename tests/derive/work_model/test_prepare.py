"""Questions sorted by family, each prepared or refused once."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.prepare import Prepared, Refused, prepare
from nearfree.log.names import Layout

from derive.questions import ATTENTION, MOE, RESOLVER
from derive.work_model.forms import MIXED, OF_FAMILY, PREFILL, facts_of, prepared

TRITON = OF_FAMILY["moe_triton"]
QUESTIONS = st.fixed_dictionaries(
    {
        "platform": st.sampled_from(["h20", "a100", "mars", "cpu"]),
        "dtype": st.sampled_from(["bfloat16", "float16", "float8", "float32"]),
        "batch": st.sampled_from([1, 3, 64]),
        "baseline": st.sampled_from([1, 2, 128]),
        "backend_version": st.sampled_from([None, "0.14.0", "9.9.9"]),
        "kernel": st.sampled_from([None, "triton", "cutlass", "flash"]),
    }
)
ODD: list[dict[str, Any]] = [
    {"module": "model", "backend": "vllm"},
    {**MOE, "routing": "power_law"},
    {**ATTENTION, "heads": 3, "kv_heads": 2},
    {**ATTENTION, "backend": "flash_attn_3", "api": "varlen"},
    {**TRITON, "top_k": 300},
]


@given(st.lists(st.tuples(st.sampled_from([*MIXED, *ODD]), QUESTIONS), max_size=6))
@settings(deadline=None, max_examples=60)
def test_each_question_is_there_once(drawn: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Each question either has arrays or is refused with a reason."""
    facts = facts_of(*({**question, **changes} for question, changes in drawn))
    keys = []
    for part in prepare(facts, RESOLVER):
        keys += part.rows["asked"].to_list()
        if isinstance(part, Refused):
            assert part.rows["refusal"].null_count() == 0
            continue
        shape = part.counts.shape
        assert part.features["n"].shape == shape
        assert all(
            feature.shape in (shape, (shape[0], 1))
            for feature in part.features.values()
            if isinstance(feature, np.ndarray)
        )
        grids = [n[own].tolist() for n, own in zip(part.features["n"], part.counts, strict=True)]
        assert grids == part.rows["grid"].to_list()
    assert sorted(keys) == list(range(len(drawn)))


def test_modules_of_one_form_do_not_mix() -> None:
    """Products and Dense FFNs have one form, but are in different parts."""
    parts = prepared(*MIXED, *MIXED)
    modules = [part.rows["module"].unique().to_list() for part in parts]
    assert all(len(module) == 1 for module in modules)
    assert sorted(part.family.name for part in parts) == sorted([*OF_FAMILY, "gemm"])


def test_shorter_grids_repeat_their_end() -> None:
    """Each row has a grid of its own length; the points that fill it up are not counted."""
    rows = facts_of(PREFILL, PREFILL)
    short = rows.with_columns(grid=rows["grid"].list.head(3).gather([0]).append(rows["grid"][1:]))
    (part,) = (part for part in prepare(short, RESOLVER) if isinstance(part, Prepared))
    assert part.features["n"][0].tolist() == [1, 2, 4, 4, 4, 4, 4, 4]
    assert part.counts.sum(axis=1).tolist() == [3, 8]


def test_large_asks_come_in_parts() -> None:
    """Parts hold some thousand rows at most, and no row is lost between them."""
    parts = prepared(*[PREFILL] * 5, at_once=2)
    assert [part.rows["asked"].to_list() for part in parts] == [[0, 1], [2, 3], [4]]


def test_blocks_are_the_release_s() -> None:
    """Blocks follow b N by the rules of the release, row by row."""
    (part,) = prepared(TRITON, {**TRITON, "batch": 64, "baseline": 1})
    assert part.features["block_m"].tolist() == [
        [16, 16, 16, 16, 64, 64, 64, 64], [16, 16, 16, 64, 64, 64, 64, 64]
    ]  # fmt: skip
    assert part.features["tokens"][1].tolist() == [64 * 2**step for step in range(8)]


def test_pairs_that_a_release_does_not_align_share_no_block() -> None:
    """Up to E / 4 pairs vLLM 0.14.0 aligns none; skewed, k experts have b N blocks each, not one.

    With even loads every expert has one pair at most, so that nothing changes; from there on pairs
    share blocks of 16.
    """
    skewed = {**TRITON, "routing": "skewed"}
    (part,) = prepared(skewed, {**skewed, "batch": 3}, {**TRITON, "baseline": 1})
    assert part.features["unaligned"].tolist() == [
        [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]
    ]  # fmt: skip
    blocks = part.features["blocks"]
    assert blocks[0, :6].tolist() == [8, 16, 32, 64, 8, 16]
    assert blocks[1, :4].tolist() == [24, 48, 8, 16]
    assert blocks[2, :5].tolist() == [8, 16, 32, 64, 128]
    assert part.features["active"][0].tolist() == [8] * 8


def test_tiles_are_the_release_s() -> None:
    """Tiles and packing over a cache are those of FlashAttention-2's call with a cache."""
    (part,) = prepared({**ATTENTION, "kv_heads": 8}, {**ATTENTION, "backend": "flashinfer"})
    assert part.features["tile_rows"].tolist() == [
        [64.0] * 8, [16, 16, 16, 16, 16, 64, 64, 128]
    ]  # fmt: skip
    assert part.features["rows_per_position"].shape == (2, 8)


@pytest.mark.parametrize(
    ("kernel", "packed"), [("flash_attn", 4.0), ("FA3", 4.0), (None, 1.0), ("default", 1.0)]
)
def test_prefill_kernels_pack_by_their_name(kernel: str | None, packed: float) -> None:
    """Without a cache the kernel's name says whether query heads share a row axis."""
    (part,) = prepared({**PREFILL, "kv_heads": 8, "kernel": kernel})
    assert part.features["rows_per_position"].tolist() == [[packed] * 8]
    assert part.features["tile_rows"].tolist() == [[128.0] * 8]


def test_without_rules_there_is_a_reason(layout: Layout) -> None:
    """In a log without rules only forms that need rules refuse, and name them."""
    parts = list(prepare(facts_of(*MIXED), Resolver(layout)))
    refused = [row for part in parts if isinstance(part, Refused) for row in part.rows.rows()]
    order = list(OF_FAMILY)
    assert sorted(refused) == sorted([
        (order.index("moe_triton"), "no rules of vllm 0.14.0 in the log"),
        (order.index("attention_cached"), "no rules of flash-attn 2.8.3 in the log"),
    ])  # fmt: skip
