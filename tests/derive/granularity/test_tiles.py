"""Points of one kind have one tile, path and evidence, in every recorded release."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.derive.granularity.tiles import Call
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.packages import reader
from nearfree.sources.record import recorded_extraction

from derive.questions import LOG

RELEASES = (
    ("flash-attn", "2.8.3"),
    ("xformers", "0.0.34"),
    ("flash-attn-4", "4.0.0b36"),
    ("flashinfer-python", "0.5.3"),
    ("flashinfer-python", "0.6.13"),
    ("flashinfer-python", "0.7.2.post1"),
)
queries = st.builds(
    lambda kv_heads, group, page, **rest: AttentionQuery(
        heads=kv_heads * group, kv_heads=kv_heads, paged=page is not None, page_size=page, **rest
    ),
    kv_heads=st.sampled_from([1, 4, 8]),
    group=st.sampled_from([1, 4, 7]),
    page=st.sampled_from([None, None, 16, 128]),
    head_dim=st.sampled_from([64, 100, 128, 192, 256, 512]),
    sm=st.sampled_from([80, 89, 90, 100, 120, None]),
    sms=st.sampled_from([78, 132, None]),
    causal=st.booleans(),
    api=st.sampled_from(["kvcache", "varlen", "dense"]),
    backend=st.sampled_from(["fa2", "fa3"]),
    capture_positions=st.sampled_from([None, 300]),
)
points = st.lists(
    st.tuples(st.integers(1, 200), st.integers(0, 40_000), st.integers(1, 300)),
    min_size=1,
    max_size=12,
)


def choice(tile: Tile) -> tuple[Any, ...]:
    """Return all of a tile but the number of tiles."""
    return tile.path, tile.tile, tile.rows_per_position, tile.branches


# vLLM's asks for the page size at many positions, so it is on no surface without.
@pytest.mark.parametrize(("package", "version"), [*RELEASES, ("vllm-fa3", "0.20.2")])
@settings(deadline=None)
@given(query=queries, points=points)
def test_points_of_a_kind_have_one_tile(
    package: str, version: str, query: AttentionQuery, points: list[tuple[int, int, int]]
) -> None:
    """The answer of a kind is that of each of its points alone, branches included."""
    call = _ready(package, version, query)
    batch, context, n = (np.array(column, np.int64) for column in zip(*points, strict=True))
    codes, tiles = call.kinds(batch, context, n)
    for place, code in enumerate(codes.tolist()):
        tile = tiles[code]
        if tile is None:
            continue
        alone = _ready(package, version, replace(query, batch=int(batch[place])))
        assert choice(tile) == choice(alone.tile(int(context[place]), int(n[place])))


@pytest.mark.parametrize(("package", "version"), RELEASES)
def test_a_surface_has_few_kinds(package: str, version: str) -> None:
    """Thousands of points are asked as some hundreds at most, none of them alone."""
    query = AttentionQuery(heads=32, kv_heads=4, head_dim=128, sm=90, sms=132)
    axes = np.meshgrid([1, 2, 64], [100, 4096, 65536], np.arange(1, 301), indexing="ij")
    codes, tiles = _ready(package, version, query).kinds(*(axis.ravel() for axis in axes))
    assert len(codes) == 2700
    assert len(tiles) <= 900
    assert None not in tiles


def test_few_rows_tell_no_more_kinds_apart() -> None:
    """Of a rule that is given positions besides what a call passes on, its comparisons count."""
    query = AttentionQuery(
        heads=64, kv_heads=8, head_dim=64, sm=90, sms=132, paged=True, page_size=16
    )
    n = np.tile(np.arange(1, 513), 2)
    codes, tiles = _ready("vllm-fa3", "0.33.0", query).kinds(
        np.ones_like(n), np.repeat([128, 4096], 512), n
    )
    assert [tiles[code].tile for code in codes[[7, 8]]] == [64, 192]  # type: ignore[union-attr]
    assert len(tiles) <= 20


def test_large_numbers_are_asked_point_by_point() -> None:
    """Numbers too large for the vectorised check are not grouped."""
    query = AttentionQuery(heads=8, kv_heads=8, head_dim=128, sm=90, sms=132)
    call = _ready("flash-attn", "2.8.3", query)
    one = np.ones(2, np.int64)
    for batch, context, n in ((one << 40, one, one), (one, one << 62, one), (one, one, one << 21)):
        assert call.kinds(batch, context, n)[1] == [None]


_RULES: dict[tuple[str, str], Any] = {}


def _ready(package: str, version: str, query: AttentionQuery) -> Call:
    if (package, version) not in _RULES:
        extraction = recorded_extraction(LOG, package, version)
        assert extraction is not None
        _RULES[package, version] = extraction.by_name()
    rules, module = _RULES[package, version], reader(package)
    return Call(module=module, rules=rules, query=query)  # type: ignore[arg-type]
