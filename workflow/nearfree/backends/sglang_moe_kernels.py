"""The kernel that SGLang runs for an MoE layer: facts with their sources by release."""

from functools import partial

from nearfree.backends.moe_kernels import (
    COMPRESSED_4,
    CUTLASS,
    DEEPSEEK_V4,
    GPT_OSS,
    INT4_K2,
    KIMI_K3,
    MARLIN,
    MAX_SM,
    NEMOTRON,
    NOT_MODELOPT,
    PRESET,
    TRITON,
    TRITON_KERNELS,
    TRTLLM,
    UNKNOWN_YET,
    UNREAD,
    WIDE,
    Kernel,
    Selection,
)

_QUANT = "sglang/srt/layers/quantization"
_ARGS = "sglang/srt/server_args.py"
_SINCE_100 = (
    Kernel(TRTLLM, 100, 109, PRESET),
    Kernel(TRITON, 100, 109, "it is not"),
    Kernel(TRITON, 110),
)
_BF16 = (Kernel(TRITON, 75, 99), *_SINCE_100)
_FP8_KERNELS = (Kernel(TRITON, 89, 99), *_SINCE_100)
_FP8_BEFORE = {"0.5.9": (1347, 1351), "0.5.10": (1474, 1478)}
_FP8_SINCE = {"0.5.14": (1793, 1803), "0.5.23": (2962, 2972)}
_NVFP4_BEFORE = (
    Kernel(TRTLLM, 100, 109, PRESET),
    Kernel("SGLang's CUTLASS", 100, 109, "it is not"),
)
_NVFP4_WIDE = Kernel(UNKNOWN_YET, 80, MAX_SM, WIDE)
"""For experts in nvfp4 whose rows keep 16 bits: releases read such files from 0.5.23 on."""
_MXFP4_HOPPER = (
    Kernel(TRITON_KERNELS, 90, 90, GPT_OSS),
    Kernel(UNREAD, 90, 90, "it is not"),
)
_MXFP4_TRTLLM = tuple(Kernel(TRTLLM, 100, 109, model) for model in (GPT_OSS, KIMI_K3, DEEPSEEK_V4))
_INT4_K2 = (
    Kernel(MARLIN, 80, 99),
    Kernel(TRTLLM, 100, 109, INT4_K2),
    Kernel(MARLIN, 100, 109, "it is not"),
    Kernel(MARLIN, 110),
)


_NEMOTRON = (Kernel(CUTLASS, 89, 99, NEMOTRON), Kernel(CUTLASS, 110, MAX_SM, NEMOTRON))
"""The devices on which Nemotron-H runs CUTLASS since SGLang presets TRTLLM for it on others.

Source: sglang/srt/arg_groups/nemotron_h_hook.py:37-57 of 0.5.14 and
arg_groups/model_overrides/nemotron_h.py:99-122 of 0.5.23.
"""
_NEMOTRON_BF16 = (Kernel(UNKNOWN_YET, 80, 88, NEMOTRON), *_NEMOTRON)
"""The same in 16 bits: below 8.9 SGLang selects CUTLASS as well, which FlashInfer refuses to build
(`get_cutlass_fused_moe_module` in flashinfer/fused_moe/core.py of 0.7.2.post1, lines 629-641)."""


def _nemotron_before(min_sm: int) -> tuple[Kernel, ...]:
    """Return Nemotron-H's kernel before the preset, for files of ModelOpt, from `min_sm` on.

    Source: sglang/srt/server_args.py:1530-1546 of 0.5.9 and 1920-1940 of 0.5.10.
    """
    return (Kernel(CUTLASS, min_sm, MAX_SM, NEMOTRON),)


_bf16 = partial(Selection, "sglang", ("bf16",))
_fp8 = partial(Selection, "sglang", ("fp8",), f"{_QUANT}/fp8.py")
_nvfp4 = partial(Selection, "sglang", ("nvfp4",))
_mxfp4 = partial(Selection, "sglang", ("mxfp4",))
_integers = partial(Selection, "sglang", ("int4", "int8_w8a16"))

SGLANG = (
    _bf16(_ARGS, {"0.5.9": (1566, 1574), "0.5.10": (1963, 1971)}, _BF16),
    _bf16(_ARGS, {"0.5.14": (4168, 4176)}, _BF16, for_models=_NEMOTRON_BF16),
    _bf16(
        "sglang/srt/arg_groups/model_overrides/qwen3_moe.py",
        {"0.5.23": (78, 86)},
        _BF16,
        for_models=_NEMOTRON_BF16,
    ),
    Selection(
        "sglang",
        ("fp8_block",),
        f"{_QUANT}/fp8.py",
        {**_FP8_BEFORE, **_FP8_SINCE},
        _FP8_KERNELS,
    ),
    _fp8(_FP8_BEFORE, _FP8_KERNELS, for_models=_nemotron_before(89)),
    _fp8(_FP8_SINCE, _FP8_KERNELS, for_models=_NEMOTRON),
    _nvfp4(
        _ARGS,
        {"0.5.9": (1302, 1307), "0.5.10": (1641, 1650)},
        _NVFP4_BEFORE,
        for_models=(_NVFP4_WIDE, *_nemotron_before(100)),
    ),
    # The presets are in server_args.py:3723-3733 of 0.5.14 and arg_groups/overrides.py:810-823 of
    # 0.5.23, the selection on 12.x in server_args.py:5096-5105 and overrides.py:1513-1523.
    _nvfp4(
        f"{_QUANT}/modelopt_quant.py",
        {"0.5.14": (2317, 2323)},
        (Kernel(MARLIN, 80, 99), *_NVFP4_BEFORE, Kernel(CUTLASS, 120, 129)),
        for_models=(_NVFP4_WIDE, Kernel("SGLang's CUTLASS", 120, 129, NOT_MODELOPT)),
    ),
    # For files of compressed-tensors: compressed_tensors_w4a4_nvfp4_moe.py:289-307 in the same
    # folder. For experts whose rows are not rounded: model_overrides/qwen3_moe.py:50-77 and
    # nemotron_h.py:64-85 in sglang/srt/arg_groups.
    _nvfp4(
        f"{_QUANT}/modelopt_quant.py",
        {"0.5.23": (3117, 3123)},
        (
            Kernel(MARLIN, 80, 99),
            Kernel(CUTLASS, 100, 109, NOT_MODELOPT),
            Kernel(TRTLLM, 100, 109, "it is not"),
            Kernel(CUTLASS, 110, 129),
        ),
        for_models=(Kernel(MARLIN, 100, MAX_SM, WIDE),),
    ),
    _mxfp4(
        _ARGS,
        {"0.5.9": (1371, 1395), "0.5.10": (1743, 1750)},
        (*_MXFP4_HOPPER, Kernel(TRTLLM, 100, 109, GPT_OSS)),
        (Kernel(TRTLLM, 100, 109, GPT_OSS),),
    ),
    # For Kimi K3: model_overrides/kimi_k3.py:172-190; for DeepSeek V4: deepseek_v4.py:66-88.
    _mxfp4(
        "sglang/srt/arg_groups/model_overrides/gpt_oss.py",
        {"0.5.23": (64, 121)},
        (*_MXFP4_HOPPER, *_MXFP4_TRTLLM),
        _MXFP4_TRTLLM,
    ),
    Selection(
        "sglang",
        ("int8",),
        f"{_QUANT}/w8a8_int8.py",
        {"0.5.9": (332, 332), "0.5.10": (332, 332), "0.5.14": (333, 333), "0.5.23": (329, 329)},
        (Kernel(TRITON, 75),),
    ),
    _integers(f"{_QUANT}/gptq.py", {"0.5.9": (407, 407)}, (Kernel(MARLIN, 80),)),
    # For Kimi K2.5 and its kind: server_args.py:1623-1650 of 0.5.10 and 3693-3733 of 0.5.14.
    _integers(f"{_QUANT}/gptq.py", {"0.5.10": (409, 409)}, _INT4_K2),
    _integers(f"{_QUANT}/gptq/gptq.py", {"0.5.14": (417, 417)}, _INT4_K2),
    # For Kimi K2.5 and its kind: arg_groups/overrides.py:745-823.
    _integers(
        f"{_QUANT}/compressed_tensors/compressed_tensors.py",
        {"0.5.23": (927, 951)},
        (
            Kernel(MARLIN, 80, 99),
            Kernel(TRTLLM, 100, 109, INT4_K2),
            Kernel(TRITON, 100, 109, COMPRESSED_4),
            Kernel(MARLIN, 100, 109, "it is not"),
            Kernel(MARLIN, 110),
        ),
    ),
)
