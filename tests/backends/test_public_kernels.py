"""What public tables call the kernels that run experts."""

from typing import Any

import pytest
from nearfree.backends.kernels import Checkpoint
from nearfree.backends.public_kernels import (
    BY_PUBLIC_NAME,
    KIMI_K3_TYPE,
    MARLINS,
    TWINS,
    public_kernel,
)


def test_mxfp4_experts_run_by_the_kernel_of_their_model() -> None:
    """gpt-oss and DeepSeek V4 have kernels of their own names; of others only Marlin has one."""
    v4 = public_kernel("sglang", "0.5.23", "mxfp4", 100, of=Checkpoint("deepseek_v4"))
    assert v4 == "sglang_mxfp4_flashinfer_trtllm_moe"

    def named(version: str, sm: int, model_type: str) -> str | None:
        return public_kernel("vllm", version, "mxfp4", sm, of=Checkpoint(model_type))

    assert "mxfp4_mxfp8_trtllm" in str(named("0.33.0", 100, "deepseek_v4"))
    assert "gptoss" in str(named("0.33.0", 100, "gpt_oss"))
    assert "marlin" in str(named("0.24.0", 90, "deepseek_v4"))
    assert "oaitriton" in str(named("0.24.0", 90, "gpt_oss"))
    assert named("0.33.0", 90, "deepseek_v4") is None  # Humming's, which no public table names
    assert named("0.24.0", 100, "llama") is None


@pytest.mark.parametrize(
    ("model_type", "dtype", "named"),
    [
        ("minimax_m2", "nvfp4", "sglang_flashinfer_trtllm_moe"),
        ("minimax_m2", "fp8_block", "sglang_fused_moe_triton"),
        ("mimo_v2_flash", "fp8_block", "sglang_flashinfer_trtllm_moe"),
        ("deepseek_v4", "fp8_block", "sglang_fused_moe_triton"),
        ("glm4_moe", "bf16", "sglang_flashinfer_trtllm_moe"),
        ("gemma4_text", "nvfp4", "sglang_flashinfer_trtllm_moe"),
        ("nemotron_h", "nvfp4", "sglang_flashinfer_trtllm_moe"),
        ("mistral4", "nvfp4", None),
    ],
)
def test_what_a_release_presets_for_a_kind_of_model(
    model_type: str, dtype: str, named: str | None
) -> None:
    """SGLang 0.5.23 says it of some; of other releases and kinds of models it is not stated."""
    of = Checkpoint(model_type, compressed=False)
    assert public_kernel("sglang", "0.5.23", dtype, 100, of=of) == named
    assert public_kernel("sglang", "0.5.10", dtype, 100, of=of) is None
    if dtype == "nvfp4" and named:
        of = Checkpoint(model_type, compressed=True)
        assert public_kernel("sglang", "0.5.23", dtype, 100, of=of) is None


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_gpt_oss_on_hopper_runs_triton_kernels_in_sglang(version: str) -> None:
    """Its curves are vLLM's of the same package; experts that are spread whole run another."""
    of = Checkpoint("gpt_oss")
    name = public_kernel("sglang", version, "mxfp4", 90, of=of)
    backend, kernel = TWINS[name or ""]
    assert backend == "vllm"
    assert BY_PUBLIC_NAME[kernel] == BY_PUBLIC_NAME[name or ""] == "triton_kernels"
    assert public_kernel("sglang", version, "mxfp4", 90, of=of, spread=True) is None
    assert public_kernel("sglang", version, "mxfp4", 90, of=Checkpoint("llama")) is None


def test_int4_of_kimi_k2_5_is_known_by_its_groups() -> None:
    """SGLang 0.5.23 presets a kernel for groups of 32; AWQ's and GPTQ's files run Marlin."""

    def named(**said: Any) -> str | None:
        of = Checkpoint(**{"model_type": "deepseek_v3", "compressed": True, "group": 32, **said})
        return public_kernel("sglang", "0.5.23", "int4", 100, of=of)

    assert named() == "sglang_flashinfer_trtllm_moe"
    assert named(compressed=False) == "sglang_marlin_moe"
    for other in ({"group": 128}, {"compressed": None}, {"model_type": "qwen3_moe"}):
        assert named(**other) is None


def test_kimi_k3_runs_one_kernel_in_sglang() -> None:
    """In a file of compressed-tensors on data-centre Blackwell; vLLM's method for it is another."""

    def named(
        package: str, version: str, *, compressed: bool, kind: str = KIMI_K3_TYPE
    ) -> str | None:
        of = Checkpoint(kind, compressed=compressed)
        return public_kernel(package, version, "mxfp4", 103, of=of)

    assert named("sglang", "0.5.23", compressed=True) == "sglang_flashinfer_trtllm_moe"
    assert named("sglang", "0.5.23", compressed=False) is None
    assert named("sglang", "0.5.23", compressed=True, kind="kimi_linear") is None
    assert named("sglang", "0.5.10", compressed=True) is None
    assert named("vllm", "0.33.0", compressed=True) is None


def test_marlin_has_a_name_in_every_format() -> None:
    """Where no public table has Marlin's experts in a format, they go by those in int4."""
    by_int4 = public_kernel("vllm", "0.24.0", "int4", 80)
    assert by_int4 in MARLINS
    for dtype in ("fp8", "fp8_block", "nvfp4"):
        assert public_kernel("vllm", "0.24.0", dtype, 80) == by_int4
    own = public_kernel("vllm", "0.24.0", "mxfp4", 80, of=Checkpoint("llama"))
    assert own in MARLINS
    assert own != by_int4
    assert public_kernel("vllm", "0.24.0", "nvfp4", 100) not in MARLINS


def test_experts_in_nvfp4_run_in_cutlass_on_12_0() -> None:
    """There vLLM's own curves of FlashInfer's kernel are public."""
    found = public_kernel("vllm", "0.33.0", "nvfp4", 120)
    assert BY_PUBLIC_NAME[found or ""] == "FlashInfer's CUTLASS"
    assert found not in TWINS


@pytest.mark.parametrize(
    ("release", "sm", "of", "kernel"),
    [
        ("vllm 0.33.0", 90, Checkpoint(static=True), "FlashInfer's CUTLASS"),
        ("vllm 0.33.0", 100, Checkpoint(static=True, compressed=True), "FlashInfer's TRTLLM"),
        ("vllm 0.22.0", 100, Checkpoint(static=True), None),  # if TRTLLM takes its routing
        ("vllm 0.33.0", 90, Checkpoint(static=False, compressed=False), "Triton"),
        ("vllm 0.33.0", 100, Checkpoint(static=False, compressed=False), "Triton"),
        ("vllm 0.33.0", 90, Checkpoint(static=False, compressed=True), None),  # vLLM's CUTLASS
        ("vllm 0.33.0", 90, Checkpoint(compressed=True), None),
        ("vllm 0.33.0", 90, Checkpoint(), None),
        ("vllm 0.33.0", 89, Checkpoint(), None),  # Triton in any case, by its rules
        ("sglang 0.5.23", 100, Checkpoint("glm4_moe"), "Triton"),
        ("sglang 0.5.23", 100, Checkpoint("qwen3_moe"), None),  # TRTLLM, of which no table tells
    ],
)
def test_experts_in_float8_run_by_what_their_file_says(
    release: str, sm: int, of: Checkpoint, kernel: str | None
) -> None:
    """The first kernel whose condition holds runs; where one is not known before it, none is."""
    found = public_kernel(*release.split(), "fp8", sm, of=of)
    assert BY_PUBLIC_NAME.get(found or "") == kernel


@pytest.mark.parametrize(
    ("release", "sm", "model_type", "kernel"),
    [
        ("vllm 0.33.0", 100, "qwen3_moe", "FlashInfer's TRTLLM"),
        ("vllm 0.24.0", 120, "qwen3_moe", "FlashInfer's CUTLASS"),
        ("vllm 0.33.0", 90, "qwen3_moe", None),  # Triton, by its rules
        ("vllm 0.22.0", 100, "qwen3_moe", None),  # unless an environment variable says not
        ("vllm 0.33.0", 100, "gemma4_text", None),  # its activation is another
        ("sglang 0.5.23", 100, "qwen3_5_moe_text", "FlashInfer's TRTLLM"),
        ("sglang 0.5.23", 100, "deepseek_v3", None),  # preset from 0.5.14 on
        ("sglang 0.5.23", 100, "glm4_moe_lite", None),  # Triton
    ],
)
def test_experts_in_16_bits_run_in_libraries_on_blackwell(
    release: str, sm: int, model_type: str, kernel: str | None
) -> None:
    """Where an engine takes FlashInfer's kernel for a model it is named; Triton's has no name."""
    found = public_kernel(*release.split(), "bf16", sm, of=Checkpoint(model_type))
    assert BY_PUBLIC_NAME.get(found or "") == kernel
