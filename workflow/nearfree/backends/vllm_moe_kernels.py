"""The kernel that vLLM runs for an MoE layer: facts with their sources by release."""

from functools import partial

from nearfree.backends.moe_kernels import (
    COMPRESSED,
    CUTLASS,
    DEEPSEEK_V4,
    GATED,
    GEMMA_4,
    GPT_OSS,
    GROUPS,
    MARLIN,
    MAX_SM,
    QWEN_3_5,
    ROUTED,
    STORED,
    STORED_ROUTED,
    STORED_SPLIT,
    TAKES,
    TRITON,
    TRITON_KERNELS,
    TRTLLM,
    WIDE,
    Kernel,
    Selection,
)

_MOE = "vllm/model_executor/layers/fused_moe/oracle"
_QUANT = "vllm/model_executor/layers/quantization"
_OWN_CUTLASS = "vLLM's CUTLASS"
_UP_TO_90 = (Kernel(MARLIN, 80, 88), Kernel(TRITON, 89, 90), Kernel(TRTLLM, 100, 109))
_UP_TO_90_SPREAD = (
    Kernel(MARLIN, 80, 88),
    Kernel(TRITON, 89, 89),
    Kernel(CUTLASS, 90, 90),
    Kernel(TRTLLM, 100, 109),
)
_BLOCK_FP8 = (*_UP_TO_90, Kernel(TRITON, 110))
_BLOCK_FP8_SPREAD = (*_UP_TO_90_SPREAD, Kernel(TRITON, 110))
_SINCE_24 = (Kernel(TRITON, 110, 119), Kernel("DeepGEMM", 120))
_BLOCK_FP8_SINCE_24 = (*_UP_TO_90, *_SINCE_24)
_BLOCK_FP8_SPREAD_SINCE_24 = (*_UP_TO_90_SPREAD, *_SINCE_24)
_FP8_FALLBACKS = (
    Kernel(CUTLASS, 90, MAX_SM, STORED),
    Kernel(_OWN_CUTLASS, 90, 109, COMPRESSED),
    Kernel(TRITON, 90, MAX_SM, "neither"),
)
_FP8_BELOW_90 = (Kernel(MARLIN, 80, 88), Kernel(TRITON, 89, 89))
_FP8_ROUTED = (*_FP8_BELOW_90, Kernel(TRTLLM, 100, 109, STORED_ROUTED), *_FP8_FALLBACKS)
_FP8_ANY_ROUTING = (Kernel(TRTLLM, 100, 109, STORED), *_FP8_FALLBACKS)
_ORACLE = {"0.19.0": (57, 102), "0.20.2": (60, 105), "0.22.0": (58, 108)}
_TRITON_ONLY = (Kernel(TRITON, 75),)
_BF16 = (
    Kernel(TRITON, 75, 99),
    Kernel(TRTLLM, 100, 109, ROUTED),
    Kernel(TRITON, 120, 129, GROUPS),
    Kernel(CUTLASS, 120, 129, ROUTED),
)
_BF16_BEFORE_24 = (
    Kernel(TRITON, 75, 89),
    Kernel(TRITON, 90, 90, GROUPS),
    Kernel(CUTLASS, 90, 90, ROUTED),
    Kernel(TRTLLM, 100, 109, GATED),
    Kernel(TRITON, 120, 129, GROUPS),
    Kernel(CUTLASS, 120, 129, ROUTED),
)
_NVFP4_SINCE_100 = (
    Kernel(TRTLLM, 100, 109, TAKES),
    Kernel("FlashInfer's CuteDSL or CUTLASS", 100, 109, "it does not"),
    Kernel(CUTLASS, 120, 129),
)
_NVFP4 = (Kernel(MARLIN, 80, 99), *_NVFP4_SINCE_100)
_NVFP4_WIDE = Kernel(MARLIN, 100, MAX_SM, WIDE)
"""For experts in nvfp4 whose rows keep 16 bits: no kernel earlier in the order takes them."""
_MXFP4 = (
    Kernel(MARLIN, 80, 89),
    Kernel(TRITON_KERNELS, 90, 90, GPT_OSS),
    Kernel(MARLIN, 90, 90, "it is not"),
    Kernel(TRTLLM, 100, 109),
    Kernel(MARLIN, 120, 129),
)
_MXFP4_DEEPSEEK_V4 = (Kernel("DeepGEMM", 120, 129, DEEPSEEK_V4),)
"""DeepSeek V4's by `_get_priority_backends`, where DeepGEMM takes 12.0: platforms/cuda.py:663-669
of 0.24.0, 691-697 of 0.33.0."""

_bf16 = partial(Selection, "vllm", ("bf16",), f"{_MOE}/unquantized.py")
_fp8 = partial(Selection, "vllm", ("fp8",), f"{_MOE}/fp8.py")
_fp8_block = partial(Selection, "vllm", ("fp8_block",), f"{_MOE}/fp8.py")
_int8 = partial(Selection, "vllm", ("int8",))
_integers = partial(Selection, "vllm", ("int4", "int8_w8a16"))
_mxfp4 = partial(Selection, "vllm", ("mxfp4",), f"{_MOE}/mxfp4.py")
_nvfp4 = partial(Selection, "vllm", ("nvfp4",), f"{_MOE}/nvfp4.py")
_COMPRESSED_TENSORS = f"{_QUANT}/compressed_tensors/compressed_tensors_moe.py"

VLLM = (
    Selection(
        "vllm",
        ("fp8_block",),
        f"{_QUANT}/fp8.py",
        {"0.9.1": (444, 471)},
        (Kernel(MARLIN, 80, 88), Kernel(TRITON, 89)),
    ),
    Selection(
        "vllm",
        ("fp8",),
        _COMPRESSED_TENSORS,
        {"0.9.1": (89, 92)},
        (
            Kernel(MARLIN, 80, 88),
            Kernel(_OWN_CUTLASS, 90, 90, COMPRESSED),
            Kernel(TRITON, 90, 90, "it is not"),
            Kernel(TRITON, 89, 89),
            Kernel(TRITON, 91),
        ),
    ),
    # Before 0.20 the wheel has no DeepGEMM, and uses one that is installed.
    _fp8_block(
        {"0.14.0": (105, 150)},
        (
            *_FP8_BELOW_90,
            Kernel("DeepGEMM", 90, 109, "the package deep_gemm is installed"),
            Kernel(TRITON, 90, 109, "it is not"),
            Kernel(TRITON, 110),
        ),
    ),
    _fp8(
        {"0.14.0": (105, 150)},
        (
            *_FP8_BELOW_90,
            Kernel(_OWN_CUTLASS, 90, 109, COMPRESSED),
            Kernel(TRITON, 90, 109, "it is not"),
            Kernel(TRITON, 110),
        ),
    ),
    # The order, less the kernels whose `_supports_current_device` or `_supports_quant_scheme` is
    # false.
    _fp8_block(_ORACLE, _BLOCK_FP8, _BLOCK_FP8_SPREAD),
    _fp8_block({"0.24.0": (64, 126)}, _BLOCK_FP8_SINCE_24, _BLOCK_FP8_SPREAD_SINCE_24),
    # oracle/fp8.py:496-503 calls `should_auto_disable_deep_gemm`, which disables DeepGEMM for both
    # models in vllm/utils/deep_gemm.py:28-34.
    _fp8_block(
        {"0.33.0": (79, 145)},
        _BLOCK_FP8_SINCE_24,
        _BLOCK_FP8_SPREAD_SINCE_24,
        (Kernel(TRITON, 120, 129, QWEN_3_5),),
    ),
    # In 16 bits: a query without a file is nevertheless answered by Triton's blocks.
    # Up to 0.22.0 TRTLLM took no experts without a gate: experts/trtllm_bf16_moe.py:56-59.
    _bf16({"0.20.2": (47, 84), "0.22.0": (44, 81)}, _BF16_BEFORE_24),
    _bf16({"0.24.0": (43, 86), "0.33.0": (50, 106)}, _BF16),
    _fp8(_ORACLE, _FP8_ROUTED),
    # From 0.24.0 on TRTLLM takes all routing but softmax without renormalisation, which is rare:
    # `_supports_routing_method` in fused_moe/experts/trtllm_fp8_moe.py of 0.33.0, lines 399-433.
    _fp8({"0.24.0": (64, 126)}, (*_FP8_BELOW_90, *_FP8_ANY_ROUTING)),
    # There it takes no split rows either: trtllm_fp8_moe.py:188-196; which rows are split is in
    # vllm/config/parallel.py:768-785.
    _fp8(
        {"0.33.0": (79, 145)},
        (*_FP8_BELOW_90, Kernel(CUTLASS, 100, 109, STORED_SPLIT), *_FP8_ANY_ROUTING),
    ),
    _int8(
        _COMPRESSED_TENSORS,
        {"0.9.1": (93, 94), "0.14.0": (208, 211), "0.19.0": (218, 221)},
        _TRITON_ONLY,
    ),
    _int8(
        f"{_MOE}/int8.py",
        {"0.20.2": (36, 42), "0.22.0": (33, 39), "0.24.0": (33, 39), "0.33.0": (37, 45)},
        _TRITON_ONLY,
    ),
    _integers(
        f"{_QUANT}/gptq_marlin.py",
        {"0.9.1": (160, 166), "0.14.0": (248, 258), "0.19.0": (247, 257)},
        (Kernel(MARLIN, 75),),
    ),
    _integers(
        f"{_MOE}/int_wna16.py",
        {"0.20.2": (62, 70), "0.22.0": (64, 72), "0.24.0": (79, 93)},
        (Kernel(MARLIN, 75),),
    ),
    _integers(
        f"{_MOE}/int_wna16.py",
        {"0.33.0": (126, 143)},
        (Kernel(MARLIN, 75, 89), Kernel("Humming", 90, 90), Kernel(MARLIN, 91)),
    ),
    # gpt-oss's Triton kernels are those of the package `triton_kernels`, not `fused_moe`'s.
    _mxfp4({"0.20.2": (193, 229), "0.22.0": (270, 311)}, _MXFP4),
    _mxfp4({"0.24.0": (304, 345)}, _MXFP4, for_models=_MXFP4_DEEPSEEK_V4),
    _mxfp4(
        {"0.33.0": (402, 462)},
        (
            Kernel(MARLIN, 80, 89),
            Kernel(TRITON_KERNELS, 90, 90, GPT_OSS),
            Kernel("Humming", 90, 90, "it is not"),
            Kernel(TRTLLM, 100, 109),
            Kernel(MARLIN, 120, 129),
        ),
        for_models=_MXFP4_DEEPSEEK_V4,
    ),
    _nvfp4(
        {"0.19.0": (129, 146), "0.20.2": (150, 169)},
        _NVFP4,
        for_models=(_NVFP4_WIDE, Kernel(_OWN_CUTLASS, 100, MAX_SM, GEMMA_4)),
    ),
    # Gemma 4's GELU uses the tanh approximation from 0.22.0 on. FlashInfer's kernels take it since
    # 0.24.0: `_supports_activation` of each in fused_moe/experts; models/gemma4.py:359 of 0.20.2.
    _nvfp4(
        {"0.22.0": (160, 182)},
        _NVFP4,
        for_models=(_NVFP4_WIDE, Kernel(MARLIN, 100, MAX_SM, GEMMA_4)),
    ),
    _nvfp4({"0.24.0": (151, 173)}, _NVFP4, for_models=(_NVFP4_WIDE,)),
    _nvfp4(
        {"0.33.0": (191, 213)},
        (Kernel(MARLIN, 80, 89), Kernel("Humming", 90, 90), *_NVFP4_SINCE_100),
        for_models=(_NVFP4_WIDE,),
    ),
)
