"""Controlled routing: the experts of each token, and how rows are aligned to blocks."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nearfree.backends.adapters.experts import Aligned, expert_ids, share_touched
from nearfree.core.modules.moe_ffn import moe_work
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.setting import Setting

from backends.adapters.shapes import make_moe

N = st.integers(1, 40)
BLOCKS = st.integers(1, 70)


@st.composite
def routed(draw: st.DrawFn) -> Setting:
    """Draw a setting of experts under either routing."""
    experts = draw(st.integers(1, 24))
    return make_moe(
        experts=experts,
        top_k=draw(st.integers(1, experts)),
        batch=draw(st.integers(1, 3)),
        routing=draw(st.sampled_from(["balanced", "skewed", "power_law:1.2", "power_law:0"])),
    )


def align(setting: Setting, n: int, block: int | None) -> Aligned:
    """Return the rows of a setting's pairs."""
    return Aligned(expert_ids(setting, n, "cpu"), setting.experts or 0, block)


@given(routed(), N)
@settings(deadline=None)
def test_token_i_goes_to_experts_ik_and_on(setting: Setting, n: int) -> None:
    """Balanced: token i goes to experts (i k + j) mod E; skewed: every token to the first k."""
    experts, top_k = setting.experts or 0, setting.top_k or 0
    skewed = setting.routing == "skewed"
    assume(setting.routing in ("balanced", "skewed"))
    ids = expert_ids(setting, n, "cpu")
    assert ids.dtype == torch.int64
    assert ids.tolist() == [
        [j if skewed else (i * top_k + j) % experts for j in range(top_k)]
        for i in range(setting.batch * n)
    ]


@given(routed(), N)
@settings(deadline=None)
def test_the_counted_pairs_are_those_routed(setting: Setting, n: int) -> None:
    """The work's token-expert pairs of each expert are those of the tensor that kernels get."""
    ids = expert_ids(setting, n, "cpu")
    counts = torch.bincount(ids.flatten(), minlength=setting.experts or 0).tolist()
    assert routed_pairs(setting, n) == counts
    assert share_touched(setting, n) == len(ids.unique()) / (setting.experts or 1)


@given(routed(), N)
@settings(deadline=None)
def test_no_token_meets_an_expert_twice(setting: Setting, n: int) -> None:
    """The k experts of a token are k different ones, and balanced routing differs by one pair."""
    assert all(len(set(row)) == len(row) for row in expert_ids(setting, n, "cpu").tolist())
    if setting.routing == "balanced":
        pairs = routed_pairs(setting, n)
        assert max(pairs) - min(pairs) <= 1


@given(routed(), N, BLOCKS)
@settings(deadline=None)
def test_each_pair_has_a_row_with_its_token(setting: Setting, n: int, block: int) -> None:
    """Each token-expert pair has its own row among its expert's, and that row holds its token."""
    aligned = align(setting, n, block)
    places = aligned.places.flatten().tolist()
    assert len(set(places)) == len(places)
    starts = [0, *aligned.ends.tolist()]
    for token, experts in enumerate(expert_ids(setting, n, "cpu").tolist()):
        for expert, row in zip(experts, aligned.places[token].tolist(), strict=True):
            assert starts[expert] <= row < starts[expert + 1]
            assert int(aligned.tokens[row]) == token


@given(routed(), N, BLOCKS)
@settings(deadline=None)
def test_rows_are_padded_to_blocks(setting: Setting, n: int, block: int) -> None:
    """Each expert's rows end at a multiple of a block, with less than a block to spare."""
    aligned = align(setting, n, block)
    ends = aligned.ends.tolist()
    assert aligned.ends.dtype == torch.int32
    for start, end, count in zip([0, *ends], ends, routed_pairs(setting, n), strict=False):
        assert end % block == 0
        assert 0 <= end - start - count < block
    assert len(aligned.tokens) == ends[-1]
    padding = set(range(ends[-1])) - set(aligned.places.flatten().tolist())
    assert not aligned.tokens[sorted(padding)].any()


@given(routed(), N, BLOCKS)
@settings(deadline=None)
def test_blocks_cover_every_row_once(setting: Setting, n: int, block: int) -> None:
    """Blocks follow one another without a gap, each within its expert: as many as are counted."""
    aligned = align(setting, n, block)
    starts = [0, *aligned.ends.tolist()]
    assert [first_row for _, first_row in aligned.blocks] == list(range(0, starts[-1], block))
    for expert, first_row in aligned.blocks:
        assert starts[expert] <= first_row < first_row + block <= starts[expert + 1]
    pairs = routed_pairs(setting, n)
    assert len(aligned.blocks) == moe_work(setting, pairs, "", block_rows=block).blocks


@given(routed(), N)
@settings(deadline=None)
def test_bare_rows_are_those_of_blocks_of_one(setting: Setting, n: int) -> None:
    """Without blocks the rows are what blocks of one row give, and no block is listed."""
    bare, ones = align(setting, n, None), align(setting, n, 1)
    assert bare.blocks == []
    assert bare.tokens.equal(ones.tokens)
    assert bare.places.equal(ones.places)
    assert bare.ends.equal(ones.ends)
