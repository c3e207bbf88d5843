"""Kernels of experts that an engine's own option names."""

from itertools import product
from typing import Any

import pytest
from nearfree.backends.kernels import SELECTIONS, Checkpoint
from nearfree.backends.moe_kernels import Selection
from nearfree.backends.named_kernels import WORDS, named_kernel
from nearfree.backends.public_kernels import kernel_for
from nearfree.errors import EvidenceError

STATIC = Checkpoint(static=True, compressed=False)


@pytest.mark.parametrize(
    ("release", "word", "dtype", "sm", "kernel"),
    [
        ("vllm 0.33.0", "marlin", "fp8_block", 90, "Marlin"),
        ("vllm 0.33.0", "triton", "bf16", 100, "Triton"),
        ("vllm 0.33.0", "triton", "mxfp4", 90, "triton_kernels"),
        ("vllm 0.20.2", "flashinfer_trtllm", "mxfp4", 100, "FlashInfer's TRTLLM"),
        ("vllm 0.33.0", "flashinfer_trtllm_afp8", "mxfp4", 100,
         "FlashInfer's TRTLLM over rows in mxfp8"),
        ("vllm 0.33.0", "flashinfer_cutlass", "bf16", 90, "FlashInfer's CUTLASS"),
        ("sglang 0.5.9", "triton_kernel", "mxfp4", 90, "triton_kernels"),
        ("sglang 0.5.9", "flashinfer_mxfp4", "mxfp4", 103, "FlashInfer's TRTLLM"),
        ("sglang 0.5.14", "marlin", "nvfp4", 100, "Marlin"),
    ],
)  # fmt: skip
def test_a_word_names_a_kernel_by_format(
    release: str, word: str, dtype: str, sm: int, kernel: str
) -> None:
    """One word is several kernels where formats have several, and engines have their own words."""
    package, version = release.split()
    assert named_kernel(package, version, word, dtype, sm) == kernel


@pytest.mark.parametrize("package", ["vllm", "sglang"])
def test_a_word_that_is_none_is_refused_with_those_that_are(package: str) -> None:
    """Whatever it is: the remedy lists the engine's words."""
    with pytest.raises(EvidenceError, match=f"'cublas' names no MoE kernel of {package}") as error:
        named_kernel(package, "0.33.0", "cublas", "bf16", 90)
    assert "Name marlin, triton, " in error.value.remedy


def test_an_engine_without_the_option_is_asked_without_it() -> None:
    """TensorRT-LLM's is not read."""
    with pytest.raises(EvidenceError, match="'marlin' names no MoE kernel of tensorrt-llm"):
        named_kernel("tensorrt-llm", "1.2.0", "marlin", "mxfp4", 90)


@pytest.mark.parametrize(
    ("release", "word", "first_release"),
    [
        ("vllm 0.14.0", "marlin", "0.19.0"),
        ("sglang 0.5.8", "triton", "0.5.9"),
        ("sglang 0.5.10", "marlin", "0.5.14"),
    ],
)
def test_a_release_before_the_word_names_the_first_that_has_it(
    release: str, word: str, first_release: str
) -> None:
    """An option came with a release, and a word may have come later."""
    package, version = release.split()
    with pytest.raises(
        EvidenceError, match=f"{release} has no --moe-.*{word} that is read"
    ) as error:
        named_kernel(package, version, word, "mxfp4", 90)
    assert error.value.remedy.startswith(f"Name a release from {first_release} on")


@pytest.mark.parametrize(
    ("word", "dtype", "sm", "remedy"),
    [
        ("flashinfer_trtllm", "bf16", 90, "Name triton or flashinfer_cutlass, or leave"),
        ("flashinfer_cutlass", "fp8_block", 100, "Name marlin or triton or flashinfer_trtllm, or"),
        ("triton", "fp8", 86, "Name marlin, or leave"),
        ("triton", "int8", 90, "Leave --moe-backend out"),
    ],
)
def test_a_kernel_that_does_not_run_there_names_those_that_do(
    word: str, dtype: str, sm: int, remedy: str
) -> None:
    """By format and compute capability."""
    with pytest.raises(EvidenceError, match=f"{word} of vllm 0.33.0 is not read for") as error:
        named_kernel("vllm", "0.33.0", word, dtype, sm, checkpoint=STATIC)
    assert error.value.remedy.startswith(remedy)


@pytest.mark.parametrize("word", ["flashinfer_trtllm", "flashinfer_cutlass"])
@pytest.mark.parametrize("static", [True, False, None])
def test_flashinfer_takes_float8_whose_scales_are_stored(word: str, *, static: bool | None) -> None:
    """VLLM raises where scales of activations are found as it runs; Triton and Marlin take both."""
    checkpoint = Checkpoint(static=static)
    for option in ("triton", "marlin"):
        assert named_kernel("vllm", "0.33.0", option, "fp8", 100, checkpoint=checkpoint)
    if static:
        assert named_kernel("vllm", "0.33.0", word, "fp8", 100, checkpoint=checkpoint).startswith(
            "FlashInfer's"
        )
        return
    with pytest.raises(EvidenceError, match=f"{word} of vllm 0.33.0 takes experts in float8 whose"):
        named_kernel("vllm", "0.33.0", word, "fp8", 100, checkpoint=checkpoint)


def test_sglang_takes_float8_of_modelopt_by_cutlass() -> None:
    """Of other files its server refuses the word."""
    assert named_kernel("sglang", "0.5.23", "flashinfer_cutlass", "fp8", 90, checkpoint=STATIC)
    for checkpoint in (STATIC._replace(compressed=True), Checkpoint()):
        with pytest.raises(EvidenceError, match="takes experts in float8 whose file stores scales"):
            named_kernel("sglang", "0.5.23", "flashinfer_cutlass", "fp8", 90, checkpoint=checkpoint)


def test_int4_ran_by_flashinfer_in_all_but_one_release() -> None:
    """The class of vLLM 0.24.0 takes an activation that no such model has, and reads no option."""
    for version in ("0.22.0", "0.33.0"):
        kernel = named_kernel("vllm", version, "flashinfer_trtllm", "int4", 100)
        assert kernel == "FlashInfer's TRTLLM"
    with pytest.raises(EvidenceError, match=r"0\.24\.0 takes no experts in int4"):
        named_kernel("vllm", "0.24.0", "flashinfer_trtllm", "int4", 100)


@pytest.mark.parametrize(
    ("model_type", "word", "dtype", "since"),
    [
        ("nemotron_h", "flashinfer_trtllm", "bf16", "0.24.0"),
        ("gemma4_text", "flashinfer_trtllm", "nvfp4", "0.24.0"),
        ("gemma4_text", "flashinfer_cutlass", "bf16", "0.24.0"),
        ("gemma4_text", "flashinfer_trtllm", "bf16", None),
        ("gpt_oss", "flashinfer_trtllm", "bf16", None),
    ],
)
def test_a_kernel_without_the_activation_is_refused(
    model_type: str, word: str, dtype: str, since: str | None
) -> None:
    """VLLM raises where the kernel that a word names does not take the experts."""
    checkpoint = Checkpoint(model_type)
    for version in ("0.22.0", "0.24.0", "0.33.0"):
        if since is not None and version >= since:
            assert named_kernel(
                "vllm", version, word, dtype, 100, checkpoint=checkpoint
            ).startswith("FlashInfer")
            continue
        with pytest.raises(EvidenceError, match=f"{dtype} with the activation of {model_type}"):
            named_kernel("vllm", version, word, dtype, 100, checkpoint=checkpoint)
    assert named_kernel("vllm", "0.22.0", word, dtype, 100, checkpoint=Checkpoint("qwen3_moe"))


KINDS = ("qwen3_moe", "gpt_oss", "gemma4_text", "nemotron_h", "deepseek_v4")


def named_kernel_or_reason(package: str, version: str, word: str, *conditions: Any) -> str:
    """Return the kernel that a word names for a format, device and file, or why it names none."""
    dtype, sm, file = conditions
    try:
        return named_kernel(package, version, word, dtype, sm, checkpoint=file)
    except EvidenceError as error:
        return error.what


CASES = list(product((80, 89, 90, 100, 120), KINDS, (True, False), (True, False)))


@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda selection: f"{selection.package}-{selection.dtypes}"
)
def test_what_an_engine_takes_by_itself_may_be_named(selection: Selection) -> None:
    """Two statements of what a kernel takes agree: of its own choice no word is refused for that.

    Words of other kernels, of releases without the option and of devices that are not read are left
    out.
    """
    package, questions = selection.package, product(selection.lines, selection.dtypes, CASES)
    for version, dtype, (sm, kind, static, wide) in questions:
        checkpoint = Checkpoint(kind, static=static, compressed=False, wide=wide)
        own_kernel = kernel_for(package, version, dtype, sm, checkpoint=checkpoint)
        for word, kernels in WORDS[package].items():
            if own_kernel is None or kernels.get(dtype) != own_kernel.name:
                continue
            answer = named_kernel_or_reason(package, version, word, dtype, sm, checkpoint)
            assert answer == own_kernel.name or " takes " not in answer, (
                version,
                dtype,
                sm,
                checkpoint,
            )


def test_a_remedy_names_no_word_that_the_release_lacks() -> None:
    """A word that came later, or that asks for another file, is not named instead."""
    with pytest.raises(EvidenceError) as early:
        named_kernel("sglang", "0.5.9", "flashinfer_trtllm", "nvfp4", 90)
    assert early.value.remedy == "Leave --moe-backend out"
    with pytest.raises(EvidenceError) as dynamic:
        named_kernel("vllm", "0.33.0", "flashinfer_cutlass", "fp8", 100)
    assert dynamic.value.remedy == "Name marlin or triton, or leave --moe-backend out"


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block"])
def test_float8_whose_rows_keep_16_bits_runs_marlin_alone(dtype: str) -> None:
    """All others round what enters."""
    checkpoint = Checkpoint(wide=True)
    assert named_kernel("vllm", "0.33.0", "marlin", dtype, 100, checkpoint=checkpoint) == "Marlin"
    for word in ("triton", "flashinfer_trtllm"):
        with pytest.raises(EvidenceError, match=f"rows in {dtype} alone, and these keep") as error:
            named_kernel("vllm", "0.33.0", word, dtype, 100, checkpoint=checkpoint)
        assert error.value.remedy.startswith("Name marlin, or leave")


@pytest.mark.parametrize("package", ["vllm 0.33.0", "sglang 0.5.23"])
def test_nvfp4_whose_rows_keep_16_bits_runs_marlin_alone(package: str) -> None:
    """Both engines refuse another word for such a file."""
    name, version = package.split()
    checkpoint = Checkpoint(wide=True)
    assert named_kernel(name, version, "marlin", "nvfp4", 100, checkpoint=checkpoint) == "Marlin"
    with pytest.raises(EvidenceError, match="rows in nvfp4 alone, and these keep 16 bits"):
        named_kernel(name, version, "flashinfer_trtllm", "nvfp4", 100, checkpoint=checkpoint)
