"""Which library runs experts whose T(N) is not computed from rules of blocks."""

import re

import pytest
from msgspec.structs import replace
from nearfree.backends.kernels import Checkpoint
from nearfree.backends.moe_kernels import CUTLASS, MARLIN, TRITON_KERNELS, UNKNOWN_YET
from nearfree.backends.names import BackendRelease
from nearfree.backends.public_kernels import BY_PUBLIC_NAME, PUBLIC_NAMES
from nearfree.core.modules.moe_ffn import OTHER_MOE, MoeQuestion, is_triton_moe
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Product
from nearfree.derive.granularity.moe_kernels import (
    activation_format,
    block_kernel,
    kernel_by_file,
    moe_format,
    named_moe_kernel,
    public_library,
    reads_moe,
    runs_marlin,
    triton_stands_in,
)
from nearfree.derive.granularity.releases import moe_release
from nearfree.errors import EvidenceError

VLLM = BackendRelease("vllm", "0.33.0")
SGLANG = BackendRelease("sglang", "0.5.23")
MXFP4, INT4 = Product("mxfp4", "bfloat16"), Product("int4", "bfloat16")
BLOCKS, NVFP4 = Product("float8_block", "float8_block"), Product("nvfp4", "nvfp4")
OPENAI_TRITON = PUBLIC_NAMES["vllm", "mxfp4", TRITON_KERNELS]


@pytest.mark.parametrize(
    ("sm", "model_type", "library"),
    [
        (90, "gpt_oss", OPENAI_TRITON),
        (100, "gpt_oss", PUBLIC_NAMES["vllm", "mxfp4", "FlashInfer's TRTLLM"]),
        (80, "gpt_oss", PUBLIC_NAMES["vllm", "mxfp4", MARLIN]),
        (90, "llama", None),
        (None, "gpt_oss", None),
    ],
)
def test_gpt_oss_runs_kernels_of_its_own(
    sm: int | None, model_type: str, library: str | None
) -> None:
    """A release has kernels for gpt-oss alone, by compute capability."""
    assert public_library(VLLM, MXFP4, sm, Checkpoint(model_type)) == library
    assert library is None or not is_triton_moe(library)


@pytest.mark.parametrize(
    ("release", "sm", "kernel"),
    [
        (SGLANG, 90, MARLIN),
        (VLLM, 80, MARLIN),
        (VLLM, 90, None),  # Humming, of which no public table speaks
    ],
)
def test_four_bits_run_in_marlin(release: BackendRelease, sm: int, kernel: str | None) -> None:
    """Marlin's T(N) with 4-bit weights is that of its public curves, where an engine runs it."""
    library = public_library(release, INT4, sm)
    assert BY_PUBLIC_NAME.get(library or "") == kernel


@pytest.mark.parametrize(
    ("sm", "spread", "kernel"),
    [(90, True, CUTLASS), (90, False, None), (89, True, None), (80, True, MARLIN)],
)
def test_experts_in_blocks_that_are_spread_run_in_cutlass_on_hopper(
    sm: int, *, spread: bool, kernel: str | None
) -> None:
    """There vLLM leaves Triton, whose blocks are read, for a library where experts are whole."""
    of = Checkpoint(parallel=Parallel(tp=2, ep=2) if spread else Parallel())
    library = public_library(VLLM, BLOCKS, sm, of)
    assert BY_PUBLIC_NAME.get(library or "") == kernel
    assert reads_moe(VLLM, BLOCKS, sm, spread=spread) == (kernel != CUTLASS)


@pytest.mark.parametrize(("sm", "wide"), [(80, True), (89, False), (90, False), (100, False)])
def test_marlin_takes_rows_of_16_bits(sm: int, *, wide: bool) -> None:
    """Where it runs experts in float8 or nvfp4, rows are not rounded, and its blocks are read."""
    assert runs_marlin(VLLM, BLOCKS, sm) == wide
    assert runs_marlin(VLLM, NVFP4, sm) == (sm < 90)
    assert runs_marlin(SGLANG, NVFP4, sm) == (sm < 100)
    assert not runs_marlin(VLLM, INT4, sm)
    assert not runs_marlin(BackendRelease("vllm", "0.23.0"), BLOCKS, sm)
    assert moe_format("bfloat16", "float8_block") == moe_format("float8_block", "float8_block")
    question = MoeQuestion(
        backend="vllm", backend_version="0.33.0", kernel=None, dtype="bfloat16",
        weights="float8_block", d_model=2048, d_ff=768, experts=128, top_k=8, block_size_m=None,
        sm=sm, device_name="NVIDIA",
    )  # fmt: skip
    release = moe_release("vllm", "0.33.0", None)
    for without in (replace(question, block_size_m=64), replace(question, sm=None)):
        with pytest.raises(EvidenceError, match=r"Triton .* which rounds their activations"):
            block_kernel(without, release, "fp8_block")
    if wide:
        assert block_kernel(question, release, "fp8_block") == MARLIN
    else:
        with pytest.raises(EvidenceError, match="which rounds their activations"):
            block_kernel(question, release, "fp8_block")


def test_rows_enter_mxfp4_experts_in_what_the_device_takes() -> None:
    """Before 10.0 vLLM's kernels take 16 bits, whatever a file says; TensorRT-LLM rounds later."""
    assert [activation_format("vllm", "mxfp4", sm) for sm in (90, 100)] == ["bfloat16", None]
    assert [activation_format("trtllm", "mxfp4", sm) for sm in (90, 100)] == [None, "float8"]
    rounds = {90: None, 100: "float8", 103: "float8", 120: None}
    assert {sm: activation_format("sglang", "mxfp4", sm) for sm in rounds} == rounds
    assert (
        activation_format("vllm", "nvfp4", 90) is activation_format("vllm", "mxfp4", None) is None
    )


def test_a_release_that_is_not_read_names_no_library() -> None:
    """The kernel of one release is not assumed for another."""
    assert public_library(BackendRelease("vllm", "0.9.1"), MXFP4, 90, Checkpoint("gpt_oss")) is None


def test_blocks_of_openai_s_triton_are_read() -> None:
    """By T(N) it is a library of public curves, and its release says its blocks all the same."""
    release = moe_release("vllm", "0.33.0", OPENAI_TRITON)
    question = MoeQuestion(
        backend="vllm", backend_version="0.33.0", kernel=OPENAI_TRITON, dtype="bfloat16",
        weights="mxfp4", d_model=2880, d_ff=2880, experts=32, top_k=4, block_size_m=None, sm=90,
        device_name="NVIDIA H100 80GB HBM3",
    )  # fmt: skip
    assert block_kernel(question, release, "mxfp4") == TRITON_KERNELS
    with pytest.raises(EvidenceError, match="one of several kernels"):
        block_kernel(replace(question, kernel=None), release, "mxfp4")


@pytest.mark.parametrize(
    ("version", "sm", "model_type", "stand_in"),
    [
        ("0.33.0", 90, "gemma4_text", False),
        ("0.33.0", 100, "qwen3_moe", True),
        ("0.33.0", 100, "gemma4_text", True),
        ("0.22.0", 90, "qwen3_moe", True),
        ("0.22.0", 100, "nemotron_h", True),
        ("0.22.0", 80, "qwen3_moe", False),
        ("0.19.0", 100, "qwen3_moe", False),
    ],
)
def test_triton_stands_for_kernels_that_an_engine_may_run(
    version: str, sm: int, model_type: str, *, stand_in: bool
) -> None:
    """So it does in 16 bits alone, where the release's own choice was read and is not Triton's."""
    release, of = BackendRelease("vllm", version), Checkpoint(model_type)
    plain = Product("bfloat16", "bfloat16")
    assert triton_stands_in(release, plain, sm, of) == stand_in
    assert not triton_stands_in(release, INT4, sm, of)


def test_triton_stands_for_no_other_where_requests_are_spread() -> None:
    """There vLLM runs Triton's kernel itself, in 16 bits on 12.0."""
    plain, of = Product("bfloat16", "bfloat16"), Checkpoint("qwen3_moe")
    assert triton_stands_in(VLLM, plain, 120, of)
    assert not triton_stands_in(VLLM, plain, 120, of._replace(parallel=Parallel(dp=2)))


@pytest.mark.parametrize("release", [VLLM, BackendRelease("vllm", "0.24.0"), SGLANG])
def test_nvfp4_experts_whose_rows_keep_16_bits_run_marlin(release: BackendRelease) -> None:
    """No other kernel takes them on Blackwell; those whose rows are rounded run libraries'."""
    of, wide = Checkpoint("qwen3_5_moe_text", compressed=False), Product("nvfp4", "bfloat16")
    for sm in (100, 120):
        assert BY_PUBLIC_NAME[public_library(release, wide, sm, of) or ""] == MARLIN
        assert BY_PUBLIC_NAME[public_library(release, NVFP4, sm, of) or ""] != MARLIN


def test_a_release_that_knows_no_such_rows_names_no_kernel_that_has_a_form() -> None:
    """SGLang reads such files from 0.5.23 on: before, nothing that it runs answers for them."""
    wide = Product("nvfp4", "bfloat16")
    for sm in (90, 100):
        assert public_library(BackendRelease("sglang", "0.5.14"), wide, sm) == UNKNOWN_YET
    assert not re.search(OTHER_MOE, UNKNOWN_YET)
    assert not is_triton_moe(UNKNOWN_YET)


@pytest.mark.parametrize(("kind", "wide"), [("gemma4_text", True), ("qwen3_moe", False)])
def test_rows_are_rounded_by_what_a_model_runs(kind: str, *, wide: bool) -> None:
    """Gemma 4 in nvfp4 runs Marlin in vLLM 0.22.0, where others run what rounds their rows."""
    assert runs_marlin(BackendRelease("vllm", "0.22.0"), NVFP4, 100, Checkpoint(kind)) == wide


def test_marlin_rounds_no_rows_of_mxfp4() -> None:
    """DeepSeek V4 stores mxfp4 for rows in float8: on 12.0 vLLM 0.22.0 unpacks it to 16 bits."""
    of, rows = Checkpoint("deepseek_v4"), Product("mxfp4", "float8")
    assert runs_marlin(BackendRelease("vllm", "0.22.0"), rows, 120, of)
    assert not runs_marlin(BackendRelease("vllm", "0.24.0"), rows, 120, of)


@pytest.mark.parametrize(
    ("sm", "message", "kernel"),
    [
        (90, {"compressed": True}, "vLLM's CUTLASS"),
        (90, {"compressed": False}, None),  # Triton
        (90, {}, None),
        (89, {"compressed": True}, None),  # Triton, whatever the file
    ],
)
def test_a_kernel_that_the_file_decides_is_named(
    sm: int, message: dict[str, bool], kernel: str | None
) -> None:
    """Where several kernels run float8 and its T(N) is not read, the one of the file is named."""
    of = Checkpoint("glm4_moe", static=False, **message)
    assert kernel_by_file(VLLM, Product("float8", "float8"), sm, of) == kernel


@pytest.mark.parametrize(
    ("word", "kernel"), [("flashinfer_trtllm", None), ("marlin", MARLIN), ("triton", "Triton")]
)
def test_a_word_for_the_engine_s_own_choice_names_nothing(word: str, kernel: str | None) -> None:
    """Also where the model's file decides on that choice."""
    of = Checkpoint("qwen3_moe", static=True, compressed=False)
    assert named_moe_kernel(VLLM, Product("float8", "float8"), 100, word, of) == kernel


def test_no_word_is_read_where_the_engine_s_own_choice_is_not() -> None:
    """Of a format that was not read of a release, a word is not either."""
    with pytest.raises(EvidenceError, match=r"vllm 0\.19\.0 runs for mxfp4 weights is not read"):
        named_moe_kernel(
            BackendRelease("vllm", "0.19.0"), MXFP4, 90, "marlin", Checkpoint("gpt_oss")
        )
