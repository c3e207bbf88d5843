"""Marlin's blocks of a layer, by the rule of the release alone."""

from pathlib import Path

import pytest
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.sources.answers.marlin import MarlinRules
from nearfree.sources.answers.moe import MoeQuery
from nearfree.sources.language.rule import Rule
from nearfree.sources.record import recorded_extraction

QUERY = MoeQuery(experts=128, top_k=8, d_ff=768, d_model=2048, dtype="int4", sm=80)


def rules(package: str, version: str) -> dict[str, Rule]:
    """Return a release's rules that are on record."""
    found = recorded_extraction(Layout(Path(__file__).parents[3] / "results"), package, version)
    assert found is not None
    return found.by_name()


def first_that_fits(tokens: int, experts: int, top_k: int) -> int:
    """Return the first size that the tokens of an expert fill to less than nine tenths."""
    sizes = (8, 16, 32, 48, 64)
    share = tokens * top_k / experts
    return next((size for size in sizes if share / size < 0.9), sizes[-1])


@pytest.mark.parametrize(
    ("package", "version"),
    [("vllm", "0.14.0"), ("vllm", "0.33.0"), ("sglang", "0.5.9"), ("sglang", "0.5.23")],
)
def test_both_engines_choose_by_the_tokens_of_an_expert(package: str, version: str) -> None:
    """The sizes are what the loop, written out here a second time, gives."""
    marlin = MarlinRules(rules(package, version), QUERY)
    for tokens in (*range(1, 1200, 7), 115, 116, 230, 231, 100_000):
        block = marlin.at(tokens)
        assert block.value == first_that_fits(tokens, 128, 8)
        assert marlin.step(tokens) == (block.path, block.value) == ("aligned", block.value)
        assert (block.block_n, block.block_k) == (None, None)


def test_a_release_without_the_rule_is_refused() -> None:
    """Release 0.9.1 of vLLM takes tuned files for Marlin, too, by another rule."""
    with pytest.raises(EvidenceError, match="no rule of Marlin's blocks"):
        MarlinRules(rules("vllm", "0.9.1"), QUERY)
