"""Many calls at once say what each says alone, at every point of every recorded release."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.modules.attention import AttentionQuestion
from nearfree.derive.granularity.tile_sizes import tile_sizes
from nearfree.errors import NearfreeError

from derive.questions import RESOLVER

RELEASES = (
    ("flash_attn", "2.8.3"),
    ("flash_attn_3", "0.0.34"),
    ("flashinfer_fa2", "0.5.3"),
    ("flashinfer_fa2", "0.6.13"),
    ("flashinfer_fa2", "0.7.2.post1"),
    ("flashinfer_fa3", "0.6.13"),
)
CALL = AttentionQuestion(
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
shapes = st.fixed_dictionaries(
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


def alone(asked: AttentionQuestion, positions: list[int]) -> Any:
    """Return what one call says at each N, or the error it ends in."""
    try:
        steps = RESOLVER.attention(asked)
        tiles = [steps.at(n) for n in positions]
    except NearfreeError as error:
        return str(error)
    return tuple(t.tile for t in tiles), tuple(t.rows_per_position for t in tiles)


@pytest.mark.parametrize(("backend", "version"), RELEASES)
@settings(deadline=None)
@given(shape=shapes, points=calls, grid=grids)
def test_many_calls_say_what_each_says_alone(
    backend: str,
    version: str,
    shape: dict[str, Any],
    points: list[tuple[int, int]],
    grid: list[int],
) -> None:
    """Rows of a tile and of a position are the same, and so is the error of a call."""
    call = replace(CALL, backend=backend, backend_version=version, **shape)
    asked = [replace(call, batch=batch, context=context) for batch, context in points]
    sizes, errors = tile_sizes(RESOLVER, asked, np.array([grid] * len(asked), np.int64))
    for place, each in enumerate(asked):
        error = errors[place]
        rows, taken = (tuple(of.tolist()) for of in sizes[:, place])
        assert alone(each, grid) == ((rows, taken) if error is None else str(error))


def test_calls_of_several_releases_come_back_in_their_order() -> None:
    """Calls are sorted by what they share, and their answers put back."""
    asked = [
        replace(CALL, backend=backend, backend_version=version, batch=batch)
        for batch in (1, 8)
        for backend, version in RELEASES[:4]
    ]
    sizes, errors = tile_sizes(RESOLVER, asked, np.array([[1, 17, 200]] * len(asked)))
    assert errors == [None] * len(asked)
    for place, each in enumerate(asked):
        rows, taken = alone(each, [1, 17, 200])
        assert (tuple(sizes[0, place]), tuple(sizes[1, place])) == (rows, taken)


def test_one_point_without_a_tile_refuses_its_call_alone() -> None:
    """A capability without rules, or N past a captured graph, is no answer of the others."""
    graph = replace(CALL, backend="flashinfer_fa2", backend_version="0.6.13", cuda_graph=True)
    asked = [replace(graph, most=100), replace(graph, most=200), replace(CALL, dtype="float8")]
    sizes, errors = tile_sizes(RESOLVER, asked, np.array([[1, 150]] * 3))
    assert "captured for 100" in str(errors[0])
    assert errors[1] is None
    assert "float8" in str(errors[2])
    assert sizes[:, 1].tolist() == [[128, 128], [8, 8]]


def test_no_calls() -> None:
    """Nothing is asked, and nothing is said."""
    sizes, errors = tile_sizes(RESOLVER, [], np.zeros((0, 0), np.int64))
    assert sizes.shape == (2, 0, 0)
    assert errors == []
