"""The fused MoE readers: Marlin's blocks, read from a loop over sizes."""

import ast

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends.fused_moe import always_aligned, marlin_blocks
from nearfree.sources.language.expressions import UnknownConstructError
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import read_rule
from nearfree.sources.language.rule import Rule

PATH = "vllm/model_executor/layers/fused_moe/experts/marlin_moe.py"
TEXT = """
def fused_marlin_moe(hidden_states, topk_ids, w1):
    M, K = hidden_states.size()
    E = w1.size(0)
    topk = topk_ids.size(1)
    for block_size_m in [4, 24]:
        if M * topk / E / block_size_m < 0.5:
            break
    return align(topk_ids, block_size_m)
"""


def blocks(text: str) -> Rule:
    """Return the rule of a text."""
    (reading,) = marlin_blocks(Modules({PATH: text}))
    return Rule(read_rule(reading, "vllm", "1.0"))


def test_the_first_size_that_is_left_half_empty_is_taken() -> None:
    """Sizes and share are the text's, and the last size counts for all larger ones."""
    rule = blocks(TEXT)
    taken = [rule.value({"M": m, "E": 8, "topk": 2}).value for m in (7, 8, 47, 48, 4096)]
    assert taken == [4, 24, 24, 24, 24]
    quoted = rule.value({"M": 1, "E": 8, "topk": 2}).branch.quotes[-1]
    assert (quoted.file, quoted.lines) == (PATH, (6, 6))


@pytest.mark.parametrize(
    "text", ["", TEXT.replace("fused_marlin_moe", "other"), TEXT.replace("block_size_m in", "m in")]
)
def test_a_release_without_the_loop_states_no_rule(text: str) -> None:
    """Without the loop there is no rule of Marlin; other rules are read."""
    assert marlin_blocks(Modules({PATH: text})) == []


def test_rows_of_8_bit_activations_are_another_matter() -> None:
    """Changes for 8-bit activations after the loop leave the 16-bit rule."""
    condition = (
        "    if input_dtype is not None and input_dtype.itemsize == 1:\n        block_size_m = 16\n"
    )
    rule = blocks(TEXT.replace("    return", f"{condition}    return"))
    assert rule.value({"M": 7, "E": 8, "topk": 2}).value == 4


@pytest.mark.parametrize(
    "more",
    [
        "block_size_m = max(block_size_m, 16)",
        "if E > 8:\n        block_size_m = 24",
        "block_size_m += 8",
    ],
)
def test_rows_that_are_set_again_are_refused(more: str) -> None:
    """Another assignment of the rows after the loop is refused."""
    with pytest.raises(SourceError, match="sets block_size_m 2 times"):
        blocks(TEXT.replace("    return", f"    {more}\n    return"))


LAUNCHER = """
def fused_experts_impl(hidden_states, topk_ids, config, few):
    for chunk in range(4):
        ids = moe_align_block_size(topk_ids, config["BLOCK_SIZE_M"], 8)
    return run(ids)
"""


def test_a_launcher_that_aligns_has_one_path() -> None:
    """A launcher that always aligns tokens has one path."""
    _, rule = always_aligned(Modules({PATH: LAUNCHER}))
    assert "aligned" in ast.unparse(rule)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ("ids = other(topk_ids)", "nowhere"),
        ("if few:\n            topk_ids\n        else:\n            {}", "under a condition"),
        ("ids = topk_ids if few else moe_align_block_size(topk_ids)", "under a condition"),
    ],
)
def test_a_launcher_that_may_not_align_is_refused(new: str, why: str) -> None:
    """An unknown way without alignment is refused."""
    old = 'ids = moe_align_block_size(topk_ids, config["BLOCK_SIZE_M"], 8)'
    with pytest.raises(SourceError, match=f"moe_align_block_size {why}: a new kernel path"):
        always_aligned(Modules({PATH: LAUNCHER.replace(old, new.format(old))}))


def test_what_the_loop_asks_besides_is_not_taken_for_granted() -> None:
    """A condition on an unknown name refuses the release."""
    with pytest.raises(UnknownConstructError, match="arch"):
        blocks(TEXT.replace("< 0.5", "< arch()"))
