"""Which release's rules apply to a backend: of the paper, measured or imported."""

import pytest
from nearfree.backends.public_kernels import BY_PUBLIC_NAME
from nearfree.core.modules.moe_ffn import is_triton_moe
from nearfree.derive.granularity.releases import module_release, moe_release
from nearfree.errors import EvidenceError, SourceError

TRITON = [
    None,
    "vllm_fused_moe",
    "sglang_fused_moe_triton",
    "vllm_unquantizedfusedmoe_triton_tritonexperts",
    "triton",
]
OTHERS = [
    "sglang_flashinfer_cutlass_moe",
    "sglang_marlin_moe",
    "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic",
    "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic",
    "deepgemm",
    "an_unknown_kernel",
    "",
]


@pytest.mark.parametrize(
    ("backend", "version", "release"),
    [
        ("vllm_0_9_1", None, ("vllm", "0.9.1")),
        ("sglang_0_5_9", "9.9", ("sglang", "0.5.9")),
        ("vllm", "0.20.2", ("vllm", "0.20.2")),
        ("sglang", "0.5.6.post2", ("sglang", "0.5.6.post2")),
    ],
)
@pytest.mark.parametrize("kernel", TRITON)
def test_moe_backends(
    backend: str, version: str | None, release: tuple[str, str], kernel: str | None
) -> None:
    """A printed backend's name contains its version; otherwise the setting gives it."""
    assert moe_release(backend, version, kernel) == release


@pytest.mark.parametrize(
    ("backend", "version", "release"),
    [
        ("flash_attn_2", "", ("flash-attn", "2.8.3")),
        ("flashinfer", None, ("flashinfer-python", "0.6.13")),
        ("flash_attn", "2.7.0", ("flash-attn", "2.7.0")),
        ("flash_attn_3", "0.0.34", ("xformers", "0.0.34")),
        ("flashinfer_fa3", "0.5.3", ("flashinfer-python", "0.5.3")),
    ],
)
def test_attention_backends(backend: str, version: str | None, release: tuple[str, str]) -> None:
    """FlashAttention 3 is xformers', both of FlashInfer's schedulers are one package's."""
    assert module_release(backend, version, "attention") == release


@pytest.mark.parametrize("kernel", sorted({*OTHERS} - {*BY_PUBLIC_NAME}))
def test_a_kernel_that_is_not_tritons_is_refused_by_name(kernel: str) -> None:
    """Rules are of Triton's fused MoE and of named kernels beside it; no other is taken for it."""
    with pytest.raises(EvidenceError, match=f"no rules of the MoE kernel {kernel}"):
        moe_release("vllm", "0.20.2", kernel)


def test_kernels_are_told_apart_by_name() -> None:
    """Triton's fused MoE is known by its names; one without a name is taken for it."""
    assert all(map(is_triton_moe, TRITON))
    assert not any(map(is_triton_moe, OTHERS))


@pytest.mark.parametrize("backend", ["trtllm", "torch_padded", "flashinfer", "flash_attn"])
def test_backends_without_moe_rules(backend: str) -> None:
    """Backends without MoE rules are refused by name."""
    with pytest.raises(EvidenceError, match=f"no rules of the MoE kernels of {backend}"):
        moe_release(backend, "1.0", None)


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm", "torch_sdpa"])
def test_backends_without_tile_rules(backend: str) -> None:
    """An engine's own attention has none, nor has torch."""
    with pytest.raises(EvidenceError, match=f"no rules of the attention kernels of {backend}"):
        module_release(backend, "0.20.2", "attention")


@pytest.mark.parametrize("version", [None, ""])
def test_a_missing_version_is_not_guessed(version: str | None) -> None:
    """A missing version is refused, since rules differ between versions."""
    with pytest.raises(EvidenceError, match="no version of vllm is given"):
        moe_release("vllm", version, None)


def test_a_malformed_version_is_refused() -> None:
    """A malformed version of a curve's file is refused."""
    with pytest.raises(SourceError, match="no version of vllm"):
        moe_release("vllm", "latest", None)
