"""The resolver for attention, on the recorded releases."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import json
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.sources.answers.granularity import attention_granularity
from nearfree.sources.answers.intervals import Granularity
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.packages import reader
from nearfree.sources.record import recorded_extraction

LOG = Layout(Path(__file__).parents[3] / "results")
H20: dict[str, Any] = {"sm": 90, "sms": 78}


def ask(package: str, version: str, last: int, *, first: int = 1, **given: Any) -> Granularity:
    """Return a recorded release's answer for a call, by default on an H20."""
    extraction = recorded_extraction(LOG, package, version)
    assert extraction is not None
    query = AttentionQuery(**{"heads": 32, "kv_heads": 8, "head_dim": 128, **H20, **given})
    return attention_granularity(extraction, query, first, last)


def tiles(granularity: Granularity) -> list[tuple[int, int, int | None, int | None]]:
    return [
        (interval.first, interval.value, interval.tile, interval.tiles)
        for interval in granularity.intervals
    ]


def test_an_interval_ends_where_the_tile_or_their_number_changes() -> None:
    """FlashAttention 2 splits keys up to 192 positions here, then its tile has 128 rows."""
    granularity = ask("flash-attn", "2.8.3", 300, first=2)
    assert [(path.first, path.path) for path in granularity.kernel_path] == [
        (2, "split_kv"),
        (193, "standard"),
    ]
    assert tiles(granularity) == [
        (2, 64, 64, 1),
        (65, 64, 64, 2),
        (129, 64, 64, 3),
        (193, 128, 128, 2),
        (257, 128, 128, 3),
    ]


def test_keys_are_the_cached_ones_and_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """N positions over L cached ones have L + N keys, rounded up to whole pages."""
    module, keys = reader("flash-attn"), []
    tile = module.tile

    def noted(rules: Any, query: AttentionQuery, n: int) -> Tile:
        keys.append(query.context)
        return tile(rules, query, n)

    monkeypatch.setattr(module, "tile", noted)
    ask("flash-attn", "2.8.3", 2, context=4095)
    ask("flash-attn", "2.8.3", 2, context=4095, paged=True, page_size=256)
    assert keys == [4096, 4097, 4096, 4352]


def test_packed_heads_share_a_tile() -> None:
    """FlashInfer packs four query heads, so that 128 rows are 32 positions."""
    granularity = ask("flashinfer-python", "0.6.13", 64, backend="fa2")
    assert tiles(granularity) == [(1, 4, 16, 1), (5, 16, 64, 1), (17, 32, 128, 1), (33, 32, 128, 2)]
    assert {interval.rows_per_position for interval in granularity.intervals} == {4}
    assert granularity.notes == ()


def test_auto_says_what_it_takes_for_granted() -> None:
    """On SM90 auto is fa3, unpacked, and the answer names the CUDA release that it assumes."""
    granularity = ask("flashinfer-python", "0.6.13", 200)
    assert tiles(granularity) == [(1, 128, 128, 1), (129, 128, 128, 2)]
    assert "CUDA" in granularity.notes[0]


@pytest.mark.parametrize(
    ("package", "version"),
    [("flash-attn", "2.8.3"), ("xformers", "0.0.34"), ("flashinfer-python", "0.7.2.post1")],
)
def test_every_interval_is_backed_by_hashed_lines(package: str, version: str) -> None:
    """A tile's place is a file of the artefact with its digest, and is quoted."""
    granularity = ask(package, version, 40)
    for interval in (*granularity.intervals, *granularity.kernel_path):
        assert all(place.sha256 and place.quote for place in interval.evidence)
    for interval in granularity.intervals:
        assert interval.lines is not None
        assert interval.sha256 in {place.sha256 for place in interval.evidence}


def test_the_answer_is_written_with_the_names_that_are_documented() -> None:
    """An interval goes `from` one number `to` another, both included."""
    first = json.decode(json.encode(ask("flash-attn", "2.8.3", 10)))["intervals"][0]
    names = {"from", "to", "value", "source", "file", "lines", "sha256", "tile", "tiles"}
    assert names | {"rows_per_position"} <= first.keys()


def test_heads_that_cannot_be_shared_are_refused() -> None:
    """Query heads that are no multiple of key-value heads are refused."""
    with pytest.raises(EvidenceError, match="31 heads"):
        ask("flash-attn", "2.8.3", 10, heads=31)


@pytest.mark.parametrize(
    ("package", "version"),
    [("xformers", "0.0.34"), ("flash-attn-4", "4.0.0b36")],
)
def test_windows_are_refused_where_they_are_not_read(package: str, version: str) -> None:
    """A window is refused for releases whose rule of windows is not read."""
    with pytest.raises(EvidenceError, match=f"{package} {version}: tiles of calls with a window"):
        ask(package, version, 10, window=128)


def test_one_position_under_a_window_takes_the_tile_of_several() -> None:
    """With a window FlashAttention 2 does not swap one position with its group."""
    query: dict[str, Any] = {"api": "varlen", "paged": True}
    first = ask("flash-attn", "2.8.3", 10, **query).intervals[0]
    seen = ask("flash-attn", "2.8.3", 10, window=128, **query).intervals[0]
    assert (first.first, first.last, first.rows_per_position) == (1, 1, 4)
    assert (seen.first, seen.last, seen.rows_per_position) == (1, 10, 1)
    with pytest.raises(EvidenceError, match="paged caches alone"):
        ask("flash-attn", "2.8.3", 10, window=128)


@pytest.mark.parametrize(
    ("package", "version", "given"),
    [
        ("flashinfer-python", "0.6.13", {"backend": "fa2"}),
        ("flashinfer-python", "0.6.13", {"backend": "fa3"}),
        ("vllm-triton", "0.33.0", {}),
    ],
)
def test_windows_that_change_no_tile_are_answered(
    package: str, version: str, given: dict[str, Any]
) -> None:
    """A window is answered if the tile's choice does not depend on it."""
    assert tiles(ask(package, version, 40, window=128, **given)) == tiles(
        ask(package, version, 40, **given)
    )


def test_a_missing_device_is_refused_where_it_matters() -> None:
    """A split that depends on the number of SMs is refused without it, with the option to give."""
    with pytest.raises(EvidenceError, match=r"number of SMs.*--sms"):
        ask("flash-attn", "2.8.3", 10, sms=None)
