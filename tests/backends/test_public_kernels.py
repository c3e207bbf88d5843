"""Names in public tables of the kernels that run experts."""

from typing import Any

import pytest
from nearfree.backends.kernels import Checkpoint
from nearfree.backends.moe_kernels import UNKNOWN_YET
from nearfree.backends.public_kernels import (
    BY_PUBLIC_NAME,
    KIMI_K3_TYPE,
    MARLINS,
    TWINS,
    kernel_for,
    public_kernel,
)
from nearfree.core.parallel import Parallel


def test_mxfp4_experts_run_by_the_kernel_of_their_model() -> None:
    """gpt-oss and DeepSeek V4 have kernels of their own names; of others only Marlin has one."""
    v4 = public_kernel("sglang", "0.5.23", "mxfp4", 100, checkpoint=Checkpoint("deepseek_v4"))
    assert v4 == "sglang_mxfp4_flashinfer_trtllm_moe"

    def named(version: str, sm: int, model_type: str) -> str | None:
        return public_kernel("vllm", version, "mxfp4", sm, checkpoint=Checkpoint(model_type))

    assert "mxfp4_mxfp8_trtllm" in str(named("0.33.0", 100, "deepseek_v4"))
    assert "gptoss" in str(named("0.33.0", 100, "gpt_oss"))
    assert "marlin" in str(named("0.24.0", 90, "deepseek_v4"))
    assert "oaitriton" in str(named("0.24.0", 90, "gpt_oss"))
    assert named("0.33.0", 90, "deepseek_v4") is None  # Humming's, which no public table names
    assert named("0.24.0", 100, "llama") is None


@pytest.mark.parametrize(
    ("model_type", "dtype", "kernel"),
    [
        ("minimax_m2", "nvfp4", "sglang_flashinfer_trtllm_moe"),
        ("minimax_m2", "fp8_block", "sglang_fused_moe_triton"),
        ("mimo_v2_flash", "fp8_block", "sglang_flashinfer_trtllm_moe"),
        ("deepseek_v4", "fp8_block", "sglang_fused_moe_triton"),
        ("glm4_moe", "bf16", "sglang_flashinfer_trtllm_moe"),
        ("gemma4_text", "nvfp4", "sglang_flashinfer_trtllm_moe"),
        ("nemotron_h", "nvfp4", "sglang_flashinfer_trtllm_moe"),
        ("mistral4", "nvfp4", "sglang_flashinfer_trtllm_moe"),
    ],
)
def test_what_a_release_presets_for_a_kind_of_model(
    model_type: str, dtype: str, kernel: str | None
) -> None:
    """SGLang 0.5.23 says it of some, and of any in nvfp4; of other releases it is not stated."""
    checkpoint = Checkpoint(model_type, compressed=False)
    assert public_kernel("sglang", "0.5.23", dtype, 100, checkpoint=checkpoint) == kernel
    if model_type != "nemotron_h":
        assert public_kernel("sglang", "0.5.10", dtype, 100, checkpoint=checkpoint) is None


def test_nvfp4_of_compressed_tensors_runs_another_kernel() -> None:
    """SGLang 0.5.23 runs TRTLLM for ModelOpt's files of any model, CUTLASS for those."""

    def named(*, compressed: bool | None, version: str = "0.5.23") -> str | None:
        checkpoint = Checkpoint("mixtral", compressed=compressed)
        name = public_kernel("sglang", version, "nvfp4", 100, checkpoint=checkpoint)
        return BY_PUBLIC_NAME.get(name or "")

    assert named(compressed=False) == named(compressed=None) == "FlashInfer's TRTLLM"
    assert named(compressed=True) == "FlashInfer's CUTLASS"
    assert named(compressed=False, version="0.5.14") is None  # SGLang's CUTLASS


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_gpt_oss_on_hopper_runs_triton_kernels_in_sglang(version: str) -> None:
    """Its curves are vLLM's of the same package; experts that are spread whole run another."""
    checkpoint = Checkpoint("gpt_oss")
    name = public_kernel("sglang", version, "mxfp4", 90, checkpoint=checkpoint)
    backend, kernel = TWINS[name or ""]
    assert backend == "vllm"
    assert BY_PUBLIC_NAME[kernel] == BY_PUBLIC_NAME[name or ""] == "triton_kernels"
    spread = checkpoint._replace(parallel=Parallel(dp=2, ep=2))
    assert public_kernel("sglang", version, "mxfp4", 90, checkpoint=spread) is None
    assert public_kernel("sglang", version, "mxfp4", 90, checkpoint=Checkpoint("llama")) is None


@pytest.mark.parametrize("version", ["0.5.10", "0.5.14", "0.5.23"])
def test_int4_of_kimi_k2_5_is_known_by_its_groups(version: str) -> None:
    """SGLang presets a kernel for groups of 32 from 0.5.10 on; others and other files run Marlin.

    In 0.5.23 others of compressed-tensors run Triton there, whose T(N) in int4 is not read.
    """

    def named(release: str = version, **changes: Any) -> str | None:
        checkpoint = Checkpoint(
            **{"model_type": "deepseek_v3", "compressed": True, "group": 32, **changes}
        )
        return public_kernel("sglang", release, "int4", 100, checkpoint=checkpoint)

    assert named() == "sglang_flashinfer_trtllm_moe"
    assert named("0.5.9") == named(compressed=False) == "sglang_marlin_moe"
    for changes_ in ({"group": 128}, {"compressed": None}, {"model_type": "qwen3_moe"}):
        assert named(**changes_) == (None if version == "0.5.23" else "sglang_marlin_moe")


def test_kimi_k3_runs_one_kernel_in_sglang() -> None:
    """In a file of compressed-tensors on data-centre Blackwell; vLLM's method for it is another."""

    def named(
        package: str, version: str, *, compressed: bool, kind: str = KIMI_K3_TYPE
    ) -> str | None:
        checkpoint = Checkpoint(kind, compressed=compressed)
        return public_kernel(package, version, "mxfp4", 103, checkpoint=checkpoint)

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
    marlin_name = public_kernel("vllm", "0.24.0", "mxfp4", 80, checkpoint=Checkpoint("llama"))
    assert marlin_name in MARLINS
    assert marlin_name != by_int4
    assert public_kernel("vllm", "0.24.0", "nvfp4", 100) not in MARLINS


def test_experts_in_nvfp4_run_in_cutlass_on_12_0() -> None:
    """There vLLM's own curves of FlashInfer's kernel are public."""
    kernel = public_kernel("vllm", "0.33.0", "nvfp4", 120)
    assert BY_PUBLIC_NAME[kernel or ""] == "FlashInfer's CUTLASS"
    assert kernel not in TWINS


@pytest.mark.parametrize(
    ("release", "sm", "checkpoint", "kernel"),
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
    release: str, sm: int, checkpoint: Checkpoint, kernel: str | None
) -> None:
    """The first kernel whose condition holds runs; where one is not known before it, none is."""
    public_name = public_kernel(*release.split(), "fp8", sm, checkpoint=checkpoint)
    assert BY_PUBLIC_NAME.get(public_name or "") == kernel


@pytest.mark.parametrize(
    ("release", "dtype", "sm"),
    [
        ("vllm 0.33.0", "fp8_block", 100),
        ("vllm 0.33.0", "fp8", 90),
        ("sglang 0.5.23", "fp8_block", 100),
        ("sglang 0.5.23", "fp8_block", 90),
    ],
)
def test_float8_whose_rows_keep_16_bits_has_marlin_alone(release: str, dtype: str, sm: int) -> None:
    """A kernel that rounds what enters is none for experts whose rows are not rounded."""
    checkpoint = Checkpoint("qwen3_moe", static=True)
    package, version = release.split()
    assert kernel_for(package, version, dtype, sm, checkpoint=checkpoint) is not None
    assert (
        kernel_for(package, version, dtype, sm, checkpoint=checkpoint._replace(wide=True)) is None
    )
    marlin = kernel_for("vllm", "0.33.0", dtype, 86, checkpoint=checkpoint._replace(wide=True))
    assert marlin is not None
    assert marlin.name == "Marlin"


@pytest.mark.parametrize(
    ("release", "sm", "model_type", "kernel"),
    [
        ("vllm 0.33.0", 100, "qwen3_moe", "FlashInfer's TRTLLM"),
        ("vllm 0.24.0", 120, "qwen3_moe", "FlashInfer's CUTLASS"),
        ("vllm 0.33.0", 90, "qwen3_moe", None),  # Triton, by its rules
        ("vllm 0.22.0", 90, "qwen3_moe", "FlashInfer's CUTLASS"),
        ("vllm 0.22.0", 100, "qwen3_moe", "FlashInfer's TRTLLM"),
        ("vllm 0.22.0", 100, "nemotron_h", None),  # it took no experts without a gate
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
    public_name = public_kernel(*release.split(), "bf16", sm, checkpoint=Checkpoint(model_type))
    assert BY_PUBLIC_NAME.get(public_name or "") == kernel


@pytest.mark.parametrize("version", ["0.20.2", "0.22.0", "0.24.0", "0.33.0"])
def test_experts_in_16_bits_leave_cutlass_where_requests_are_spread(version: str) -> None:
    """VLLM moves FlashInfer's CUTLASS behind Triton where dp is above 1; TRTLLM it keeps."""
    checkpoint = Checkpoint("qwen3_moe")
    spread = checkpoint._replace(parallel=Parallel(dp=2))
    for sm in (90, 120):
        together, several = (
            kernel_for("vllm", version, "bf16", sm, checkpoint=checkpoint_)
            for checkpoint_ in (checkpoint, spread)
        )
        assert together is not None
        assert several is not None
        cutlass_first = sm == 120 or version in ("0.20.2", "0.22.0")
        assert (together.name, several.name) == (
            "FlashInfer's CUTLASS" if cutlass_first else "Triton",
            "Triton",
        )
    several = kernel_for("vllm", version, "bf16", 100, checkpoint=spread)
    assert several is not None
    assert several.name == "FlashInfer's TRTLLM"


@pytest.mark.parametrize(
    ("version", "degrees", "kernel"),
    [
        ("0.33.0", {"tp": 2, "dp": 2, "ep": 4}, "FlashInfer's CUTLASS"),
        ("0.33.0", {"tp": 2, "dp": 2}, "FlashInfer's TRTLLM"),
        ("0.33.0", {"tp": 4, "ep": 4}, "FlashInfer's TRTLLM"),
        ("0.24.0", {"tp": 2, "dp": 2, "ep": 4}, "FlashInfer's TRTLLM"),
    ],
)
def test_trtllm_takes_no_rows_that_are_split(
    version: str, degrees: dict[str, int], kernel: str
) -> None:
    """Of float8 with one scale vLLM 0.33.0 runs CUTLASS where tp, dp and ep are above 1."""
    checkpoint = Checkpoint("qwen3_moe", static=True, parallel=Parallel(**degrees))
    public_name = public_kernel("vllm", version, "fp8", 100, checkpoint=checkpoint)
    assert BY_PUBLIC_NAME[public_name or ""] == kernel


@pytest.mark.parametrize("model_type", ["qwen3_5_moe_text", "qwen3_moe"])
def test_qwen3_5_in_blocks_runs_triton_on_12_0(model_type: str) -> None:
    """VLLM 0.33.0 turns DeepGEMM off for it; 0.24.0 did so for dense products alone."""
    checkpoint = Checkpoint(model_type)
    without_deepgemm = model_type == "qwen3_5_moe_text"
    newest = public_kernel("vllm", "0.33.0", "fp8_block", 120, checkpoint=checkpoint)
    assert newest == ("vllm_fused_moe" if without_deepgemm else None)
    assert public_kernel("vllm", "0.24.0", "fp8_block", 120, checkpoint=checkpoint) is None


@pytest.mark.parametrize(
    ("version", "kernel"),
    [
        ("0.20.2", "vLLM's CUTLASS"),
        ("0.22.0", "Marlin"),
        ("0.24.0", "FlashInfer's TRTLLM"),
        ("0.33.0", "FlashInfer's TRTLLM"),
    ],
)
def test_gemma_4_runs_what_takes_its_activation(version: str, kernel: str) -> None:
    """FlashInfer's kernels take its GELU in nvfp4 since vLLM 0.24.0 alone."""
    public_name = public_kernel("vllm", version, "nvfp4", 100, checkpoint=Checkpoint("gemma4_text"))
    assert BY_PUBLIC_NAME.get(public_name or "", public_name) == kernel


@pytest.mark.parametrize(
    ("version", "dtype", "sm", "static", "kernel"),
    [
        ("0.33.0", "fp8_block", 100, None, "Triton"),
        ("0.33.0", "fp8_block", 120, None, "Triton"),
        ("0.33.0", "fp8", 100, True, "FlashInfer's CUTLASS"),
        ("0.22.0", "fp8", 100, True, "Triton"),
        ("0.33.0", "fp8_block", 86, None, "Marlin"),
    ],
)
def test_gemma_4_in_float8_runs_what_takes_its_activation(
    version: str, dtype: str, sm: int, *, static: bool | None, kernel: str
) -> None:
    """TRTLLM and DeepGEMM do not in float8, and CUTLASS does since vLLM 0.24.0."""
    checkpoint = Checkpoint("gemma4_text", static=static, compressed=False)
    chosen = kernel_for("vllm", version, dtype, sm, checkpoint=checkpoint)
    assert chosen is not None
    assert chosen.name == kernel
    if kernel == "Triton":
        assert public_kernel("vllm", version, dtype, sm, checkpoint=checkpoint) == "vllm_fused_moe"


def test_what_no_table_names_goes_by_its_own_name_where_one_model_runs_it() -> None:
    """DeepSeek V4 in mxfp4 on 12.0 by DeepGEMM: without a name it would be answered by Marlin."""
    for model_type, kernel in (("deepseek_v4", "DeepGEMM"), ("gpt_oss", "Marlin")):
        public_name = public_kernel(
            "vllm", "0.24.0", "mxfp4", 120, checkpoint=Checkpoint(model_type)
        )
        assert BY_PUBLIC_NAME.get(public_name or "", public_name) == kernel


NEMOTRON = Checkpoint("nemotron_h", static=True, compressed=False)


@pytest.mark.parametrize(
    ("version", "dtype", "sm", "kernel"),
    [
        ("0.5.9", "fp8", 90, "FlashInfer's CUTLASS"),
        ("0.5.9", "fp8", 100, "FlashInfer's CUTLASS"),
        ("0.5.10", "nvfp4", 100, "FlashInfer's CUTLASS"),
        ("0.5.10", "bf16", 90, "Triton"),
        ("0.5.14", "fp8", 90, "FlashInfer's CUTLASS"),
        ("0.5.14", "bf16", 90, "FlashInfer's CUTLASS"),
        ("0.5.14", "nvfp4", 90, "Marlin"),
        ("0.5.14", "bf16", 100, "FlashInfer's TRTLLM"),
        ("0.5.23", "fp8", 89, "FlashInfer's CUTLASS"),
        ("0.5.23", "bf16", 120, "FlashInfer's CUTLASS"),
        ("0.5.14", "bf16", 80, UNKNOWN_YET),
        ("0.5.23", "bf16", 86, UNKNOWN_YET),
        ("0.5.23", "bf16", 89, "FlashInfer's CUTLASS"),
        ("0.5.23", "fp8_block", 90, "Triton"),
    ],
)
def test_nemotron_h_runs_cutlass_in_sglang(version: str, dtype: str, sm: int, kernel: str) -> None:
    """Files of ModelOpt in all releases, 16 bits since 0.5.14, where TRTLLM is not preset.

    Below 8.9 SGLang asks for it as well, and FlashInfer has none there: nothing runs.
    """
    chosen = kernel_for("sglang", version, dtype, sm, checkpoint=NEMOTRON)
    assert chosen is not None
    assert chosen.name == kernel
    if kernel == "FlashInfer's CUTLASS":
        name = public_kernel("sglang", version, dtype, sm, checkpoint=NEMOTRON)
        assert BY_PUBLIC_NAME[name or ""] == kernel
        assert (name in TWINS) == (dtype == "fp8" or (dtype == "bf16" and sm != 120))
        twin = TWINS.get(name or "", ("trtllm", "moe_torch_flow_cutlass"))
        assert twin == ("trtllm", "moe_torch_flow_cutlass")


def test_another_file_of_nemotron_h_runs_what_others_do() -> None:
    """One of compressed-tensors, and of float8 one without scales, are not ModelOpt's."""
    for changes in ({"compressed": True}, {"static": False}):
        chosen = kernel_for("sglang", "0.5.23", "fp8", 90, checkpoint=NEMOTRON._replace(**changes))
        assert chosen is not None
        assert chosen.name == "Triton"
