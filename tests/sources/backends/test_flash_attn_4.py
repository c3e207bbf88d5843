"""FlashAttention 4's rules: rows of a block by compute capability, stages, and packing."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from nearfree.errors import EvidenceError, SourceError
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.backends import flash_attn_4
from nearfree.sources.language.rule import Rule
from once import one_in

from sources.backends.flash_attn_4_snippets import INTERFACE, KERNELS, rules
from sources.conftest import Releases


def ask(
    known: dict[str, Rule], positions: int, *, group: int = 4, head_dim: int = 128, **changes: Any
) -> Tile:
    """Return the tile of a call of four key-value heads."""
    query = AttentionQuery(heads=4 * group, kv_heads=4, head_dim=head_dim, **changes)
    return flash_attn_4.tile(known, query, positions)


def swapped(old: str, new: str) -> str:
    """Return the interface with one text, which must exist, changed."""
    assert old in INTERFACE
    return INTERFACE.replace(old, new)


@pytest.mark.parametrize(("head_dim", "rows"), [(64, 192), (96, 192), (128, 128), (256, 128)])
def test_sm90_takes_its_tile_by_head_size(head_dim: int, rows: int) -> None:
    """On sm90 the rows are those of the function for the head size."""
    answer = ask(rules(), 1, head_dim=head_dim, sm=90)
    assert (answer.path, answer.tile) == ("sm90+pack_gqa", rows)


def test_packed_rows_are_shared_by_the_heads_of_a_group() -> None:
    """With four packed heads a group, 128 rows are 32 positions; unpacked, 128."""
    known = rules()
    assert [ask(known, n, sm=90).tiles for n in (32, 33)] == [1, 2]
    alone = [ask(known, n, sm=90, group=1) for n in (128, 129)]
    assert [(answer.path, answer.rows_per_position, answer.tiles) for answer in alone] == [
        ("sm90", 1, 1),
        ("sm90", 1, 2),
    ]


def test_a_block_of_sm100_is_two_tiles_where_one_is_not_enough() -> None:
    """On sm100 a block has one stage up to one tile of rows, then two."""
    answers = [ask(rules(), n, sm=100) for n in (32, 33, 64, 65)]
    assert [(answer.tile, answer.tiles) for answer in answers] == [
        (128, 1),
        (256, 1),
        (256, 1),
        (256, 2),
    ]


@pytest.mark.parametrize("sm", [100, 103])
def test_capabilities_of_a_family_are_alike(sm: int) -> None:
    """A rule over the tens of a compute capability answers for the family."""
    assert ask(rules(), 33, sm=sm).tile == 256
    with pytest.raises(SourceError, match="arch is used otherwise"):
        rules(swapped("arch // 10 == 10 and", "arch == 100 and"))


def test_packed_requests_are_asked_for_with_their_longest_length() -> None:
    """With packed requests the longest length decides."""
    answer = ask(rules(), 32, sm=100, api="varlen", batch=64)
    assert (answer.tile, answer.tiles) == (128, 1)


def test_splits_are_marked_where_the_default_leaves_them_to_the_heuristic() -> None:
    """With 0 splits by default the heuristic decides, which needs the SMs."""
    known = rules(swapped("num_splits: int = 1", "num_splits: int = 0"))
    assert ask(known, 1, sm=90, sms=132).path == "sm90+split+pack_gqa"
    assert ask(known, 1, sm=90, sms=132, batch=64).path == "sm90+pack_gqa"
    with pytest.raises(EvidenceError, match="number of SMs"):
        ask(known, 1, sm=90)
    with pytest.raises(SourceError, match="have not one default"):
        rules(INTERFACE.replace("num_splits: int = 1", "num_splits: int = 0", 1))


def test_a_kernel_that_is_not_read_is_not_answered_for() -> None:
    """A call that builds another kernel is refused."""
    with pytest.raises(EvidenceError, match="WideForward"):
        ask(rules(), 1, sm=100, head_dim=256)
    with pytest.raises(EvidenceError, match=r"launches nothing at .*head_size=512"):
        ask(rules(), 1, sm=90, head_dim=512)
    with pytest.raises(EvidenceError, match="refuses"):
        ask(rules(), 1, sm=120)
    with pytest.raises(EvidenceError, match="compute capability"):
        ask(rules(), 1)
    with pytest.raises(EvidenceError, match="no kernel for compute capability 75"):
        ask(rules(), 1, sm=75)


def test_heads_that_the_kernel_does_not_pack_are_not_answered_for() -> None:
    """A packed call of a kernel without packing is refused, except with one head a group."""
    with pytest.raises(EvidenceError, match="packed_sm80"):
        ask(rules(), 1, sm=80)
    assert ask(rules(), 1, sm=80, group=1).tile == 128
    with pytest.raises(EvidenceError, match="stages_sm100"):
        ask(rules(kernels=KERNELS.replace("self.q_stage *", "2 *")), 33, sm=100)


def test_the_branch_is_quoted() -> None:
    """An answer quotes the lines that its tile comes from."""
    (branch,) = ask(rules(), 1, sm=90, head_dim=64).branches
    assert "head_size <= 96" in branch.when
    assert any("if head_dim <= 96" in quote.text for quote in branch.quotes)


@pytest.mark.parametrize(
    ("interface", "why"),
    [
        (swapped("def _flash_attn_fwd(", "def _forward("), "_flash_attn_fwd must be defined once"),
        (INTERFACE + INTERFACE, "must be defined once"),
        (swapped("fwd_cfg = FwdConfig(128, 128)", "fwd_cfg = FwdConfig(128,"), "is not Python"),
        (swapped("FwdConfig(128, 128)", "tuned_config(head_dim)"), "tuned_config"),
        (swapped("FwdConfig(128, 128)", "FwdConfig(128, 128, 1, 2)"), "does not fit its fields"),
        (swapped("FwdConfig(128, 128)", "FwdConfig(128, k_block_size=1)"), "does not fit"),
        (swapped("if head_dim <= 96:", "if head_dim <= limit():"), "limit"),
        (swapped("if head_dim <= 96:", "while head_dim <= 96:"), "While"),
        (swapped("    q_stage: int = 1", "    def rows(self): ..."), "holds more than fields"),
        (swapped("q_stage = 2 if", "stages = 2 if"), "does not set q_stage"),
        (swapped("flash_attn_varlen_func", "flash_varlen"), "flash_attn_varlen_func"),
    ],
)
def test_what_is_not_understood_is_refused(interface: str, why: str) -> None:
    """A renamed, repeated, broken or unknown part is refused by name."""
    with pytest.raises(SourceError, match=re.escape(why)):
        rules(interface)


Real = Callable[[str], dict[str, Rule]]
LATER = ["4.0.0b5", "4.0.0b16", "4.0.0b25"]


@pytest.fixture
def real(release: Releases) -> Real:
    """Return a function that gives the rules of a real release."""
    return lambda version: release(flash_attn_4.PACKAGE, version).by_name()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.0.0b3", "4.0.0b4"])
def test_the_first_betas_have_one_tile(real: Real, version: str) -> None:
    """Up to b4 sm90 takes 128 rows for any head size."""
    known = real(version)
    assert {ask(known, 1, head_dim=d, sm=90).tile for d in (64, 96, 128, 256)} == {128}
    assert [ask(known, n, sm=100).tile for n in (32, 33)] == [128, 256]
    with pytest.raises(EvidenceError, match="refuses"):
        ask(known, 1, sm=80)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.0.0b36", *LATER[one_in(3, "flash-attn-4")]])
def test_later_betas_take_192_rows_for_small_heads(real: Real, version: str) -> None:
    """From b5, sm90 takes 192 rows up to head size 96, else 128; sm100 one or two tiles."""
    known = real(version)
    rows = [ask(known, 1, head_dim=d, sm=90).tile for d in (64, 96, 104, 128, 192, 256)]
    assert rows == [192, 192, 128, 128, 128, 128]
    assert [ask(known, n, sm=100).tile for n in (32, 33)] == [128, 256]
    assert [ask(known, n, sm=90).tiles for n in (32, 33)] == [1, 2]
    assert ask(known, 1, sm=120, group=1).tile == 128


@pytest.mark.slow
def test_the_kernel_for_heads_of_256_is_the_common_one_in_b36(real: Real) -> None:
    """In b17 sm100 builds a kernel of its own for head size 256; in b36 the common one."""
    with pytest.raises(EvidenceError, match="BlackwellFused"):
        ask(real("4.0.0b17"), 1, head_dim=256, sm=100)
    assert ask(real("4.0.0b36"), 512, head_dim=256, sm=100, sms=148).tile == 128
