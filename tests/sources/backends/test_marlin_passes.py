"""Marlin's loop over the remaining rows, read from made-up text."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends.marlin_passes import marlin
from nearfree.sources.language.reading import read_rule
from nearfree.sources.language.rule import Rule

PATH = "csrc/quantization/marlin/marlin.cu"
TEXT = """
void marlin_mm(int prob_m, int prob_n) {
  int max_par = 2;
  int max_thread_m_blocks = 4;
  int rest_m = prob_m;
  while (rest_m) {
    int par_count = rest_m / (max_thread_m_blocks * 16);
    if (par_count > max_par) par_count = max_par;
    int prob_m_split = par_count > 0 ? (par_count * (max_thread_m_blocks * 16)) : rest_m;
    int thread_m_blocks = min(div_ceil(prob_m_split, 16), max_thread_m_blocks);
    int m_block_size_8 = prob_m_split <= 8;
    if (config.thread_k == -1) { max_thread_m_blocks--; continue; }
    rest_m -= prob_m_split;
  }
}
"""


def passed(text: str, *rows: int) -> list[object]:
    """Return the tile's rows and those of the next pass."""
    reading = marlin({PATH: text}, [{"columns": 4096, "depth": 4096}])
    rule = Rule(read_rule(reading, "vllm-linear", "1.0"))
    facts = {"columns": 4096, "activation_bits": 16}
    return [rule.value({**facts, "rows": m}).value for m in rows]


def test_the_loop_takes_whole_tiles_first() -> None:
    """Pass and tile are the text's; a smaller largest tile belongs to another launch."""
    assert passed(TEXT, 8, 9, 64, 65, 500) == [(8, 8), (16, 9), (64, 64), (64, 64), (64, 128)]


@pytest.mark.parametrize(
    "more",
    [
        "if (prob_m_split <= 40) thread_m_blocks = 4;",
        "prob_m_split = 16;",
        "m_block_size_8 &= a_type.size_bits() == 16;",
        "shrink(&thread_m_blocks);",
    ],
)
def test_what_is_set_again_behind_the_rule_is_refused(more: str) -> None:
    """A later change of the pass or its tile is refused."""
    with pytest.raises(SourceError, match="behind m_block_size_8"):
        passed(TEXT.replace("    rest_m -=", f"    {more}\n    rest_m -="), 8)


def test_a_loop_without_the_size_of_a_block_is_refused() -> None:
    """Without a declaration of the block's size nothing is read."""
    with pytest.raises(SourceError, match="declares m_block_size_8 0 times"):
        passed(TEXT.replace("m_block_size_8", "small"), 8)
