"""The whole block of a fused MoE call: columns, depth and group beside BLOCK_SIZE_M."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.log.names import Layout
from nearfree.sources.answers.lookup import TunedFiles
from nearfree.sources.answers.moe import Block, MoeQuery, MoeRules
from nearfree.sources.extraction import Extraction
from nearfree.sources.record import recorded_extraction

from sources.moe_release import TUNED, made_release

LOG = Layout(Path(__file__).parents[3] / "results")
LAYER: dict[str, Any] = {"experts": 256, "top_k": 8, "d_ff": 1024, "d_model": 4096}
H20: dict[str, Any] = {"device": "NVIDIA H20", "sm": 90, "smem_per_block": 232448}
NAME = next(iter(TUNED))
FULL = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}


def block(release: Extraction, tokens: int, **given: Any) -> Block:
    """Return a release's block for a layer, by default on an H20."""
    query = MoeQuery(**{**LAYER, **H20, **given})
    return MoeRules(release.by_name(), TunedFiles(release.tuned), query, 4096).at(tokens)


def sizes(granularity: Block) -> tuple[int | None, ...]:
    return granularity.value, granularity.block_n, granularity.block_k, granularity.group_m


@pytest.mark.parametrize(
    ("package", "version", "tokens", "expected"),
    [
        ("vllm", "0.9.1", 256, (16, 32, 64, 1)),
        ("vllm", "0.9.1", 257, (64, 64, 32, 8)),
        ("vllm", "0.14.0", 257, (64, 64, 32, 8)),
        ("vllm", "0.24.0", 64, (32, 64, 128, 1)),
        ("vllm", "0.24.0", 65, (32, 128, 64, 1)),
        ("vllm", "0.24.0", 4096, (128, 128, 64, 1)),
        ("sglang", "0.5.10", 256, (16, 32, 64, 1)),
        ("sglang", "0.5.10", 257, (64, 64, 32, 8)),
    ],
)
def test_fallback_rules_on_record(
    package: str, version: str, tokens: int, expected: tuple[int, ...]
) -> None:
    """`get_default_config` for 16 bits has K steps of 32 above E tokens, up to vLLM 0.16."""
    extraction = recorded_extraction(LOG, package, version)
    assert extraction is not None
    fallback = block(extraction, tokens)
    assert (sizes(fallback), fallback.source) == (expected, "fallback")


def test_many_tokens_an_expert_are_grouped() -> None:
    """From vLLM 0.17 on a group has 16 blocks above 128 tokens an expert, else one."""
    extraction = recorded_extraction(LOG, "vllm", "0.24.0")
    assert extraction is not None
    groups = [block(extraction, tokens, experts=8, top_k=2).group_m for tokens in (1031, 1032)]
    assert groups == [1, 16]


def test_a_kernel_that_chooses_for_itself_leaves_the_size_open() -> None:
    """For grouped 4-bit weights the configuration has BLOCK_SIZE_M but no N or K."""
    extraction = recorded_extraction(LOG, "vllm", "0.24.0")
    assert extraction is not None
    assert sizes(block(extraction, 100, dtype="int4", d_ff=768)) == (16, None, None, None)


def test_scales_by_block_set_columns_and_depth() -> None:
    """Block-wise FP8 takes N and K from the scale's block shape."""
    extraction = recorded_extraction(LOG, "sglang", "0.5.10")
    assert extraction is not None
    fallback = block(extraction, 1, experts=100, dtype="fp8_block", block_shape=(64, 32))
    assert sizes(fallback) == (64, 64, 32, 32)


def test_a_tuned_file_sets_the_whole_block() -> None:
    """The nearest entry of a tuned file gives all sizes."""
    entries = {"1": FULL, "64": FULL | {"BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}}
    release = made_release(tuned={NAME: entries})
    assert sizes(block(release, 30, d_ff=512)) == (16, 64, 128, 1)
    assert sizes(block(release, 40, d_ff=512)) == (16, 64, 32, 8)


def test_a_tuned_file_that_does_not_say_leaves_the_size_open() -> None:
    """A size that a tuned file lacks is not taken from the fallback rule."""
    assert sizes(block(made_release(), 1, d_ff=512)) == (16, None, None, None)


def test_an_override_sets_rows_alone() -> None:
    """An override of the rows sets no other size."""
    assert sizes(block(made_release(), 1, override=48)) == (48, None, None, None)


def test_a_log_from_before_has_rows_alone() -> None:
    """Without rules for the other sizes only BLOCK_SIZE_M is answered."""
    release = made_release()
    rules = {name: rule for name, rule in release.by_name().items() if "size" not in name}
    rules["block_size_m"] = release.by_name()["block_size_m"]
    made = MoeRules(rules, TunedFiles(()), MoeQuery(**LAYER, **H20), 4096)
    assert sizes(made.at(1)) == (16, None, None, None)
