"""Which kernel vLLM runs for a MoE layer: facts, each with its place in a release."""

from nearfree.backends.moe_kernels import (
    COMPRESSED,
    CUTLASS,
    DEEPSEEK_V4,
    GATED,
    GEMMA_4,
    GPT_OSS,
    GROUPS,
    LAST,
    MARLIN,
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
_BLOCKS = (Kernel(MARLIN, 80, 88), Kernel(TRITON, 89, 90), Kernel(TRTLLM, 100, 109))
_SPREAD = (
    Kernel(MARLIN, 80, 88),
    Kernel(TRITON, 89, 89),
    Kernel(CUTLASS, 90, 90),
    Kernel(TRTLLM, 100, 109),
)
_SINCE_24 = (Kernel(TRITON, 110, 119), Kernel("DeepGEMM", 120))
_WHOLE = (
    Kernel(CUTLASS, 90, LAST, STORED),
    Kernel(_OWN_CUTLASS, 90, 109, COMPRESSED),
    Kernel(TRITON, 90, LAST, "neither"),
)
_BELOW = (Kernel(MARLIN, 80, 88), Kernel(TRITON, 89, 89))
_WHOLE_ROUTED = (*_BELOW, Kernel(TRTLLM, 100, 109, STORED_ROUTED), *_WHOLE)
_WHOLE_ANY = (Kernel(TRTLLM, 100, 109, STORED), *_WHOLE)
_ORACLE = {"0.19.0": (57, 102), "0.20.2": (60, 105), "0.22.0": (58, 108)}
_ALL = (Kernel(TRITON, 75),)
_PLAIN = (
    Kernel(TRITON, 75, 99),
    Kernel(TRTLLM, 100, 109, ROUTED),
    Kernel(TRITON, 120, 129, GROUPS),
    Kernel(CUTLASS, 120, 129, ROUTED),
)
_PLAIN_BEFORE = (
    Kernel(TRITON, 75, 89),
    Kernel(TRITON, 90, 90, GROUPS),
    Kernel(CUTLASS, 90, 90, ROUTED),
    Kernel(TRTLLM, 100, 109, GATED),
    Kernel(TRITON, 120, 129, GROUPS),
    Kernel(CUTLASS, 120, 129, ROUTED),
)
_FOUR_BITS = (
    Kernel(TRTLLM, 100, 109, TAKES),
    Kernel("FlashInfer's CuteDSL or CUTLASS", 100, 109, "it does not"),
    Kernel(CUTLASS, 120, 129),
)
_NO_ROUNDING = Kernel(MARLIN, 100, LAST, WIDE)
"""Of experts in nvfp4 whose rows keep 16 bits, which no other takes that stands before it."""
_MXFP4 = (
    Kernel(MARLIN, 80, 89),
    Kernel(TRITON_KERNELS, 90, 90, GPT_OSS),
    Kernel(MARLIN, 90, 90, "it is not"),
    Kernel(TRTLLM, 100, 109),
    Kernel(MARLIN, 120, 129),
)
_MXFP4_OF_V4 = (Kernel("DeepGEMM", 120, 129, DEEPSEEK_V4),)
"""DeepSeek V4's by `_get_priority_backends`, where DeepGEMM takes 12.0: platforms/cuda.py:663-669
of 0.24.0, 691-697 of 0.33.0."""

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
        f"{_QUANT}/compressed_tensors/compressed_tensors_moe.py",
        {"0.9.1": (89, 92)},
        (
            Kernel(MARLIN, 80, 88),
            Kernel(_OWN_CUTLASS, 90, 90, COMPRESSED),
            Kernel(TRITON, 90, 90, "it is not"),
            Kernel(TRITON, 89, 89),
            Kernel(TRITON, 91),
        ),
    ),
    # The wheel has no DeepGEMM before 0.20, and takes one that is there.
    Selection(
        "vllm",
        ("fp8_block",),
        f"{_MOE}/fp8.py",
        {"0.14.0": (105, 150)},
        (
            Kernel(MARLIN, 80, 88),
            Kernel(TRITON, 89, 89),
            Kernel("DeepGEMM", 90, 109, "the package deep_gemm is installed"),
            Kernel(TRITON, 90, 109, "it is not"),
            Kernel(TRITON, 110),
        ),
    ),
    Selection(
        "vllm",
        ("fp8",),
        f"{_MOE}/fp8.py",
        {"0.14.0": (105, 150)},
        (
            Kernel(MARLIN, 80, 88),
            Kernel(TRITON, 89, 89),
            Kernel(_OWN_CUTLASS, 90, 109, COMPRESSED),
            Kernel(TRITON, 90, 109, "it is not"),
            Kernel(TRITON, 110),
        ),
    ),
    # Of the order, what `_supports_current_device` and `_supports_quant_scheme` of each leave.
    Selection(
        "vllm",
        ("fp8_block",),
        f"{_MOE}/fp8.py",
        _ORACLE,
        (*_BLOCKS, Kernel(TRITON, 110)),
        (*_SPREAD, Kernel(TRITON, 110)),
    ),
    Selection(
        "vllm",
        ("fp8_block",),
        f"{_MOE}/fp8.py",
        {"0.24.0": (64, 126)},
        (*_BLOCKS, *_SINCE_24),
        (*_SPREAD, *_SINCE_24),
    ),
    # `should_auto_disable_deep_gemm` is asked at oracle/fp8.py:496-503 and says it of both in
    # vllm/utils/deep_gemm.py:28-34.
    Selection(
        "vllm",
        ("fp8_block",),
        f"{_MOE}/fp8.py",
        {"0.33.0": (79, 145)},
        (*_BLOCKS, *_SINCE_24),
        (*_SPREAD, *_SINCE_24),
        (Kernel(TRITON, 120, 129, QWEN_3_5),),
    ),
    # Of 16 bits: a question that names no file is answered by Triton's blocks all the same.
    # Up to 0.22.0 TRTLLM took no experts without a gate: experts/trtllm_bf16_moe.py:56-59.
    Selection(
        "vllm",
        ("bf16",),
        f"{_MOE}/unquantized.py",
        {"0.20.2": (47, 84), "0.22.0": (44, 81)},
        _PLAIN_BEFORE,
    ),
    Selection(
        "vllm",
        ("bf16",),
        f"{_MOE}/unquantized.py",
        {"0.24.0": (43, 86), "0.33.0": (50, 106)},
        _PLAIN,
    ),
    Selection("vllm", ("fp8",), f"{_MOE}/fp8.py", _ORACLE, _WHOLE_ROUTED),
    # From 0.24.0 on TRTLLM takes all routing but softmax without renormalisation, which is rare:
    # `_supports_routing_method` in fused_moe/experts/trtllm_fp8_moe.py of 0.33.0, lines 399-433.
    Selection("vllm", ("fp8",), f"{_MOE}/fp8.py", {"0.24.0": (64, 126)}, (*_BELOW, *_WHOLE_ANY)),
    # There it takes no rows that are split, too: trtllm_fp8_moe.py:188-196 and, of which they are,
    # vllm/config/parallel.py:768-785.
    Selection(
        "vllm",
        ("fp8",),
        f"{_MOE}/fp8.py",
        {"0.33.0": (79, 145)},
        (*_BELOW, Kernel(CUTLASS, 100, 109, STORED_SPLIT), *_WHOLE_ANY),
    ),
    Selection(
        "vllm",
        ("int8",),
        f"{_QUANT}/compressed_tensors/compressed_tensors_moe.py",
        {"0.9.1": (93, 94), "0.14.0": (208, 211), "0.19.0": (218, 221)},
        _ALL,
    ),
    Selection(
        "vllm",
        ("int8",),
        f"{_MOE}/int8.py",
        {"0.20.2": (36, 42), "0.22.0": (33, 39), "0.24.0": (33, 39), "0.33.0": (37, 45)},
        _ALL,
    ),
    Selection(
        "vllm",
        ("int4", "int8_w8a16"),
        f"{_QUANT}/gptq_marlin.py",
        {"0.9.1": (160, 166), "0.14.0": (248, 258), "0.19.0": (247, 257)},
        (Kernel(MARLIN, 75),),
    ),
    Selection(
        "vllm",
        ("int4", "int8_w8a16"),
        f"{_MOE}/int_wna16.py",
        {"0.20.2": (62, 70), "0.22.0": (64, 72), "0.24.0": (79, 93)},
        (Kernel(MARLIN, 75),),
    ),
    Selection(
        "vllm",
        ("int4", "int8_w8a16"),
        f"{_MOE}/int_wna16.py",
        {"0.33.0": (126, 143)},
        (Kernel(MARLIN, 75, 89), Kernel("Humming", 90, 90), Kernel(MARLIN, 91)),
    ),
    # Triton's kernels for gpt-oss are those of `triton_kernels`, which are not `fused_moe`'s.
    Selection(
        "vllm",
        ("mxfp4",),
        f"{_MOE}/mxfp4.py",
        {"0.20.2": (193, 229), "0.22.0": (270, 311)},
        _MXFP4,
    ),
    Selection(
        "vllm",
        ("mxfp4",),
        f"{_MOE}/mxfp4.py",
        {"0.24.0": (304, 345)},
        _MXFP4,
        apart=_MXFP4_OF_V4,
    ),
    Selection(
        "vllm",
        ("mxfp4",),
        f"{_MOE}/mxfp4.py",
        {"0.33.0": (402, 462)},
        (
            Kernel(MARLIN, 80, 89),
            Kernel(TRITON_KERNELS, 90, 90, GPT_OSS),
            Kernel("Humming", 90, 90, "it is not"),
            Kernel(TRTLLM, 100, 109),
            Kernel(MARLIN, 120, 129),
        ),
        apart=_MXFP4_OF_V4,
    ),
    Selection(
        "vllm",
        ("nvfp4",),
        f"{_MOE}/nvfp4.py",
        {"0.19.0": (129, 146), "0.20.2": (150, 169)},
        (Kernel(MARLIN, 80, 99), *_FOUR_BITS),
        apart=(_NO_ROUNDING, Kernel(_OWN_CUTLASS, 100, LAST, GEMMA_4)),
    ),
    # Gemma 4's GELU, which from 0.22.0 on goes by its tanh, FlashInfer's kernels take since 0.24.0:
    # `_supports_activation` of each in fused_moe/experts; models/gemma4.py:359 of 0.20.2 names it.
    Selection(
        "vllm",
        ("nvfp4",),
        f"{_MOE}/nvfp4.py",
        {"0.22.0": (160, 182)},
        (Kernel(MARLIN, 80, 99), *_FOUR_BITS),
        apart=(_NO_ROUNDING, Kernel(MARLIN, 100, LAST, GEMMA_4)),
    ),
    Selection(
        "vllm",
        ("nvfp4",),
        f"{_MOE}/nvfp4.py",
        {"0.24.0": (151, 173)},
        (Kernel(MARLIN, 80, 99), *_FOUR_BITS),
        apart=(_NO_ROUNDING,),
    ),
    Selection(
        "vllm",
        ("nvfp4",),
        f"{_MOE}/nvfp4.py",
        {"0.33.0": (191, 213)},
        (Kernel(MARLIN, 80, 89), Kernel("Humming", 90, 90), *_FOUR_BITS),
        apart=(_NO_ROUNDING,),
    ),
)
