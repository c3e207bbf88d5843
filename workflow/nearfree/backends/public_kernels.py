"""What public tables of T(N) call kernels of experts, and what products of theirs are no step."""

from typing import NamedTuple

from nearfree.backends.dense_kernels import QWEN_3_5 as QWEN_TYPES
from nearfree.backends.kernels import (
    NO_FILE,
    Checkpoint,
    chosen_kernel,
    kernels_apart,
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


class Unlike(NamedTuple):
    """Public curves of products that speak of no engine's step.

    `sm` are the compute capabilities, 90 for 9.0, whose curves they are; None for those of all.
    """

    package: str
    dtype: str
    sm: frozenset[int] | None


_QWEN = frozenset({
    "qwen3_moe", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_next", "qwen3_5_moe_text",
})  # fmt: skip
_V3_KIND = frozenset({"deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm_moe_dsa"})
PRESETS = _QWEN | _V3_KIND
"""Kinds of models whose architectures SGLang presets FlashInfer's TRTLLM for in all releases read,
but for files of compressed-tensors; of 16 bits it does so for Qwen's in all of them:
sglang/srt/server_args.py of 0.5.9, lines 1197-1203, 1287-1307 and 1556-1597. Of those of
compressed-tensors it does so for int4 in groups of 32 (`_K2_GROUP`)."""
KIMI_K3_TYPE = "kimi_k3"
"""What Kimi K3 is called here; its text part is of Kimi Linear's type, whose presets are none."""
_V4 = ("deepseek_v4", "deepseek_ref")
"""DeepSeek V4 by its names: one architecture, DeepseekV4ForCausalLM."""
_NEMOTRON_H = "nemotron_h"
_FORMATS = frozenset({"bf16", "fp8", "fp8_block", "nvfp4", "mxfp4"})
_SOMETIMES = {
    **dict.fromkeys((_NEMOTRON_H, "minimax_m2", *_V4, "mistral4"), _FORMATS),
    **dict.fromkeys(("llama4_text", "mimo_v2_flash"), frozenset({"fp8", "fp8_block"})),
    "glm4_moe": frozenset({"bf16", "nvfp4"}),
    "gemma4_text": frozenset({"nvfp4"}),
}
"""Kinds of models, and formats in which some releases do so: of which it is stated below alone."""
_NEMOTRON_STATED = {(_NEMOTRON_H, each): True for each in ("bf16", "fp8", "nvfp4")}
_STATED = {
    "0.5.14": _NEMOTRON_STATED,
    "0.5.23": {
        **_NEMOTRON_STATED,
        **{("minimax_m2", each): each == "nvfp4" for each in ("bf16", "fp8", "fp8_block", "nvfp4")},
        **{("glm4_moe", each): True for each in ("bf16", "nvfp4")},
        ("mimo_v2_flash", "fp8_block"): True,
        ("gemma4_text", "nvfp4"): True,
        **{(kind, each): each == "nvfp4" for kind in _V4 for each in ("fp8_block", "nvfp4")},
    },
}
"""Whether SGLang does so, by release, kind of model and format. Source: minimax_m2.py:22-32,
glm4_moe.py:22-45, mimo_v2.py:30-49, gemma4.py:45-52, deepseek_v4.py:66-74 and nemotron_h.py:74-108
of 0.5.23, in sglang/srt/arg_groups/model_overrides, and nemotron_h_hook.py:37-43 of 0.5.14 before
them."""
_TAKEN = PRESETS | {"mixtral", "glm4_moe", "glm4v_moe_text", "llama4_text", _NEMOTRON_H}
"""Kinds of models whose activation (SiLU, or squared ReLU without a gate) and routing (renormalised
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
    **{("vllm", each, TRITON): "vllm_fused_moe" for each in ("fp8", "fp8_block")},
    ("sglang", "mxfp4", TRITON_KERNELS): _TRITON_KERNELS,
    **{("sglang", each, TRITON): "sglang_fused_moe_triton" for each in ("fp8", "fp8_block")},
    **{("sglang", each, CUTLASS): "sglang_flashinfer_cutlass_moe" for each in ("bf16", "nvfp4")},
    ("sglang", "fp8", CUTLASS): _CUTLASS_EXPERTS,
    **{("sglang", each, TRTLLM): _TRTLLM_OF_SGLANG
       for each in ("bf16", "fp8_block", "nvfp4", "mxfp4", "int4")},
}  # fmt: skip
"""By package, format and kernel, what public tables of T(N) call it: of mxfp4 it is gpt-oss's."""
_TUNED = {("sglang", "bf16", CUTLASS): _TUNED_CUTLASS}
"""The same but on 12.0, where curves by the name above are those of a step: on Hopper they are of a
kernel that nobody tuned, and on other GPUs there are none."""
_LAST_OF_FLOAT8 = Kernel(TRITON, 89, where="it does not")
"""What vLLM goes on to in float8, which takes every activation: fused_moe/experts/triton_moe.py and
the order of fused_moe/oracle/fp8.py, lines 79-145 of 0.33.0."""
_K2_GROUP = 32
"""Inputs that share a scale of int4 experts that FlashInfer's TRTLLM takes, which SGLang presets
for DeepSeek V3's kind from 0.5.10 on: sglang/srt/server_args.py:1623-1650 of it, 3693-3733 of
0.5.14, and arg_groups/overrides.py:745-823 of 0.5.23."""
UNLIKE_A_STEP = (
    Unlike("vllm", "float8_block", None),
    Unlike("trtllm", "float8", None),
    Unlike("vllm", "float8", frozenset({100, 103})),
    Unlike("trtllm", "bfloat16", frozenset({89, 120})),
)
"""Whose public curves of dense products do not say what a product takes in an engine's step; the
lines are of ai-dynamo/aiconfigurator at 095f58a5.

- vLLM's of blocked float8 were timed without a CUDA graph (collector/vllm/collect_gemm.py:247).
  They are flat at what a launch takes the host, 59 us on H200 to 530 us on GB200, where other
  libraries' curves of the same kernel begin at 17 to 30 us.
- TensorRT-LLM's of float8 hold a scale found for the rows of each call and their quantisation
  (collector/trtllm/collect_gemm.py:198-201): on H200 and B200 some 7 us more than other
  libraries' at any shape. In a step that is no part of a product.
- vLLM's of float8 on data-centre Blackwell were disturbed: single points take twice as long, among
  them T(1) of .64 to .83 of shapes. Of SGLang's it is .14 and less.
- TensorRT-LLM's of 16 bits on GPUs with GDDR and a large L2 were timed from it: its weights come in
  turns through little more than the L2 holds (collector/trtllm/collect_gemm.py:176-179). Of .43 to
  .50 of shapes T(1) is shorter than the memory's peak allows, down to .36 of it; of no other
  library's any is by more than .02.
"""
TWINS = {
    **dict.fromkeys((_CUTLASS_EXPERTS, _TUNED_CUTLASS), ("trtllm", "moe_torch_flow_cutlass")),
    _TRITON_KERNELS: ("vllm", "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic"),
    _ROUNDED: ("sglang", _TRTLLM_OF_SGLANG),
    _OVER_INT4: ("sglang", _TRTLLM_OF_SGLANG),
}
"""Kernels without public curves as an engine runs them, and the backend and kernel of the same
source that has some.

FlashInfer carries TensorRT-LLM's fused MoE with its products of blocks on Hopper
(flashinfer-ai/flashinfer, csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels, and
fp8_blockscale_gemm there). Of float8 vLLM's own curves are public, of a kernel that nobody tuned
(ai-dynamo/aiconfigurator at 095f58a5, collector/vllm/collect_moe.py; TensorRT-LLM's are tuned,
collect_moe.py there, lines 657-680): on Hopper they take three to five times as long. vLLM tunes it
as it starts (`flashinfer_autotune` in vllm/model_executor/warmup/kernel_warmup.py), and so does
SGLang (sglang/srt/model_executor/runner/base_runner.py:274-280 of 0.5.14), whose own in float8 no
table has. Those in 16 bits on Hopper take ten times as long as the memory to bring one matrix and
more, and are no step's either.

The package `triton_kernels` runs gpt-oss' experts in vLLM and in SGLang, whose own curves in mxfp4
are of another kernel (collector/sglang/collect_moe.py there, lines 599-600).

Over rows in mxfp8 and over int4 in groups of 32 vLLM calls the functions of FlashInfer that SGLang
calls: trtllm_fp4_block_scale_moe (fused_moe/experts/trtllm_mxfp4_moe.py) and
trtllm_mxint4_block_scale_moe (fused_moe/experts/trtllm_mxint4_moe.py of vLLM 0.33.0).
"""
_CONSUMER = 12
_BY_NAME = {"vllm": "vllm_fused_moe", "sglang": "sglang_fused_moe_triton"}
"""What public tables call Triton's kernel where an option names it."""
_MODULAR = "vllm_mxfp4moe_flashinfer_trtllm_mxfp4_mxfp8_trtllmmxfp4expertsmodular"
_NAMES_OF_V4 = {
    ("vllm", "mxfp4", TRTLLM): _MODULAR,
    ("vllm", "mxfp4", MARLIN): (
        "vllm_compressedtensorsw4a4mxfp4moe_marlin_marlinexperts_situ_as_silu"
    ),
    ("sglang", "mxfp4", TRTLLM): "sglang_mxfp4_flashinfer_trtllm_moe",
}
"""The same for mxfp4 experts of DeepSeek V4, which rows in mxfp8 enter where the kernel takes them:
select_deepseek_v4_mxfp4_moe_backend, oracle/mxfp4.py of vLLM 0.32.0, lines 742-815. Marlin's curves
in mxfp4 on Hopper are of another model's experts, with the same activation."""
BY_PUBLIC_NAME = {
    name: kernel
    for names in (PUBLIC_NAMES, _NAMES_OF_V4, _TUNED)
    for (_, _, kernel), name in names.items()
}
MARLINS = frozenset(name for name, kernel in BY_PUBLIC_NAME.items() if kernel == MARLIN)
"""What public tables call Marlin's experts: one source in vLLM and SGLang, whatever the format in
which it reads weights, and whatever follows its products."""


def public_kernel(
    package: str,
    version: str,
    dtype: str,
    sm: int,
    *,
    of: Checkpoint = NO_FILE,
) -> str | None:
    """Return the public name of the kernel of its own curves that a release runs for experts.

    None where several may run, or no public table names it: one of `kernels_apart` then goes by
    what engines call it, as a question without a name would be answered by another. Marlin's is
    that of int4 where no table has the format, and Triton's has none where it runs whatever the
    file. Parameters and errors are those of `moe_kernel`.

    Parameters
    ----------
    of
        What the model's file says; mxfp4 experts are spoken of for gpt-oss, DeepSeek V4 and, by
        SGLang, Kimi K3 alone where they are not Marlin's.
    """
    chosen = kernel_for(package, version, dtype, sm, of=of)
    if chosen is None or (chosen.name == TRITON and not chosen.where):
        return _BY_NAME.get(package) if of.named == TRITON else None
    gpt_oss, v4 = of.model_type == "gpt_oss", of.model_type in _V4
    names = _NAMES_OF_V4 if dtype == "mxfp4" and v4 else PUBLIC_NAMES
    if sm // 10 != _CONSUMER:
        names = names | _TUNED
    if chosen.name == MARLIN:
        return names.get((package, dtype, MARLIN)) or names.get((package, "int4", MARLIN))
    # vLLM runs Kimi K3's by compressed_tensors_moe_w4a4_mxfp4.py, lines 52-78 of 0.33.0.
    k3 = package == "sglang" and _is_k3(of)
    apart = dtype == "mxfp4" and not (gpt_oss or v4 or k3)
    name = names.get((package, dtype, chosen.name))
    if apart or (chosen.name == TRTLLM and dtype == "int4" and of.group != _K2_GROUP):
        name = None
    single = of.named is None and chosen in kernels_apart(package, version, dtype, sm)
    return name or (chosen.name if single else None)


def kernel_for(package: str, version: str, dtype: str, sm: int, *, of: Checkpoint) -> Kernel | None:
    """Return the kernel that a release runs for a model's experts, None where that is not known.

    So it is where rows keep 16 bits, and the kernel for experts in such a format rounds them.
    Parameters and errors are those of `public_kernel`.
    """
    if of.named is not None:
        return Kernel(of.named, sm, sm)
    tp, dp, ep = of.parallel.tp, of.parallel.dp, of.parallel.ep
    holds = {
        GPT_OSS: of.model_type == "gpt_oss",
        KIMI_K3: _is_k3(of),
        GEMMA_4: of.model_type == "gemma4_text",
        NEMOTRON: _is_nemotron(of, dtype),
        QWEN_3_5: of.model_type in QWEN_TYPES,
        INT4_K2: dtype == "int4" and _is_k2(of),
        DEEPSEEK_V4: of.model_type in _V4,
        PRESET: _preset(of, dtype, version),
        ROUTED: of.model_type in _TAKEN or None,
        GATED: of.model_type in _TAKEN - {_NEMOTRON_H} or None,
        TAKES: of.model_type != "gpt_oss",
        STORED: of.static,
        STORED_ROUTED: None if of.static else of.static,
        COMPRESSED: of.compressed,
        COMPRESSED_4: of.compressed if dtype == "int4" else False,
        NOT_MODELOPT: bool(of.compressed),
        STORED_SPLIT: min(tp, dp, ep) > 1 and of.static,
        GROUPS: dp > 1,
        WIDE: of.wide,
    }
    kernels = moe_kernels(package, version, dtype, sm, spread=ep > 1)
    tried = [*kernels_apart(package, version, dtype, sm), *kernels]
    taken = [
        each
        for each in tried
        if takes_activation(package, version, each.name, dtype, of.model_type)
    ]
    if len(taken) < len(tried) and dtype in EIGHT_BITS:
        taken.append(_LAST_OF_FLOAT8)
    chosen = chosen_kernel(taken, holds)
    rounds = dtype in EIGHT_BITS and of.wide and chosen is not None and chosen.name != MARLIN
    return None if rounds else chosen


def _is_k3(of: Checkpoint) -> bool:
    return of.model_type == KIMI_K3_TYPE and bool(of.compressed)


def _is_nemotron(of: Checkpoint, dtype: str) -> bool | None:
    """Return whether it is Nemotron-H of ModelOpt or of 16 bits; float8 of ModelOpt is static."""
    if of.model_type != _NEMOTRON_H or of.compressed:
        return False
    return of.static if dtype == "fp8" else True


def _is_k2(of: Checkpoint) -> bool:
    return of.model_type in _V3_KIND and of.compressed is True and of.group == _K2_GROUP


def _preset(of: Checkpoint, dtype: str, version: str) -> bool | None:
    """Return whether SGLang presets FlashInfer's TRTLLM for a model, None where it is not known."""
    stated = _STATED.get(version, {}).get((of.model_type, dtype))
    if stated is not None:
        return stated and not of.compressed
    if dtype in _SOMETIMES.get(of.model_type, ()):
        return None
    if dtype == "bf16" and of.model_type in PRESETS:
        return of.model_type in _QWEN or None
    return of.model_type in PRESETS and not of.compressed
