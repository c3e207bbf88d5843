"""Marlin's blocks of a layer, by the release's rule."""

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from nearfree.backends.moe_kernels import MARLIN, TRITON_KERNELS
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.sources.answers.granularity import moe_granularity
from nearfree.sources.answers.lookup import TunedFiles
from nearfree.sources.answers.marlin import BlockRowRules
from nearfree.sources.answers.moe import MoeQuery, MoeRules
from nearfree.sources.extraction import Extraction
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.thresholds import UnsettledError
from nearfree.sources.record import recorded_extraction

QUERY = MoeQuery(experts=128, top_k=8, d_ff=768, d_model=2048, dtype="int4", sm=80)


def recorded(package: str, version: str) -> Extraction:
    """Return the recorded extraction of a release."""
    extraction = recorded_extraction(
        Layout(Path(__file__).parents[3] / "results"), package, version
    )
    assert extraction is not None
    return extraction


def rules(package: str, version: str) -> dict[str, Rule]:
    """Return a release's recorded rules."""
    return recorded(package, version).by_name()


def first_that_fits(tokens: int, experts: int, top_k: int) -> int:
    """Return the first size that an expert's tokens fill to less than nine tenths."""
    sizes = (8, 16, 32, 48, 64)
    share = tokens * top_k / experts
    return next((size for size in sizes if share / size < 0.9), sizes[-1])


@pytest.mark.parametrize(
    ("package", "version"),
    [("vllm", "0.14.0"), ("vllm", "0.33.0"), ("sglang", "0.5.9"), ("sglang", "0.5.23")],
)
def test_both_engines_choose_by_the_tokens_of_an_expert(package: str, version: str) -> None:
    """The sizes equal those of the loop, computed independently."""
    marlin = BlockRowRules(rules(package, version), QUERY, MARLIN)
    for tokens in (*range(1, 1200, 7), 115, 116, 230, 231, 100_000):
        block = marlin.at(tokens)
        assert block.value == first_that_fits(tokens, 128, 8)
        assert marlin.step(tokens) == (block.path, block.value) == ("aligned", block.value)
        assert (block.block_n, block.block_k) == (None, None)


def test_a_release_without_the_rule_is_refused() -> None:
    """VLLM 0.9.1 is refused, since it uses tuned files for Marlin, too."""
    with pytest.raises(EvidenceError, match="no rule of Marlin's blocks"):
        BlockRowRules(rules("vllm", "0.9.1"), QUERY, MARLIN)


GPT_OSS = MoeQuery(experts=32, top_k=4, d_ff=2880, d_model=2880, dtype="mxfp4", sm=90)


def power_above(share: int, least: int, most: int) -> int:
    """Return the first power of two at or above a share, within two bounds."""
    return max(least, min(1 << (share - 1).bit_length(), most))


@pytest.mark.parametrize("version", ["0.14.0", "0.22.0", "0.33.0"])
def test_triton_kernels_take_an_experts_whole_rows(version: str) -> None:
    """The first power of two from 16 to 128 that holds the routed rows of an expert, rounded down.

    Between, 0.20 took twice as many, and eight times on Blackwell: each reads weights less often.
    """
    hopper = BlockRowRules(rules("vllm", version), GPT_OSS, TRITON_KERNELS)
    between = BlockRowRules(rules("vllm", "0.20.2"), GPT_OSS, TRITON_KERNELS)
    for tokens in (*range(1, 1100, 13), 128, 135, 136, 4096):
        share = max(1, tokens * 4 // 32)
        assert hopper.at(tokens).value == power_above(share, 16, 128)
        twice = power_above(2 * share, 16, 64) if share <= 64 else power_above(share, 16, 128)
        assert between.step(tokens) == ("aligned", twice)
    blackwell = BlockRowRules(rules("vllm", "0.20.2"), replace(GPT_OSS, sm=100), TRITON_KERNELS)
    assert [blackwell.at(tokens).value for tokens in (127, 128, 1024)] == [32, 128, 128]


def test_marlin_s_steps_change_nowhere_but_where_it_is_said() -> None:
    """Each change up to a number of tokens is listed."""
    known = BlockRowRules(rules("vllm", "0.33.0"), QUERY, MARLIN)
    steps = [known.step(tokens) for tokens in range(1, 1201)]
    changed = {at for at, (before, now) in enumerate(pairwise(steps), 2) if before != now}
    assert changed
    assert changed <= {*known.changes(1200)}
    assert len(known.changes(1200)) < 120


def test_triton_kernels_are_tried_at_each_number() -> None:
    """triton_kernels' blocks are computed at each N, since no rule lists their changes."""
    with pytest.raises(UnsettledError):
        BlockRowRules(rules("vllm", "0.33.0"), GPT_OSS, TRITON_KERNELS).changes(64)


def test_triton_kernels_ask_for_the_compute_capability() -> None:
    """Without a compute capability they are refused, and the option is named."""
    with pytest.raises(EvidenceError, match="compute capability, which is not known") as refused:
        BlockRowRules(rules("vllm", "0.33.0"), replace(GPT_OSS, sm=None), TRITON_KERNELS)
    assert "--sm" in refused.value.remedy


def test_four_bit_floats_are_answered_by_the_kernel_that_runs_or_is_named() -> None:
    """Floats of 4 bits get Marlin's blocks on Ampere, on Hopper those of the model's kernel."""
    extraction = recorded("vllm", "0.33.0")
    ampere = moe_granularity(extraction, replace(GPT_OSS, sm=80), 1, 200)
    assert ampere.intervals[0].file.endswith("marlin_moe.py")
    with pytest.raises(EvidenceError, match="triton_kernels where the model is gpt-oss"):
        moe_granularity(extraction, GPT_OSS, 1, 200)
    named = moe_granularity(extraction, replace(GPT_OSS, kernel="triton_kernels"), 1, 200)
    assert [(interval.first, interval.last, interval.value) for interval in named.intervals] == [
        (1, 135, 16), (136, 200, 32),
    ]  # fmt: skip
    assert named.intervals[0].file.endswith("triton_kernels/matmul_ogs_details/opt_flags.py")
    with pytest.raises(EvidenceError, match="no blocks of CUTLASS for MoE layers are read"):
        moe_granularity(extraction, replace(GPT_OSS, kernel="CUTLASS"), 1, 200)
    with pytest.raises(EvidenceError, match="depends on the compute capability"):
        moe_granularity(extraction, replace(GPT_OSS, sm=None), 1, 200)


def test_widths_that_marlin_does_not_take_are_refused_unless_they_are_rounded_up() -> None:
    """An int4 layer of width 2880 is refused; one in mxfp4, as in gpt-oss, is padded."""
    known = rules("vllm", "0.20.2")
    for odd in ({"d_ff": 2880}, {"d_model": 2880}):
        with pytest.raises(EvidenceError, match="multiples of 128"):
            BlockRowRules(known, replace(QUERY, **odd), MARLIN)
    padded = BlockRowRules(known, replace(GPT_OSS, sm=80), MARLIN)
    assert [padded.at(m).value for m in (1, 100, 2000)] == [
        first_that_fits(m, 32, 4) for m in (1, 100, 2000)
    ]


def test_warps_and_stages_of_fallbacks_are_on_record() -> None:
    """Fallback rules record the warps by tokens and the stages by format."""
    named, none = rules("vllm", "0.33.0"), TunedFiles(())
    layer = MoeRules(named, none, replace(QUERY, dtype="bf16"), 4096)
    assert [layer.at(m).num_warps for m in (128, 129)] == [4, 8]
    stages = []
    for package, version in (("vllm", "0.33.0"), ("sglang", "0.5.23")):
        known = rules(package, version)
        blocks = MoeRules(known, none, replace(QUERY, dtype="fp8_block"), 4096)
        stages.append([blocks.at(m).num_stages for m in (4, 5, 64)])
    assert stages == [[4, 3, 3], [3, 3, 3]]
