"""The fused MoE rules of real releases, compared with the paper's tables."""

from typing import Any

import pytest
from nearfree.errors import EvidenceError
from nearfree.sources.answers.granularity import moe_granularity
from nearfree.sources.answers.intervals import Granularity
from nearfree.sources.answers.moe import MoeQuery

from sources.conftest import Releases

pytestmark = pytest.mark.slow
LAYER: dict[str, Any] = {"experts": 256, "top_k": 8, "d_ff": 1024, "d_model": 4096}
Steps = list[tuple[int, int]]


def ask(
    release: Releases, package: str, version: str, last: int = 700, **given: Any
) -> Granularity:
    """Return a release's answer for a layer, by default on an H20."""
    query = MoeQuery(**{**LAYER, "device": "NVIDIA H20", **given})
    return moe_granularity(release(package, version), query, 1, last)


def steps(granularity: Granularity) -> Steps:
    """Return the number of tokens at which each block size begins."""
    return [(interval.first, interval.value) for interval in granularity.intervals]


def naive_until(granularity: Granularity) -> int:
    """Return the last number of tokens without alignment."""
    return max((path.last for path in granularity.kernel_path if path.path == "naive"), default=0)


OLD: Steps = [(1, 16), (257, 64)]
NEW: Steps = [(1, 16), (33, 32), (97, 64), (513, 128)]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.8.0", OLD),
        ("0.9.0", OLD),
        ("0.16.0", OLD),
        ("0.17.0", NEW),
        ("0.20.2", NEW),
        ("0.33.0", NEW),
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "int8"])
def test_vllm_is_as_the_paper_prints_it(
    release: Releases, version: str, expected: Steps, dtype: str
) -> None:
    """tab:vllm-moe-block-size-m holds at its bounds and beyond, for FP8 per tensor, too."""
    assert steps(ask(release, "vllm", version, dtype=dtype)) == expected


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("bf16", OLD), ("fp8", [(1, 64), (257, 128)]), ("fp8_block", [(1, 64)])],
)
@pytest.mark.parametrize("version", ["0.4.2", "0.5.9", "0.5.23"])
def test_sglang_is_as_the_paper_prints_it(
    release: Releases, version: str, dtype: str, expected: Steps
) -> None:
    """tab:sglang-moe-block-size-m, in the release that it speaks of and in others."""
    granularity = ask(release, "sglang", version, dtype=dtype, sm=90, smem_per_block=232448)
    assert steps(granularity) == expected
    assert {interval.source for interval in granularity.intervals} == {"fallback"}


@pytest.mark.parametrize(
    ("version", "expected"), [("0.16.0", [(1, 64)]), ("0.17.0", [(1, 16), (65, 64)])]
)
def test_vllm_block_wise_fp8_has_a_rule_of_its_own(
    release: Releases, version: str, expected: Steps
) -> None:
    """The paper's table does not cover it: 64 up to 0.16, then 16 up to 64 tokens."""
    assert steps(ask(release, "vllm", version, dtype="fp8_block")) == expected


@pytest.mark.parametrize(("version", "at_five"), [("0.26.0", 5), ("0.27.0", 8)])
def test_vllm_int4_follows_the_tokens(release: Releases, version: str, at_five: int) -> None:
    """Groups of 128 take min(16, M), since 0.27 a power of two, while M k / E <= 6."""
    granularity = ask(release, "vllm", version, dtype="int4", d_ff=768)
    by_tokens = {
        n: interval.value
        for interval in granularity.intervals
        for n in (interval.first, interval.last)
    }
    assert [
        interval.value for interval in granularity.intervals if interval.first <= 5 <= interval.last
    ] == [at_five]
    assert by_tokens[700] == 64
    assert max(interval.last for interval in granularity.intervals if interval.value == 16) == 192


@pytest.mark.parametrize("version", ["0.5.13", "0.5.14"])
def test_sglang_small_shared_memory_has_smaller_blocks(release: Releases, version: str) -> None:
    """From 0.5.14 on, per-tensor FP8 takes 32 and 64 on GPUs below 128 KiB a block."""
    granularity = ask(release, "sglang", version, dtype="fp8", smem_per_block=101376)
    expected = [(1, 32), (257, 64)] if version == "0.5.14" else [(1, 64), (257, 128)]
    assert steps(granularity) == expected


def test_an_answer_that_needs_shared_memory_asks_for_it(release: Releases) -> None:
    """A missing fact is refused only if the rule depends on it."""
    with pytest.raises(EvidenceError, match="smem_per_block"):
        ask(release, "sglang", "0.5.14", dtype="fp8")
    assert steps(ask(release, "sglang", "0.5.14", dtype="bf16")) == OLD


@pytest.mark.parametrize("dtype", ["int8", "int8_w8a16", "int4"])
def test_sglang_integers_follow_the_16_bit_rule(release: Releases, dtype: str) -> None:
    """SGLang has no branch for integers."""
    assert steps(ask(release, "sglang", "0.5.9", dtype=dtype)) == OLD


def test_batch_invariance_fixes_the_block(release: Releases) -> None:
    """VLLM from 0.11.1 and SGLang from 0.5.4.post2 take 64 in their deterministic modes."""
    for package, version, expected in (
        ("vllm", "0.11.0", OLD),
        ("vllm", "0.11.1", [(1, 64)]),
        ("sglang", "0.5.4.post1", OLD),
        ("sglang", "0.5.4.post2", [(1, 64)]),
    ):
        assert steps(ask(release, package, version, deterministic=True)) == expected


@pytest.mark.parametrize(("top_k", "last"), [(2, 32), (8, 8), (32, 2)])
def test_few_tokens_skip_alignment(release: Releases, top_k: int, last: int) -> None:
    """From 0.14.0 on, tokens * k * 4 <= E gives each pair a block of its own."""
    assert naive_until(ask(release, "vllm", "0.13.0", top_k=top_k)) == 0
    assert naive_until(ask(release, "vllm", "0.14.0", top_k=top_k)) == last
    assert naive_until(ask(release, "vllm", "0.33.0", top_k=top_k)) == last
    assert naive_until(ask(release, "sglang", "0.5.9", top_k=top_k)) == 0


def test_serving_skips_alignment_only_later(release: Releases) -> None:
    """The modular experts class skips alignment since 0.20.0."""
    assert naive_until(ask(release, "vllm", "0.19.1", modular=True)) == 0
    assert naive_until(ask(release, "vllm", "0.20.0", modular=True)) == 8


@pytest.mark.parametrize(
    ("version", "first"), [("0.20.2", "FLASHINFER_TRTLLM"), ("0.23.0", "TRITON")]
)
def test_serving_on_hopper_need_not_run_triton(release: Releases, version: str, first: str) -> None:
    """From 0.20.0 to 0.22.1 FlashInfer's kernels come first on SM90."""
    granularity = ask(release, "vllm", version, sm=90)
    assert granularity.backend_order is not None
    assert granularity.backend_order.kernels[0] == first


@pytest.mark.parametrize(("version", "chunk"), [("0.9.1", 32768), ("0.16.0", 16384)])
def test_long_calls_work_in_chunks(release: Releases, version: str, chunk: int) -> None:
    """A chunk's size selects the configuration, up to 0.17."""
    for checked, expected in ((version, chunk), ("0.18.0", 100_000)):
        rule = release("vllm", checked).by_name()["config_tokens"]
        assert rule.value({"num_tokens": 100_000}).value == expected


@pytest.mark.parametrize(
    ("package", "version", "device", "triton", "source"),
    [
        ("vllm", "0.9.1", "NVIDIA H20", None, "fallback"),
        ("vllm", "0.20.2", "NVIDIA H20", None, "fallback"),
        ("vllm", "0.33.0", "NVIDIA H20", None, "tuned"),
        ("sglang", "0.5.9", "NVIDIA H20", None, "tuned"),
        ("sglang", "0.5.9", "NVIDIA H800", None, "fallback"),
        ("sglang", "0.5.23", "NVIDIA H20", "3.5.1", "tuned"),
        ("sglang", "0.5.23", "NVIDIA H200", "3.6.0", "tuned"),
        ("sglang", "0.5.23", "NVIDIA A800-SXM4-80GB", "3.6.0", "fallback"),
    ],
)
def test_tuned_files_for_the_papers_model(  # noqa: PLR0917
    release: Releases, package: str, version: str, device: str, triton: str | None, source: str
) -> None:
    """For E=256, N=512 a tuned file bounds the rule's validity, not E as the paper states."""
    granularity = ask(release, package, version, last=800, d_ff=512, device=device, triton=triton)
    assert {interval.source for interval in granularity.intervals} == {source}
    if (version, device) == ("0.5.9", "NVIDIA H20"):
        assert steps(granularity) == [(1, 16), (769, 64)]


def test_the_papers_module_shape_has_no_tuned_file(release: Releases) -> None:
    """For E=256, N=1024 the fallback applies, as in the paper."""
    for package, version in (("vllm", "0.9.1"), ("vllm", "0.20.2"), ("sglang", "0.5.9")):
        for device in ("NVIDIA H20", "NVIDIA H800", "NVIDIA H200", "NVIDIA A800-SXM4-80GB"):
            granularity = ask(release, package, version, device=device)
            assert {interval.source for interval in granularity.intervals} == {"fallback"}


def test_the_h200_family_shares_its_files(release: Releases) -> None:
    """From 0.11.1 on vLLM opens the H200's file for every device of that family."""
    for version, tuned in (("0.11.0", False), ("0.11.1", True)):
        index = release("vllm", version).tuned
        layer = next(
            layer_file
            for layer_file in index
            if layer_file.device == "NVIDIA_H200"
            and layer_file.dtype is None
            and layer_file.odd is None
        )
        granularity = ask(
            release,
            "vllm",
            version,
            experts=layer.experts,
            d_ff=layer.d_ff,
            top_k=1,
            device="NVIDIA H200 NVL",
        )
        assert ({interval.source for interval in granularity.intervals} == {"tuned"}) is tuned


@pytest.mark.parametrize(
    ("package", "version", "files", "odd"),
    [
        ("vllm", "0.9.1", 163, 0),
        ("vllm", "0.16.0", 296, 0),
        ("vllm", "0.20.2", 315, 0),
        ("sglang", "0.5.9", 279, 0),
    ],
)
def test_all_tuned_files_are_indexed(
    release: Releases, package: str, version: str, files: int, odd: int
) -> None:
    """The index holds every file of a release; an unknown form is named."""
    index = release(package, version).tuned
    assert len(index) == files
    assert sum(file.odd is not None for file in index) == odd


def test_odd_names_are_reported(release: Releases) -> None:
    """Files of another kernel in vLLM 0.33.0 are reported."""
    odd = [file.odd for file in release("vllm", "0.33.0").tuned if file.odd is not None]
    assert odd
    assert set(odd) == {"name has the unknown part backend=flydsl"}


def test_mechanisms_are_quoted(release: Releases) -> None:
    """Each release has the call that passes BLOCK_SIZE_M to the alignment."""
    for package, version in (("vllm", "0.8.0"), ("vllm", "0.33.0"), ("sglang", "0.5.23")):
        branch = release(package, version).by_name()["mechanism_alignment"].rule.branches[0]
        assert branch.quotes
        assert all("BLOCK_SIZE_M" in quote.text for quote in branch.quotes)


def test_sglang_asks_flashinfer_for_fa2(release: Releases) -> None:
    """SGLang's paged wrappers request fa2 on SM90, where auto would be fa3."""
    branch = release("sglang", "0.5.9").by_name()["mechanism_flashinfer_backend"].rule.branches[0]
    assert branch.value == repr("all paged FlashInfer wrappers are asked for fa2")
    assert all("backend=" in quote.text for quote in branch.quotes)
