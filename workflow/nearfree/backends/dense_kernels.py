"""The kernel that vLLM runs for a dense product of quantised weights: facts with their sources.

They are stated by hand, as those of `kernels` are: vLLM asks class after class whether it supports
a layer. Each was read in the releases that it names and holds for no other. Environment variables
and options have their defaults, and only vLLM's own requirements are installed (its wheel contains
DeepGEMM since 0.20; before, it used an installed one).
"""

from functools import partial

from nearfree.backends.moe_kernels import MARLIN, Kernel, Selection, selection_of
from nearfree.errors import EvidenceError

CUTLASS, MACHETE = "CUTLASS", "Machete"
_DISPATCHES = {80: 80, 89: 89, 90: 90, 100: 100, 103: 100, 120: 120, 121: 120}
"""The CUTLASS dispatch of each compute capability: `cutlass_scaled_mm` in
csrc/quantization/w8a8/cutlass/scaled_mm_entry.cu of 0.33.0, lines 244-281. That of 8.6 is unknown:
some of the kernels for 8.0 do not fit into its shared memory."""

_QUANT = "vllm/model_executor/layers/quantization"
_LINEAR = "vllm/model_executor/kernels/linear/__init__.py"
_FLASHINFER_OR_DEEPGEMM = "FlashInfer below 32 rows and DeepGEMM from there on"
_FLASHINFER = Kernel("FlashInfer", 100, condition="scales are per tensor")
_FLOAT8_BEFORE_14 = (Kernel(MARLIN, 80, 88), Kernel(CUTLASS, 89))
_FLOAT8 = (Kernel(MARLIN, 80, 88), _FLASHINFER, Kernel(CUTLASS, 89))
_FLOAT8_BLOCK = (
    Kernel(MARLIN, 80, 88),
    Kernel("Triton", 89, 89),
    Kernel(CUTLASS, 90),
)
_DEEPGEMM_FLOAT8_BLOCK = (
    Kernel(_FLASHINFER_OR_DEEPGEMM, 90, 90, columns=64, depth=128),
    Kernel("DeepGEMM", 100, 109, columns=64, depth=128),
)
_DEEPGEMM_SM12X = Kernel("DeepGEMM", 120, 129, columns=64, depth=128)
_MACHETE = Kernel(MACHETE, 90, 90, columns=128, depth=64)
_ALLSPARK = Kernel("AllSpark", 80, 89, condition="a scale is per channel")
_MARLIN = Kernel(MARLIN, 75, columns=64, depth=128)
_MARLIN_NVFP4 = Kernel(MARLIN, 75, 99)

_MIXED_BEFORE_33 = {
    "0.19.0": (132, 140),
    "0.20.2": (220, 228),
    "0.22.0": (331, 339),
    "0.24.0": (359, 369),
}
_float8 = partial(Selection, "vllm", ("float8",))
_float8_block = partial(Selection, "vllm", ("float8_block",))
_int8 = partial(Selection, "vllm", ("int8",))
_int4 = partial(Selection, "vllm", ("int4",))
_nvfp4 = partial(Selection, "vllm", ("nvfp4",))

SELECTIONS = (
    _float8(f"{_QUANT}/utils/w8a8_utils.py", {"0.9.1": (272, 282)}, _FLOAT8_BEFORE_14),
    _float8(f"{_QUANT}/utils/w8a8_utils.py", {"0.14.0": (364, 416)}, _FLOAT8),
    _float8(
        _LINEAR,
        {
            "0.19.0": (108, 115),
            "0.20.2": (161, 168),
            "0.22.0": (265, 273),
            "0.24.0": (291, 299),
            "0.33.0": (458, 467),
        },
        _FLOAT8,
    ),
    _float8_block(
        f"{_QUANT}/utils/fp8_utils.py",
        {"0.9.1": (117, 133)},
        (
            Kernel(MARLIN, 80, 88),
            Kernel(CUTLASS, 90, 90, columns=128, depth=128),
            Kernel(CUTLASS, 100),
            Kernel("Triton", 89, 90),
        ),
    ),
    _float8_block(
        f"{_QUANT}/utils/fp8_utils.py",
        {"0.14.0": (401, 415), "0.19.0": (409, 423)},
        _FLOAT8_BLOCK,
    ),
    _float8_block(
        _LINEAR,
        {"0.20.2": (188, 197), "0.22.0": (293, 302)},
        (*_DEEPGEMM_FLOAT8_BLOCK, *_FLOAT8_BLOCK),
    ),
    # DeepGEMM takes 12.0 since: `support_deep_gemm` in vllm/platforms/cuda.py, lines 663-669.
    _float8_block(
        _LINEAR,
        {"0.24.0": (320, 329)},
        (*_DEEPGEMM_FLOAT8_BLOCK, _DEEPGEMM_SM12X, *_FLOAT8_BLOCK),
    ),
    _float8_block(
        _LINEAR,
        {"0.33.0": (494, 506)},
        (*_DEEPGEMM_FLOAT8_BLOCK, _DEEPGEMM_SM12X, Kernel(MARLIN, 80, 89), Kernel(CUTLASS, 90)),
    ),
    # vLLM builds no CUTLASS kernel for int8 on 10.0 and newer: the kernel there is not read.
    _int8(
        f"{_QUANT}/kernels/scaled_mm/__init__.py",
        {"0.9.1": (20, 25), "0.14.0": (25, 29)},
        (Kernel(CUTLASS, 80, 99),),
    ),
    _int8(
        _LINEAR,
        {
            "0.19.0": (98, 105),
            "0.20.2": (151, 158),
            "0.22.0": (256, 263),
            "0.24.0": (282, 289),
            "0.33.0": (446, 455),
        },
        (Kernel(CUTLASS, 80, 99),),
    ),
    # A file of AWQ's ran Marlin, whatever the device: `apply_awq_marlin_linear` in awq_marlin.py.
    _int4(
        f"{_QUANT}/kernels/mixed_precision/__init__.py",
        {"0.9.1": (22, 28), "0.14.0": (42, 53)},
        (Kernel(MARLIN, 90, 90, "the file is one of AWQ", 64, 128), _MACHETE, _MARLIN),
    ),
    _int4(_LINEAR, _MIXED_BEFORE_33, (_MACHETE, _MARLIN)),
    Selection("vllm", ("int8_w8a16",), _LINEAR, _MIXED_BEFORE_33, (_MACHETE, _ALLSPARK, _MARLIN)),
    # Humming is moved before Marlin on 9.0: layers/quantization/utils/humming/priority.py, line 11.
    Selection(
        "vllm",
        ("int4", "int8_w8a16"),
        _LINEAR,
        {"0.33.0": (539, 548)},
        (_MACHETE, Kernel("Humming", 90, 90), _MARLIN),
    ),
    # From 10.0 on FlashInfer and CUTLASS use nvfp4 tensor cores: their rows are not read. Humming
    # may round the rows of a layer whose inputs have stored scales:
    # `check_and_fallback_input_schema` in layers/quantization/utils/humming/schema.py, lines
    # 261-400.
    _nvfp4(f"{_QUANT}/utils/nvfp4_utils.py", {"0.19.0": (57, 64)}, (_MARLIN_NVFP4,)),
    _nvfp4(
        _LINEAR,
        {"0.20.2": (260, 269), "0.22.0": (371, 383), "0.24.0": (407, 420)},
        (_MARLIN_NVFP4,),
    ),
    _nvfp4(_LINEAR, {"0.33.0": (592, 609)}, (Kernel("Humming", 90, 90), _MARLIN_NVFP4)),
)
_FORMATS = {
    ("float8", "float8"): "float8",
    ("float8_block", "float8_block"): "float8_block",
    ("int8", "int8"): "int8",
    ("bfloat16", "int4"): "int4",
    ("float16", "int4"): "int4",
    ("bfloat16", "int8"): "int8_w8a16",
    ("float16", "int8"): "int8_w8a16",
    ("bfloat16", "float8"): "float8_w8a16",
    ("float16", "float8"): "float8_w8a16",
    ("bfloat16", "float8_block"): "float8_block_w8a16",
    ("float16", "float8_block"): "float8_block_w8a16",
    ("nvfp4", "nvfp4"): "nvfp4",
    ("bfloat16", "nvfp4"): "nvfp4_w4a16",
    ("float16", "nvfp4"): "nvfp4_w4a16",
}
"""The format of a selection, by the formats of activations and weights; int4 in groups of 128."""
_MARLIN_SELECTIONS = {
    "float8_w8a16": "float8",
    "float8_block_w8a16": "float8_block",
    "nvfp4_w4a16": "nvfp4",
}
"""Formats with 16-bit rows, and the selection in which Marlin runs them: it unpacks the weights to
16 bits."""
QWEN_3_5 = ("qwen3_5_text", "qwen3_5_moe_text")
"""Model types of the text parts of Qwen3.5 and Qwen3.6."""
_DEEPGEMM_DISABLED = {
    "0.20.2": (100,),
    "0.22.0": (100,),
    "0.24.0": (100, 120),
    "0.33.0": (100, 120),
}
"""By release, the families of compute capabilities on which vLLM disables DeepGEMM for Qwen3.5:
`should_auto_disable_deep_gemm` in vllm/utils/deep_gemm.py, lines 26-42 of 0.20.2 and 28-54 of
0.33.0, called by kernels/linear/scaled_mm/deep_gemm.py:74-76 of each."""
_ANY_SIDE = 128
"""A side that every kernel takes: which layers Marlin runs does not depend on their sides."""


def dense_format(activations: str, weights: str) -> str | None:
    """Return the selection's format for activations and weights; None if none is read."""
    return _FORMATS.get((activations, weights))


def dense_rule(kernel: str, format_: str, sm: int) -> str | None:
    """Return the name of the rule for a kernel's rows; None if none is read."""
    if kernel == CUTLASS and sm in _DISPATCHES:
        return f"{format_}_sm{_DISPATCHES[sm]}"
    return {MARLIN: "marlin", MACHETE: "machete"}.get(kernel)


def dense_kernel(version: str, format_: str, sm: int, columns: int, depth: int) -> str:
    """Return the kernel that a release of vLLM runs for a product.

    Parameters
    ----------
    format_
        The formats as `dense_format` names them.
    sm
        The device's compute capability, 90 for 9.0.
    columns, depth
        The weights' sides: outputs and inputs of the product.

    Raises
    ------
    EvidenceError
        The rules are not read, or the query does not determine which of several kernels runs.
    """
    candidates: list[Kernel] = []
    for kernel in _selection(version, format_).kernels:
        fits = columns % kernel.columns == 0 and depth % kernel.depth == 0
        if fits and kernel.min_sm <= sm <= kernel.max_sm:
            candidates.append(kernel)
            if not kernel.condition:
                break
    if format_ in _MARLIN_SELECTIONS:
        candidates = [kernel for kernel in candidates if kernel.name == MARLIN]
    if len(candidates) == 1 and not candidates[0].condition:
        return candidates[0].name
    cases = "; ".join(f"{kernel.name} where {kernel.condition or 'not'}" for kernel in candidates)
    kernels = f"one of several kernels ({cases})" if candidates else "no kernel that is read"
    raise unread_product_error(version, format_, sm, kernels)


_INT8_UNTIL = 99
"""The last compute capability for which vLLM compiles the kernel that it takes for int8 on every
NVIDIA GPU: vllm 0.33.0, vllm/model_executor/kernels/linear/scaled_mm/cutlass.py:33-43, and
csrc/quantization/w8a8/cutlass/scaled_mm_c3x_sm100.cu:19 and scaled_mm_c3x_sm120.cu:19."""


def not_compiled(activations: str, weights: str, sm: int) -> bool:
    """Return whether vLLM ends with an error at a dense product of these formats on a GPU."""
    return dense_format(activations, weights) == "int8" and sm > _INT8_UNTIL


def deepgemm_replacement(version: str, model_type: str, sm: int) -> str | None:
    """Return the kernel of a model's float8_block products if vLLM disables DeepGEMM for it."""
    disabled = model_type in QWEN_3_5 and sm // 10 * 10 in _DEEPGEMM_DISABLED.get(version, ())
    return CUTLASS if disabled else None


def dense_widens(version: str, activations: str, weights: str, sm: int) -> bool:
    """Return whether a release runs products of these formats by Marlin, which takes 16-bit rows.

    vLLM does so for float8 and nvfp4 if the device lacks tensor cores for the format, or a better
    kernel: activations are not rounded, and weights are unpacked to 16 bits.
    """
    format_ = dense_format(activations, weights)
    if format_ is None or format_ not in _MARLIN_SELECTIONS.values():
        return False
    try:
        return dense_kernel(version, format_, sm, _ANY_SIDE, _ANY_SIDE) == MARLIN
    except EvidenceError:
        return False


def unread_product_error(version: str, format_: str, sm: int, kernels: str) -> EvidenceError:
    """Return the error that the rows of the kernels that run are not read, with their source."""
    place = _selection(version, format_).place(version)
    return EvidenceError(
        f"vllm {version} runs {kernels} for {format_} on compute capability {sm} ({place}),"
        " whose rows are not read",
        remedy="Ask for a format or device whose kernel is read",
    )


def _selection(version: str, format_: str) -> Selection:
    what = f"which kernel vllm {version} runs for products in {format_}"
    format_ = _MARLIN_SELECTIONS.get(format_, format_)
    return selection_of(SELECTIONS, "vllm", version, format_, what)
