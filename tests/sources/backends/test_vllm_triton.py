"""vLLM's attention in Triton: rows of a block and split keys, by the recorded releases."""

from functools import cache

import pytest
from derive.questions import LOG
from nearfree.errors import EvidenceError
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.backends import vllm_triton
from nearfree.sources.language.reading import read_rule
from nearfree.sources.language.rule import Rule
from nearfree.sources.record import recorded_extraction

NEWEST = "0.33.0"


@cache
def rules(version: str) -> dict[str, Rule]:
    """Return a release's recorded rules."""
    extraction = recorded_extraction(LOG, vllm_triton.PACKAGE, version)
    assert extraction is not None
    return extraction.by_name()


def tile(
    n: int, version: str = NEWEST, *, group: int = 8, width: int = 64, sm: int = 80, batch: int = 1
) -> Tile:
    """Return the tile of N positions, of eight key and value heads."""
    query = AttentionQuery(heads=8 * group, kv_heads=8, head_dim=width, sm=sm, batch=batch)
    return vllm_triton.tile(rules(version), query, n)


@pytest.mark.parametrize(
    ("group", "positions"), [(1, 16), (4, 4), (7, 2), (8, 2), (16, 1), (17, 1), (24, 1)]
)
def test_a_block_holds_whole_positions(group: int, positions: int) -> None:
    """A group's heads share 16 rows, or the next power of two, in whole positions."""
    rows = tile(1, group=group)
    assert (rows.tile // rows.rows_per_position, rows.rows_per_position) == (positions, group)
    assert [tile(n, group=group).tiles for n in (1, positions, positions + 1)] == [1, 1, 2]


def test_wide_heads_take_twice_the_rows_on_blackwell() -> None:
    """Since 0.24 heads of 256 on 10.0 take twice the rows, from two positions on."""
    assert [tile(n, width=256, sm=100, group=4).tile for n in (1, 2)] == [16, 32]
    assert [tile(2, width=width, sm=sm, group=4).tile for width, sm in ((128, 100), (256, 90))] == [
        16, 16,
    ]  # fmt: skip
    assert tile(2, "0.20.2", width=256, sm=100, group=4).tile == 16


@pytest.mark.parametrize(("version", "most"), [("0.20.2", 1), ("0.24.0", 1), (NEWEST, 8)])
def test_keys_are_split_for_few_positions(version: str, most: int) -> None:
    """Keys are split for one position up to 0.32, then for up to eight."""
    paths = [tile(n, version).path for n in (1, most, most + 1)]
    assert paths == ["split_kv", "split_kv", "standard"]
    assert [tile(n, version).unsplit for n in (1, most, most + 1)] == [False, False, True]


def test_keys_are_split_for_few_requests() -> None:
    """Up to 128 blocks over the key and value heads, of which a request has one for two positions.

    They are 16 here: 16 requests of one or two positions, 4 of eight.
    """
    assert [tile(1, batch=batch).path for batch in (16, 17)] == ["split_kv", "standard"]
    assert [tile(8, batch=batch).path for batch in (4, 5)] == ["split_kv", "standard"]


def test_rows_of_the_queries_are_those_of_all_requests() -> None:
    """The split's decision counts the query rows of all requests."""
    text = """
def unified_attention(q, k, v, max_seqlen_q, seqused_k):
    num_seqs = len(seqused_k)
    num_kv_heads = k.shape[2]
    BLOCK_M = 16
    use_3d = max_seqlen_q <= 1 and q.shape[0] * num_kv_heads <= 128
    return launch(BLOCK_M, use_3d)
"""
    readings = vllm_triton.readings({"vllm/attention/ops/triton_unified_attention.py": text})
    split = Rule(read_rule(readings[1], "vllm-triton", "1.0"))
    given = {"positions": 1, "heads": 32, "kv_heads": 8, "head_dim": 64, "sm": 80}
    assert [split.value({**given, "batch": b}).value for b in (1, 16, 17)] == [True, True, False]


def test_old_releases_say_less() -> None:
    """0.14 names no split; 0.9 has 16 rows for any group."""
    assert tile(1, "0.14.0").path == "unified"
    assert not tile(1, "0.14.0").unsplit
    assert tile(1, "0.9.1").tile == 16
    with pytest.raises(EvidenceError, match="more than a block's 16 rows"):
        tile(1, "0.9.1", group=17)
