"""Tiles and splits of attention calls, by the recorded releases."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.modules.attention import AttentionQuestion
from nearfree.derive.granularity.steps import tile_evidence
from nearfree.derive.granularity.tile_grid import tile_sizes
from nearfree.errors import EvidenceError, NearfreeError

from derive.questions import RESOLVER

CALL = AttentionQuestion(
    backend="flash_attn_2",
    backend_version=None,
    dtype="bfloat16",
    batch=1,
    context=4096,
    heads=32,
    kv_heads=32,
    head_dim=128,
    api=None,
    page_size=None,
    cuda_graph=False,
    most=256,
    sm=90,
    sm_count=78,
)


def call(**changes: Any) -> AttentionQuestion:
    """Return the paper's call with some of its fields changed."""
    return replace(CALL, **changes)


def alone(call: AttentionQuestion, positions: list[int]) -> Any:
    """Return the answer of one call at each N, or its error."""
    try:
        steps = RESOLVER.attention(call)
        tiles = [steps.at(n) for n in positions]
    except NearfreeError as error:
        return str(error)
    sizes = ((t.tile, t.rows_per_position, int(t.unsplit)) for t in tiles)
    return tuple(zip(*sizes, strict=True))


@pytest.mark.parametrize(
    ("changes", "tile", "m_attn"),
    [
        ({}, 64, 64),
        ({"backend": "flashinfer"}, 16, 16),
        ({"backend": "flashinfer", "kv_heads": 8}, 16, 4),
        ({"backend": "flashinfer", "batch": 8, "context": 128}, 16, 16),
        ({"backend": "flash_attn_3", "backend_version": "0.0.34", "api": "varlen"}, 128, 128),
    ],
)
def test_the_tile_ends_where_size_or_count_changes(
    changes: dict[str, Any], tile: int, m_attn: int
) -> None:
    """FlashInfer packs query heads, so g of them share its first 16 rows."""
    steps = RESOLVER.attention(call(**changes))
    first, last, after = (steps.at(n) for n in (1, m_attn, m_attn + 1))
    assert (first.tile, first.tiles) == (last.tile, last.tiles) == (tile, 1)
    assert (after.tile, after.tiles) != (tile, 1)
    assert steps.last_alike() == m_attn


def test_a_cuda_graph_is_looked_at_up_to_its_capture() -> None:
    """The tile follows the captured positions, so nothing changes below them."""
    steps = RESOLVER.attention(call(backend="flashinfer", cuda_graph=True, most=200))
    assert steps.at(1).tile == 128
    assert steps.last_alike() == 128


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        (
            {"backend": "flash_attn", "backend_version": "2.8.3", "context": 0},
            r"which call of flash_attn .*api",
        ),
        ({"backend": "vllm"}, "no rules of the attention kernels of vllm"),
        ({"dtype": "float8"}, "no tile rules of flash-attn for float8"),
        (
            {"kv_dtype": "float8"},
            "flash-attn has no kernel .* float8 cache: ask with .* or --attention flashinfer",
        ),
        (
            {"kv_dtype": "int8", "backend": "flashinfer"},
            r"no tile rules of flashinfer .* a int8 cache are read: ask with .* bfloat16\.",
        ),
        (
            {
                "kv_dtype": "float8",
                "backend": "flash_attn_4",
                "backend_version": "4.0.0b36",
                "sm": 100,
            },
            "no tile rules of flash-attn-4 for bfloat16 over a float8 cache are read: ask with",
        ),
        (
            {"kv_dtype": "float8", "backend": "flashinfer_fa3", "backend_version": "0.6.13"},
            "flashinfer-fa3 has no kernel for bfloat16 over a float8 cache",
        ),
        ({"sm_count": None}, "number of SMs"),
        ({"kv_heads": 5}, "32 heads are no multiple of 5 kv_heads"),
    ],
)
def test_missing_fields_of_a_call_are_named(changes: dict[str, Any], missing: str) -> None:
    """A call without a required field is refused with the field's name."""
    with pytest.raises(EvidenceError, match=missing):
        RESOLVER.attention(call(**changes)).last_alike()


@pytest.mark.parametrize(("cache", "tile"), [(None, 64), ("bfloat16", 64), ("float8", 16)])
def test_the_bytes_of_a_cache_are_asked_for(cache: str | None, tile: int) -> None:
    """Since 0.7 FlashInfer chooses by what a step of keys takes in shared memory."""
    attention_call = call(
        backend="flashinfer_fa2",
        backend_version="0.7.2.post1",
        kv_dtype=cache,
        head_dim=384,
        sm=89,
    )
    assert RESOLVER.attention(attention_call).at(1).tile == tile


def test_the_tile_over_a_float8_cache_is_that_of_common_heads() -> None:
    """FlashInfer's fa2 kernels unpack the keys: the tile of usual heads stays."""
    for version in ("0.5.3", "0.6.13", "0.7.2.post1"):
        own = call(backend="flashinfer_fa2", backend_version=version)
        eight = replace(own, kv_dtype="float8")
        for n in (1, 16, 17, 128):
            assert RESOLVER.attention(eight).at(n) == RESOLVER.attention(own).at(n)


def test_over_a_cache_the_call_is_that_for_a_cache() -> None:
    """FlashAttention by its own name and version answers as the paper's backend."""
    printed = RESOLVER.attention(call(backend="flash_attn_2"))
    named = RESOLVER.attention(call(backend="flash-attn", backend_version="2.8.3"))
    for n in (1, 65):
        assert (named.at(n), named.evidence(n)) == (printed.at(n), printed.evidence(n))
    assert named.last_alike() == printed.last_alike() == 64


RELEASES = (
    ("flash_attn", "2.8.3"),
    ("flash_attn_3", "0.0.34"),
    ("flashinfer_fa2", "0.5.3"),
    ("flashinfer_fa2", "0.6.13"),
    ("flashinfer_fa2", "0.7.2.post1"),
    ("flashinfer_fa3", "0.6.13"),
)
CACHED_CALL = AttentionQuestion(
    backend="flash_attn",
    backend_version="2.8.3",
    dtype="bfloat16",
    batch=1,
    context=4096,
    heads=32,
    kv_heads=4,
    head_dim=128,
    api="kvcache",
    page_size=None,
    cuda_graph=False,
    most=300,
    sm=90,
    sm_count=132,
)
call_shapes = st.fixed_dictionaries(
    {
        "kv_heads": st.sampled_from([1, 4, 8, 28]),
        "heads": st.sampled_from([28, 56]),
        "head_dim": st.sampled_from([64, 100, 128, 192, 256, 512]),
        "api": st.sampled_from(["kvcache", "varlen", "dense", None]),
        "page_size": st.sampled_from([None, None, 1, 16, 128, 256]),
        "cuda_graph": st.booleans(),
        "most": st.sampled_from([40, 300]),
        "sm": st.sampled_from([80, 90, 90, 100, None]),
        "sm_count": st.sampled_from([78, 132, None]),
    }
)
contexts = st.integers(0, 3) | st.integers(4, 60_000)
large = st.integers(2**30, 2**64)
small = st.lists(st.tuples(st.integers(1, 300), contexts), min_size=1, max_size=4)
calls = small | st.lists(st.tuples(st.integers(1, 300), contexts | large), min_size=1, max_size=4)
grids = st.lists(st.integers(1, 300), min_size=3, max_size=3)


@pytest.mark.parametrize(("backend", "version"), RELEASES)
@settings(deadline=None)
@given(shape=call_shapes, points=calls, grid=grids)
def test_many_calls_at_once_answer_as_each_alone(
    backend: str,
    version: str,
    shape: dict[str, Any],
    points: list[tuple[int, int]],
    grid: list[int],
) -> None:
    """Rows of a tile and of a position, splits and errors are equal."""
    call = replace(CACHED_CALL, backend=backend, backend_version=version, **shape)
    calls = [replace(call, batch=batch, context=context) for batch, context in points]
    sizes, errors = tile_sizes(RESOLVER, calls, np.array([grid] * len(calls), np.int64))
    for place, single_call in enumerate(calls):
        error = errors[place]
        point_sizes = tuple(tuple(of.tolist()) for of in sizes[:, place])
        assert alone(single_call, grid) == (point_sizes if error is None else str(error))


def test_calls_of_several_releases_come_back_in_their_order() -> None:
    """Calls are sorted by what they share, and their answers put back."""
    calls = [
        replace(CACHED_CALL, backend=backend, backend_version=version, batch=batch)
        for batch in (1, 8)
        for backend, version in RELEASES[:4]
    ]
    sizes, errors = tile_sizes(RESOLVER, calls, np.array([[1, 17, 200]] * len(calls)))
    assert errors == [None] * len(calls)
    for place, call in enumerate(calls):
        assert tuple(tuple(of) for of in sizes[:, place]) == alone(call, [1, 17, 200])


def test_one_point_without_a_tile_refuses_its_call_alone() -> None:
    """A capability without rules, or N past a captured graph, is no answer of the others."""
    graph = replace(
        CACHED_CALL, backend="flashinfer_fa2", backend_version="0.6.13", cuda_graph=True
    )
    calls = [
        replace(graph, most=100),
        replace(graph, most=200),
        replace(CACHED_CALL, dtype="float8"),
    ]
    sizes, errors = tile_sizes(RESOLVER, calls, np.array([[1, 150]] * 3))
    assert "captured for 100" in str(errors[0])
    assert errors[1] is None
    assert "float8" in str(errors[2])
    assert sizes[:, 1].tolist() == [[128, 128], [8, 8], [0, 0]]


def test_no_calls() -> None:
    """An empty list of calls gives no answers."""
    sizes, errors = tile_sizes(RESOLVER, [], np.zeros((0, 0), np.int64))
    assert sizes.shape == (3, 0, 0)
    assert errors == []


def test_where_keys_are_split_is_what_stops_them_from_being() -> None:
    """Of the first call that splits none it is the line that sets splits for one position less."""
    call = replace(CACHED_CALL, backend="flash_attn", backend_version="2.8.3", batch=1)
    steps = RESOLVER.attention(replace(call, api="varlen", page_size=256))
    assert [steps.at(n).unsplit for n in (1, 2, 3)] == [False, True, True]
    assert tile_evidence(steps, 2).startswith("csrc/flash_attn/flash_api.cpp:317-317 (")
    assert tile_evidence(steps, 1) == steps.evidence(1)
    assert tile_evidence(steps, 3) == steps.evidence(3)
    cached = RESOLVER.attention(call)
    assert tile_evidence(cached, 2) == cached.evidence(2)
