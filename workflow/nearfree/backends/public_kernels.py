"""Names of MoE kernels in public tables of T(N), and public GEMM curves unlike an engine's step."""

from typing import NamedTuple

from nearfree.backends.dense_kernels import QWEN_3_5 as QWEN_TYPES
from nearfree.backends.kernels import (
    NO_FILE,
    Checkpoint,
    chosen_kernel,
    model_kernels,
    moe_kernels,
    takes_activation,
)
from nearfree.backends.moe_kernels import (
    COMPRESSED,
    COMPRESSED_4,
    CUTLASS,
    DEEPSEEK_V4,
    EIGHT_BITS,
    GATED,
    GEMMA_4,
    GPT_OSS,
    GROUPS,
    INT4_K2,
    KIMI_K3,
    MARLIN,
    NEMOTRON,
    NOT_MODELOPT,
    PRESET,
    QWEN_3_5,
    ROUTED,
    STORED,
    STORED_ROUTED,
    STORED_SPLIT,
    TAKES,
    TRITON,
    TRITON_KERNELS,
    TRTLLM,
    TRTLLM_8,
    WIDE,
    Kernel,
)


class UnlikeStep(NamedTuple):
    """Public curves of dense products that do not measure an engine's step.

    `sm` are the compute capabilities, 90 for 9.0, of these curves; None for all.
    """

    package: str
    dtype: str
    sm: frozenset[int] | None


_QWEN = frozenset({
    "qwen3_moe", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_next", "qwen3_5_moe_text",
})  # fmt: skip
_V3_KIND = frozenset({"deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm_moe_dsa"})
PRESETS = _QWEN | _V3_KIND
"""Model types for which SGLang presets FlashInfer's TRTLLM in all releases read, except for files
of compressed-tensors. In 16 bits all releases do so for Qwen's types:
sglang/srt/server_args.py of 0.5.9, lines 1197-1203, 1287-1307 and 1556-1597. For files of
compressed-tensors it does so for int4 in groups of 32 (`_K2_GROUP`)."""
KIMI_K3_TYPE = "kimi_k3"
"""This project's model type for Kimi K3; its text part has Kimi Linear's type, without presets."""
_V4_TYPES = ("deepseek_v4", "deepseek_ref")
"""Model types of DeepSeek V4, which share one architecture, DeepseekV4ForCausalLM."""
_NEMOTRON_H = "nemotron_h"
_FORMATS = frozenset({"bf16", "fp8", "fp8_block", "nvfp4", "mxfp4"})
_PRESET_BY_RELEASE = {
    **dict.fromkeys((_NEMOTRON_H, "minimax_m2", *_V4_TYPES, "mistral4"), _FORMATS),
    **dict.fromkeys(("llama4_text", "mimo_v2_flash"), frozenset({"fp8", "fp8_block"})),
    "glm4_moe": frozenset({"bf16", "nvfp4"}),
    "gemma4_text": frozenset({"nvfp4"}),
}
"""Model types, and formats in which only some releases have the preset: see _PRESETS_STATED."""
_NEMOTRON_PRESETS = {(_NEMOTRON_H, dtype): True for dtype in ("bf16", "fp8", "nvfp4")}
_PRESETS_STATED = {
    "0.5.14": _NEMOTRON_PRESETS,
    "0.5.23": {
        **_NEMOTRON_PRESETS,
        **{
            ("minimax_m2", dtype): dtype == "nvfp4"
            for dtype in ("bf16", "fp8", "fp8_block", "nvfp4")
        },
        **{("glm4_moe", dtype): True for dtype in ("bf16", "nvfp4")},
        ("mimo_v2_flash", "fp8_block"): True,
        ("gemma4_text", "nvfp4"): True,
        **{
            (kind, dtype): dtype == "nvfp4"
            for kind in _V4_TYPES
            for dtype in ("fp8_block", "nvfp4")
        },
    },
}
"""Whether SGLang has the preset, by release, model type and format. Source: minimax_m2.py:22-32,
glm4_moe.py:22-45, mimo_v2.py:30-49, gemma4.py:45-52, deepseek_v4.py:66-74 and nemotron_h.py:74-108
of 0.5.23, in sglang/srt/arg_groups/model_overrides, and nemotron_h_hook.py:37-43 of 0.5.14 before
them."""
_FLASHINFER_TYPES = PRESETS | {"mixtral", "glm4_moe", "glm4v_moe_text", "llama4_text", _NEMOTRON_H}
"""Model types whose activation (SiLU, or squared ReLU without a gate) and routing (renormalised
softmax, sigmoid) FlashInfer's kernels take in 16 bits: `_supports_activation` and
`_supports_routing_method` in fused_moe/experts/trtllm_bf16_moe.py of vLLM 0.24.0, lines 72-89."""
_EXPERTS = "moe_flashinfer_trtllm_trtllm"
_OVER_FOUR_BITS = "vllm_compressedtensorsw4a4nvfp4"
_PLAIN = "vllm_unquantizedfusedmoe_flashinfer"
_CUTLASS_EXPERTS = "vllm_fp8moe_flashinfer_cutlass_flashinferexperts"
_TUNED_CUTLASS = "sglang_flashinfer_cutlass_moe_tuned"
_TRITON_KERNELS = "sglang_triton_kernel_moe"
_TRTLLM_OF_SGLANG = "sglang_flashinfer_trtllm_moe"
_ROUNDED = "vllm_gptossmxfp4moe_flashinfer_trtllm_mxfp4_mxfp8_trtllmmxfp4expertsmonolithic"
_OVER_INT4 = "vllm_compressedtensorswna16moe_flashinfer_trtllm_trtllmmxint4expertsmonolithic"
PUBLIC_NAMES = {
    ("vllm", "int4", MARLIN): "vllm_compressedtensorswna16marlinmoe_marlin_marlinexperts",
    ("sglang", "int4", MARLIN): "sglang_marlin_moe",
    ("vllm", "mxfp4", MARLIN): "vllm_gptossmxfp4moe_marlin_marlinexperts",
    ("vllm", "mxfp4", TRITON_KERNELS): (
        "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic"
    ),
    ("vllm", "mxfp4", TRTLLM): (
        "vllm_gptossmxfp4moe_flashinfer_trtllm_mxfp4_bf16_trtllmmxfp4expertsmonolithic"
    ),
    ("vllm", "mxfp4", TRTLLM_8): _ROUNDED,
    ("vllm", "int4", TRTLLM): _OVER_INT4,
    ("vllm", "nvfp4", TRTLLM): f"{_OVER_FOUR_BITS}{_EXPERTS}nvfp4expertsmonolithic",
    ("vllm", "nvfp4", CUTLASS): f"{_OVER_FOUR_BITS}moe_flashinfer_cutlass_flashinferexperts",
    ("vllm", "bf16", TRTLLM): f"{_PLAIN}_trtllm_trtllmbf16experts",
    ("vllm", "bf16", CUTLASS): f"{_PLAIN}_cutlass_flashinferexperts",
    ("vllm", "fp8_block", TRTLLM): f"vllm_fp8{_EXPERTS}fp8expertsmonolithic",
    ("vllm", "fp8_block", CUTLASS): _CUTLASS_EXPERTS,
    ("vllm", "fp8", CUTLASS): _CUTLASS_EXPERTS,
    ("vllm", "fp8", TRTLLM): "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic",
    **{("vllm", dtype, TRITON): "vllm_fused_moe" for dtype in ("fp8", "fp8_block")},
    ("sglang", "mxfp4", TRITON_KERNELS): _TRITON_KERNELS,
    **{("sglang", dtype, TRITON): "sglang_fused_moe_triton" for dtype in ("fp8", "fp8_block")},
    **{("sglang", dtype, CUTLASS): "sglang_flashinfer_cutlass_moe" for dtype in ("bf16", "nvfp4")},
    ("sglang", "fp8", CUTLASS): _CUTLASS_EXPERTS,
    **{("sglang", dtype, TRTLLM): _TRTLLM_OF_SGLANG
       for dtype in ("bf16", "fp8_block", "nvfp4", "mxfp4", "int4")},
}  # fmt: skip
"""Names in public tables of T(N), by package, format and kernel; those in mxfp4 are gpt-oss's."""
_TUNED_NAMES = {("sglang", "bf16", CUTLASS): _TUNED_CUTLASS}
"""The same, except on 12.0, where the curves under the name above measure a step. On Hopper those
curves are of an untuned kernel, and on other GPUs there are none."""
_LAST_OF_FLOAT8 = Kernel(TRITON, 89, condition="it does not")
"""The last kernel in vLLM's order for float8, which takes every activation:
fused_moe/experts/triton_moe.py and fused_moe/oracle/fp8.py, lines 79-145 of 0.33.0."""
_K2_GROUP = 32
"""Group size of int4 experts that FlashInfer's TRTLLM takes. SGLang presets it for DeepSeek V3's
kind from 0.5.10 on: sglang/srt/server_args.py:1623-1650 of it, 3693-3733 of 0.5.14, and
arg_groups/overrides.py:745-823 of 0.5.23."""
UNLIKE_A_STEP = (
    UnlikeStep("vllm", "float8_block", None),
    UnlikeStep("trtllm", "float8", None),
    UnlikeStep("vllm", "float8", frozenset({100, 103})),
    UnlikeStep("trtllm", "bfloat16", frozenset({89, 120})),
)
"""Public curves of dense products that do not measure the product's latency in an engine's step.
Lines are of ai-dynamo/aiconfigurator at 095f58a5.

- vLLM's in blocked float8 were timed without a CUDA graph (collector/vllm/collect_gemm.py:247).
  They are flat at the host's launch latency, 59 us on H200 to 530 us on GB200, while other
  libraries' curves of the same kernel begin at 17 to 30 us.
- TensorRT-LLM's in float8 include the search for a scale for the rows of each call and their
  quantisation (collector/trtllm/collect_gemm.py:198-201): on H200 and B200 some 7 us more than
  other libraries' at any shape. In a step these are not part of the product.
- vLLM's in float8 on data-centre Blackwell were disturbed: single points take twice as long, among
  them T(1) of .64 to .83 of the shapes. In SGLang's the share is .14 or less.
- TensorRT-LLM's in 16 bits on GPUs with GDDR and a large L2 read weights from L2: the rotating
  weights are little larger than it (collector/trtllm/collect_gemm.py:176-179). For .43 to .50 of
  the shapes T(1) is shorter than peak memory bandwidth allows, down to .36 of that time; no other
  library's curve falls short by more than .02.
"""
TWINS = {
    **dict.fromkeys((_CUTLASS_EXPERTS, _TUNED_CUTLASS), ("trtllm", "moe_torch_flow_cutlass")),
    _TRITON_KERNELS: ("vllm", "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic"),
    _ROUNDED: ("sglang", _TRTLLM_OF_SGLANG),
    _OVER_INT4: ("sglang", _TRTLLM_OF_SGLANG),
}
"""Kernels without public curves as an engine runs them, each with a backend and kernel that is
compiled from the same source and has public curves.

FlashInfer contains TensorRT-LLM's fused MoE with its block-scaled products on Hopper
(flashinfer-ai/flashinfer, csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels, and
fp8_blockscale_gemm there). vLLM's own public curves in float8 are of an untuned kernel
(ai-dynamo/aiconfigurator at 095f58a5, collector/vllm/collect_moe.py; TensorRT-LLM's are tuned,
collect_moe.py there, lines 657-680): on Hopper they take three to five times as long. vLLM tunes
the kernel at start-up (`flashinfer_autotune` in vllm/model_executor/warmup/kernel_warmup.py), and
so does SGLang (sglang/srt/model_executor/runner/base_runner.py:274-280 of 0.5.14), for which no
table has curves in float8. vLLM's in 16 bits on Hopper take ten times as long as reading one matrix
from memory, or longer, and do not measure a step either.

The package `triton_kernels` runs gpt-oss' experts in vLLM and in SGLang. SGLang's own curves in
mxfp4 are of another kernel (collector/sglang/collect_moe.py there, lines 599-600).

For rows in mxfp8 and for int4 in groups of 32 vLLM and SGLang call the same FlashInfer functions:
trtllm_fp4_block_scale_moe (fused_moe/experts/trtllm_mxfp4_moe.py) and
trtllm_mxint4_block_scale_moe (fused_moe/experts/trtllm_mxint4_moe.py of vLLM 0.33.0).
"""
_CONSUMER = 12
_BY_NAME = {"vllm": "vllm_fused_moe", "sglang": "sglang_fused_moe_triton"}
"""Names in public tables of the Triton kernel, for an option that selects it."""
_MODULAR = "vllm_mxfp4moe_flashinfer_trtllm_mxfp4_mxfp8_trtllmmxfp4expertsmodular"
_NAMES_OF_V4 = {
    ("vllm", "mxfp4", TRTLLM): _MODULAR,
    ("vllm", "mxfp4", MARLIN): (
        "vllm_compressedtensorsw4a4mxfp4moe_marlin_marlinexperts_situ_as_silu"
    ),
    ("sglang", "mxfp4", TRTLLM): "sglang_mxfp4_flashinfer_trtllm_moe",
}
"""PUBLIC_NAMES for DeepSeek V4's mxfp4 experts, whose rows are in mxfp8 if the kernel takes that:
select_deepseek_v4_mxfp4_moe_backend, oracle/mxfp4.py of vLLM 0.32.0, lines 742-815. Marlin's curves
in mxfp4 on Hopper are of another model's experts, with the same activation."""
BY_PUBLIC_NAME = {
    name: kernel
    for names in (PUBLIC_NAMES, _NAMES_OF_V4, _TUNED_NAMES)
    for (_, _, kernel), name in names.items()
}
MARLINS = frozenset(name for name, kernel in BY_PUBLIC_NAME.items() if kernel == MARLIN)
"""Names in public tables of Marlin's experts: one source in vLLM and SGLang, whatever the format of
the weights and the epilogue."""


def public_kernel(
    package: str,
    version: str,
    dtype: str,
    sm: int,
    *,
    checkpoint: Checkpoint = NO_FILE,
) -> str | None:
    """Return the public tables' name of the kernel that a release runs for experts.

    It is None if several kernels may run, or if no public table has the kernel. A kernel of
    `model_kernels` then has its name in the engine, since a query without a kernel would be
    answered by another one. Marlin has its name for int4 if no table has the format. Triton has no
    name if it runs whatever the file. Parameters and errors are those of `moe_kernel`.

    Parameters
    ----------
    checkpoint
        The model's file and deployment. For mxfp4, kernels other than Marlin have names only for
        gpt-oss, DeepSeek V4 and, in SGLang, Kimi K3.
    """
    chosen = kernel_for(package, version, dtype, sm, checkpoint=checkpoint)
    if chosen is None or (chosen.name == TRITON and not chosen.condition):
        return _BY_NAME.get(package) if checkpoint.named == TRITON else None
    gpt_oss, v4 = checkpoint.model_type == "gpt_oss", checkpoint.model_type in _V4_TYPES
    names = _NAMES_OF_V4 if dtype == "mxfp4" and v4 else PUBLIC_NAMES
    if sm // 10 != _CONSUMER:
        names = names | _TUNED_NAMES
    if chosen.name == MARLIN:
        return names.get((package, dtype, MARLIN)) or names.get((package, "int4", MARLIN))
    # vLLM runs Kimi K3's experts by compressed_tensors_moe_w4a4_mxfp4.py, lines 52-78 of 0.33.0.
    k3 = package == "sglang" and _is_k3(checkpoint)
    unnamed = dtype == "mxfp4" and not (gpt_oss or v4 or k3)
    name = names.get((package, dtype, chosen.name))
    if unnamed or (chosen.name == TRTLLM and dtype == "int4" and checkpoint.group != _K2_GROUP):
        name = None
    is_single_model = checkpoint.named is None and chosen in model_kernels(
        package, version, dtype, sm
    )
    return name or (chosen.name if is_single_model else None)


def kernel_for(
    package: str, version: str, dtype: str, sm: int, *, checkpoint: Checkpoint
) -> Kernel | None:
    """Return the kernel that a release runs for a model's experts, None if that is not known.

    It is not known if rows keep 16 bits but the kernel for the experts' format rounds them.
    Parameters and errors are those of `public_kernel`.
    """
    if checkpoint.named is not None:
        return Kernel(checkpoint.named, sm, sm)
    tp, dp, ep = checkpoint.parallel.tp, checkpoint.parallel.dp, checkpoint.parallel.ep
    holds = {
        GPT_OSS: checkpoint.model_type == "gpt_oss",
        KIMI_K3: _is_k3(checkpoint),
        GEMMA_4: checkpoint.model_type == "gemma4_text",
        NEMOTRON: _is_nemotron(checkpoint, dtype),
        QWEN_3_5: checkpoint.model_type in QWEN_TYPES,
        INT4_K2: dtype == "int4" and _is_k2(checkpoint),
        DEEPSEEK_V4: checkpoint.model_type in _V4_TYPES,
        PRESET: _preset(checkpoint, dtype, version),
        ROUTED: checkpoint.model_type in _FLASHINFER_TYPES or None,
        GATED: checkpoint.model_type in _FLASHINFER_TYPES - {_NEMOTRON_H} or None,
        TAKES: checkpoint.model_type != "gpt_oss",
        STORED: checkpoint.static,
        STORED_ROUTED: None if checkpoint.static else checkpoint.static,
        COMPRESSED: checkpoint.compressed,
        COMPRESSED_4: checkpoint.compressed if dtype == "int4" else False,
        NOT_MODELOPT: bool(checkpoint.compressed),
        STORED_SPLIT: min(tp, dp, ep) > 1 and checkpoint.static,
        GROUPS: dp > 1,
        WIDE: checkpoint.wide,
    }
    kernels = moe_kernels(package, version, dtype, sm, spread=ep > 1)
    candidates = [*model_kernels(package, version, dtype, sm), *kernels]
    usable = [
        kernel
        for kernel in candidates
        if takes_activation(package, version, kernel.name, dtype, checkpoint.model_type)
    ]
    if len(usable) < len(candidates) and dtype in EIGHT_BITS:
        usable.append(_LAST_OF_FLOAT8)
    chosen = chosen_kernel(usable, holds)
    rounds = (
        dtype in EIGHT_BITS and checkpoint.wide and chosen is not None and chosen.name != MARLIN
    )
    return None if rounds else chosen


def _is_k3(checkpoint: Checkpoint) -> bool:
    return checkpoint.model_type == KIMI_K3_TYPE and bool(checkpoint.compressed)


def _is_nemotron(checkpoint: Checkpoint, dtype: str) -> bool | None:
    """Return whether the file is of Nemotron-H, by ModelOpt or in 16 bits; None if unknown.

    ModelOpt's float8 has static scales.
    """
    if checkpoint.model_type != _NEMOTRON_H or checkpoint.compressed:
        return False
    return checkpoint.static if dtype == "fp8" else True


def _is_k2(checkpoint: Checkpoint) -> bool:
    return (
        checkpoint.model_type in _V3_KIND
        and checkpoint.compressed is True
        and checkpoint.group == _K2_GROUP
    )


def _preset(checkpoint: Checkpoint, dtype: str, version: str) -> bool | None:
    """Return whether SGLang presets FlashInfer's TRTLLM for a model, None if it is not known."""
    preset = _PRESETS_STATED.get(version, {}).get((checkpoint.model_type, dtype))
    if preset is not None:
        return preset and not checkpoint.compressed
    if dtype in _PRESET_BY_RELEASE.get(checkpoint.model_type, ()):
        return None
    if dtype == "bf16" and checkpoint.model_type in PRESETS:
        return checkpoint.model_type in _QWEN or None
    return checkpoint.model_type in PRESETS and not checkpoint.compressed
