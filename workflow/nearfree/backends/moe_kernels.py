"""Which kernel an engine runs for a quantised MoE layer: facts, each with its place in a release.

They are stated by hand: an engine asks class after class whether it supports a layer, and what
those answer is spread over its text. Each was read in the releases that it names and holds for no
other; environment variables and options are as they are by default.
"""

from collections.abc import Mapping
from typing import NamedTuple

TRITON, MARLIN, TRITON_KERNELS = "Triton", "Marlin", "triton_kernels"
"""The kernel whose blocks `fused_moe` reads; the one for weights of few bits; gpt-oss's."""
NAIVE, ALIGNED = "naive", "aligned"
"""How the Triton kernel gets its rows: token by token, or sorted by expert and padded to blocks."""
GPT_OSS = "the model is gpt-oss"
KIMI_K3 = "it is Kimi K3 in a file of compressed-tensors"
DEEPSEEK_V4 = "it is DeepSeek V4"
INT4_K2 = "it is of DeepSeek V3's kind in a file of compressed-tensors with 4 bits in groups of 32"
PRESET = "the architecture is one that it is preset for"
TAKES = "it takes the layer's activation and routing"
ROUTED = "its activation and routing are among those that it takes"
NOT_OFF = "VLLM_USE_FLASHINFER_MOE_FP16 is not 0"
STORED = "scales of activations are stored"
COMPRESSED = "the file is one of compressed-tensors"
STORED_ROUTED = f"{STORED} and it takes the routing"
COMPRESSED_4 = "the file is one of compressed-tensors, with 4 bits"
ELSE = ("", "it is not", "it does not", "neither")
"""What holds where nothing that stands before it does."""
NEVER_TRITON = ("mxfp4", "nvfp4")
"""Formats that the Triton kernel of `fused_moe` does not take, whatever a question names."""
LAST = 999


class Kernel(NamedTuple):
    """A kernel and the compute capabilities, 90 for 9.0, where it runs, both ends included."""

    name: str
    first: int
    last: int = LAST
    where: str = ""
    """What else decides, where a question does not say it; several kernels may stand for one."""


class Selection(NamedTuple):
    """What a package's releases run for formats, named as a MoE query names them."""

    package: str
    dtypes: tuple[str, ...]
    file: str
    lines: Mapping[str, tuple[int, int]]
    """First and last line of what decides, by release."""
    kernels: tuple[Kernel, ...]
    spread: tuple[Kernel, ...] = ()
    """Those where whole experts are spread over ranks, where they are others."""


_MOE = "vllm/model_executor/layers/fused_moe/oracle"
_VLLM = "vllm/model_executor/layers/quantization"
_SGLANG = "sglang/srt/layers/quantization"
TRTLLM = "FlashInfer's TRTLLM"
TRTLLM_8 = "FlashInfer's TRTLLM over rows in mxfp8"
"""The same where an engine's own choice keeps 16 bits, and an option of it rounds."""
CUTLASS = "FlashInfer's CUTLASS"
_BLOCKS = (Kernel(MARLIN, 80, 88), Kernel(TRITON, 89, 90), Kernel(TRTLLM, 100, 109))
_SPREAD = (
    Kernel(MARLIN, 80, 88),
    Kernel(TRITON, 89, 89),
    Kernel(CUTLASS, 90, 90),
    Kernel(TRTLLM, 100, 109),
)
_WHOLE = (
    Kernel(CUTLASS, 90, LAST, STORED),
    Kernel("vLLM's CUTLASS", 90, 109, COMPRESSED),
    Kernel(TRITON, 90, LAST, "neither"),
)
_BELOW = (Kernel(MARLIN, 80, 88), Kernel(TRITON, 89, 89))
_WHOLE_ROUTED = (*_BELOW, Kernel(TRTLLM, 100, 109, STORED_ROUTED), *_WHOLE)
_WHOLE_ANY = (*_BELOW, Kernel(TRTLLM, 100, 109, STORED), *_WHOLE)
_ORACLE = {"0.19.0": (57, 102), "0.20.2": (60, 105), "0.22.0": (58, 108)}
_NEWER = {"0.24.0": (64, 126), "0.33.0": (79, 145)}
_ALL = (Kernel(TRITON, 75),)
_BY_MODEL = (
    Kernel(TRITON, 89, 99),
    Kernel(TRTLLM, 100, 109, PRESET),
    Kernel(TRITON, 100, 109, "it is not"),
    Kernel(TRITON, 110),
)

_PLAIN = (
    Kernel(TRITON, 75, 99),
    Kernel(TRTLLM, 100, 109, ROUTED),
    Kernel(CUTLASS, 120, 129, ROUTED),
)
_PLAIN_BEFORE = (
    Kernel(TRITON, 75, 89),
    Kernel(CUTLASS, 90, 90, NOT_OFF),
    Kernel(TRTLLM, 100, 109, NOT_OFF),
    Kernel(CUTLASS, 120, 129, NOT_OFF),
)
_PLAIN_BY_MODEL = (
    Kernel(TRITON, 75, 99),
    Kernel(TRTLLM, 100, 109, PRESET),
    Kernel(TRITON, 100, 109, "it is not"),
    Kernel(TRITON, 110),
)
_FOUR_BITS = (
    Kernel(TRTLLM, 100, 109, TAKES),
    Kernel("FlashInfer's CuteDSL or CUTLASS", 100, 109, "it does not"),
    Kernel("FlashInfer's CUTLASS", 120, 129),
)

_GPT_OSS_ON_HOPPER = (
    Kernel(TRITON_KERNELS, 90, 90, GPT_OSS),
    Kernel("one that is not read", 90, 90, "it is not"),
)
_MXFP4_TRTLLM = tuple(Kernel(TRTLLM, 100, 109, each) for each in (GPT_OSS, KIMI_K3, DEEPSEEK_V4))

SELECTIONS = (
    Selection(
        "vllm",
        ("fp8_block",),
        f"{_VLLM}/fp8.py",
        {"0.9.1": (444, 471)},
        (Kernel(MARLIN, 80, 88), Kernel(TRITON, 89)),
    ),
    Selection(
        "vllm",
        ("fp8",),
        f"{_VLLM}/compressed_tensors/compressed_tensors_moe.py",
        {"0.9.1": (89, 92)},
        (
            Kernel(MARLIN, 80, 88),
            Kernel("vLLM's CUTLASS", 90, 90, "the file is one of compressed-tensors"),
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
            Kernel("vLLM's CUTLASS", 90, 109, "the file is one of compressed-tensors"),
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
        _NEWER,
        (*_BLOCKS, Kernel(TRITON, 110, 119), Kernel("DeepGEMM", 120)),
        (*_SPREAD, Kernel(TRITON, 110, 119), Kernel("DeepGEMM", 120)),
    ),
    # Of 16 bits: a question that names no file is answered by Triton's blocks all the same.
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
    Selection("vllm", ("fp8",), f"{_MOE}/fp8.py", _NEWER, _WHOLE_ANY),
    Selection(
        "vllm",
        ("int8",),
        f"{_VLLM}/compressed_tensors/compressed_tensors_moe.py",
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
        f"{_VLLM}/gptq_marlin.py",
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
        {"0.20.2": (193, 229), "0.22.0": (270, 311), "0.24.0": (304, 345)},
        (
            Kernel(MARLIN, 80, 89),
            Kernel(TRITON_KERNELS, 90, 90, GPT_OSS),
            Kernel(MARLIN, 90, 90, "it is not"),
            Kernel(TRTLLM, 100, 109),
        ),
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
    ),
    Selection(
        "vllm",
        ("nvfp4",),
        f"{_MOE}/nvfp4.py",
        {"0.19.0": (129, 146), "0.20.2": (150, 169), "0.22.0": (160, 182), "0.24.0": (151, 173)},
        (Kernel(MARLIN, 80, 99), *_FOUR_BITS),
    ),
    Selection(
        "vllm",
        ("nvfp4",),
        f"{_MOE}/nvfp4.py",
        {"0.33.0": (191, 213)},
        (Kernel(MARLIN, 80, 89), Kernel("Humming", 90, 90), *_FOUR_BITS),
    ),
    Selection(
        "sglang",
        ("bf16",),
        "sglang/srt/server_args.py",
        {"0.5.9": (1566, 1574), "0.5.10": (1963, 1971), "0.5.14": (4168, 4176)},
        _PLAIN_BY_MODEL,
    ),
    Selection(
        "sglang",
        ("bf16",),
        "sglang/srt/arg_groups/model_overrides/qwen3_moe.py",
        {"0.5.23": (78, 86)},
        _PLAIN_BY_MODEL,
    ),
    Selection(
        "sglang",
        ("fp8", "fp8_block"),
        f"{_SGLANG}/fp8.py",
        {
            "0.5.9": (1347, 1351),
            "0.5.10": (1474, 1478),
            "0.5.14": (1793, 1803),
            "0.5.23": (2962, 2972),
        },
        _BY_MODEL,
    ),
    Selection(
        "sglang",
        ("nvfp4",),
        "sglang/srt/server_args.py",
        {"0.5.9": (1302, 1307), "0.5.10": (1641, 1650), "0.5.14": (3723, 3733)},
        (Kernel(TRTLLM, 100, 109, PRESET), Kernel("SGLang's CUTLASS", 100, 109, "it is not")),
    ),
    Selection(
        "sglang",
        ("nvfp4",),
        "sglang/srt/arg_groups/overrides.py",
        {"0.5.23": (810, 823)},
        (Kernel(TRTLLM, 100, 109, PRESET), Kernel("SGLang's CUTLASS", 100, 109, "it is not")),
    ),
    Selection(
        "sglang",
        ("mxfp4",),
        "sglang/srt/server_args.py",
        {"0.5.9": (1371, 1395), "0.5.10": (1743, 1750)},
        (*_GPT_OSS_ON_HOPPER, Kernel(TRTLLM, 100, 109, GPT_OSS)),
        (Kernel(TRTLLM, 100, 109, GPT_OSS),),
    ),
    # Of Kimi K3 model_overrides/kimi_k3.py:172-190 says it, of DeepSeek V4 deepseek_v4.py:66-88.
    Selection(
        "sglang",
        ("mxfp4",),
        "sglang/srt/arg_groups/model_overrides/gpt_oss.py",
        {"0.5.23": (64, 121)},
        (*_GPT_OSS_ON_HOPPER, *_MXFP4_TRTLLM),
        _MXFP4_TRTLLM,
    ),
    Selection(
        "sglang",
        ("int8",),
        f"{_SGLANG}/w8a8_int8.py",
        {
            "0.5.9": (332, 332),
            "0.5.10": (332, 332),
            "0.5.14": (333, 333),
            "0.5.23": (329, 329),
        },
        _ALL,
    ),
    Selection(
        "sglang",
        ("int4", "int8_w8a16"),
        f"{_SGLANG}/gptq.py",
        {"0.5.9": (407, 407), "0.5.10": (409, 409)},
        (Kernel(MARLIN, 80),),
    ),
    Selection(
        "sglang",
        ("int4", "int8_w8a16"),
        f"{_SGLANG}/gptq/gptq.py",
        {"0.5.14": (417, 417)},
        (Kernel(MARLIN, 80),),
    ),
    # Of Kimi K2.5 and its kind arg_groups/overrides.py:745-823 says it.
    Selection(
        "sglang",
        ("int4", "int8_w8a16"),
        f"{_SGLANG}/compressed_tensors/compressed_tensors.py",
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
