"""Which kernel vLLM runs for a dense product of quantised weights: facts, each with its place.

They are stated by hand, as those of `kernels` are: vLLM asks class after class whether it supports
a layer. Each was read in the releases that it names and holds for no other; environment variables
and options are as they are by default, and nothing but vLLM's own requirements is installed (its
wheel has DeepGEMM since 0.20, and took one that was installed before).
"""

from collections.abc import Mapping
from typing import NamedTuple

from nearfree.errors import EvidenceError

CUTLASS, MARLIN, MACHETE = "CUTLASS", "Marlin", "Machete"
_LAST = 999
_DISPATCHES = {80: 80, 89: 89, 90: 90, 100: 100, 103: 100, 120: 120, 121: 120}
"""Which of CUTLASS's dispatches a compute capability takes: `cutlass_scaled_mm` in
csrc/quantization/w8a8/cutlass/scaled_mm_entry.cu of 0.33.0, lines 244-281. Of 8.6, whose shared
memory some of the kernels for 8.0 do not fit in, none is known."""


class DenseKernel(NamedTuple):
    """A kernel, where it runs, and what it asks of the weights.

    `first` and `last` are compute capabilities, 90 for 9.0, both included; `columns` and `depth`
    what the weights' sides are multiples of.
    """

    name: str
    first: int
    last: int = _LAST
    columns: int = 1
    depth: int = 1
    where: str = ""
    """What else decides, where a question does not say it."""


class DenseSelection(NamedTuple):
    """What releases run for a format, in the order in which kernels are tried."""

    formats: tuple[str, ...]
    file: str
    lines: Mapping[str, tuple[int, int]]
    """First and last line of what decides, by release."""
    kernels: tuple[DenseKernel, ...]


_QUANT = "vllm/model_executor/layers/quantization"
_LINEAR = "vllm/model_executor/kernels/linear/__init__.py"
_DEEP = "FlashInfer below 32 rows and DeepGEMM from there on"
_FLASHINFER = DenseKernel("FlashInfer", 100, where="scales are per tensor")
_WHOLE = (DenseKernel(MARLIN, 80, 88), _FLASHINFER, DenseKernel(CUTLASS, 89))
_BLOCK = (
    DenseKernel(MARLIN, 80, 88),
    DenseKernel("Triton", 89, 89),
    DenseKernel(CUTLASS, 90),
)
_DEEP_BLOCK = (
    DenseKernel(_DEEP, 90, 90, columns=64, depth=128),
    DenseKernel("DeepGEMM", 100, 109, columns=64, depth=128),
)
_DEEP_12 = DenseKernel("DeepGEMM", 120, 129, columns=64, depth=128)
_FEW_BITS = (DenseKernel(MACHETE, 90, 90, columns=128, depth=64),)
_ALLSPARK = DenseKernel("AllSpark", 80, 89, where="a scale is per channel")
_MARLIN = DenseKernel(MARLIN, 75, columns=64, depth=128)
_FOUR_BITS_WIDE = DenseKernel(MARLIN, 75, 99)

SELECTIONS = (
    DenseSelection(
        ("float8",),
        f"{_QUANT}/utils/w8a8_utils.py",
        {"0.9.1": (272, 282)},
        (DenseKernel(MARLIN, 80, 88), DenseKernel(CUTLASS, 89)),
    ),
    DenseSelection(("float8",), f"{_QUANT}/utils/w8a8_utils.py", {"0.14.0": (364, 416)}, _WHOLE),
    DenseSelection(
        ("float8",),
        _LINEAR,
        {
            "0.19.0": (108, 115),
            "0.20.2": (161, 168),
            "0.22.0": (265, 273),
            "0.24.0": (291, 299),
            "0.33.0": (458, 467),
        },
        _WHOLE,
    ),
    DenseSelection(
        ("float8_block",),
        f"{_QUANT}/utils/fp8_utils.py",
        {"0.9.1": (117, 133)},
        (
            DenseKernel(MARLIN, 80, 88),
            DenseKernel(CUTLASS, 90, 90, columns=128, depth=128),
            DenseKernel(CUTLASS, 100),
            DenseKernel("Triton", 89, 90),
        ),
    ),
    DenseSelection(
        ("float8_block",),
        f"{_QUANT}/utils/fp8_utils.py",
        {"0.14.0": (401, 415), "0.19.0": (409, 423)},
        _BLOCK,
    ),
    DenseSelection(
        ("float8_block",),
        _LINEAR,
        {"0.20.2": (188, 197), "0.22.0": (293, 302)},
        (*_DEEP_BLOCK, *_BLOCK),
    ),
    # DeepGEMM takes 12.0 since: `support_deep_gemm` in vllm/platforms/cuda.py, lines 663-669.
    DenseSelection(
        ("float8_block",),
        _LINEAR,
        {"0.24.0": (320, 329)},
        (*_DEEP_BLOCK, _DEEP_12, *_BLOCK),
    ),
    DenseSelection(
        ("float8_block",),
        _LINEAR,
        {"0.33.0": (494, 506)},
        (
            *_DEEP_BLOCK,
            _DEEP_12,
            DenseKernel(MARLIN, 80, 89),
            DenseKernel(CUTLASS, 90),
        ),
    ),
    # No kernel of CUTLASS's for int8 is built for 10.0 and newer: what runs there is not read.
    DenseSelection(
        ("int8",),
        f"{_QUANT}/kernels/scaled_mm/__init__.py",
        {"0.9.1": (20, 25), "0.14.0": (25, 29)},
        (DenseKernel(CUTLASS, 80, 99),),
    ),
    DenseSelection(
        ("int8",),
        _LINEAR,
        {
            "0.19.0": (98, 105),
            "0.20.2": (151, 158),
            "0.22.0": (256, 263),
            "0.24.0": (282, 289),
            "0.33.0": (446, 455),
        },
        (DenseKernel(CUTLASS, 80, 99),),
    ),
    # A file of AWQ's ran Marlin, whatever the device: `apply_awq_marlin_linear` in awq_marlin.py.
    DenseSelection(
        ("int4",),
        f"{_QUANT}/kernels/mixed_precision/__init__.py",
        {"0.9.1": (22, 28), "0.14.0": (42, 53)},
        (
            DenseKernel(MARLIN, 90, 90, columns=64, depth=128, where="the file is one of AWQ"),
            *_FEW_BITS,
            _MARLIN,
        ),
    ),
    DenseSelection(
        ("int4",),
        _LINEAR,
        {"0.19.0": (132, 140), "0.20.2": (220, 228), "0.22.0": (331, 339), "0.24.0": (359, 369)},
        (*_FEW_BITS, _MARLIN),
    ),
    DenseSelection(
        ("int8_w8a16",),
        _LINEAR,
        {"0.19.0": (132, 140), "0.20.2": (220, 228), "0.22.0": (331, 339), "0.24.0": (359, 369)},
        (*_FEW_BITS, _ALLSPARK, _MARLIN),
    ),
    # Humming is moved before Marlin on 9.0: layers/quantization/utils/humming/priority.py, line 11.
    DenseSelection(
        ("int4", "int8_w8a16"),
        _LINEAR,
        {"0.33.0": (539, 548)},
        (*_FEW_BITS, DenseKernel("Humming", 90, 90), _MARLIN),
    ),
    # From 10.0 on FlashInfer and CUTLASS use units of nvfp4: their rows are not read. Humming may
    # round the rows of a layer whose inputs have stored scales: `check_and_fallback_input_schema`
    # in layers/quantization/utils/humming/schema.py, lines 261-400.
    DenseSelection(
        ("nvfp4",), f"{_QUANT}/utils/nvfp4_utils.py", {"0.19.0": (57, 64)}, (_FOUR_BITS_WIDE,)
    ),
    DenseSelection(
        ("nvfp4",),
        _LINEAR,
        {"0.20.2": (260, 269), "0.22.0": (371, 383), "0.24.0": (407, 420)},
        (_FOUR_BITS_WIDE,),
    ),
    DenseSelection(
        ("nvfp4",),
        _LINEAR,
        {"0.33.0": (592, 609)},
        (DenseKernel("Humming", 90, 90), _FOUR_BITS_WIDE),
    ),
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
"""What a selection is of, by the formats of activations and weights; int4 is in groups of 128."""
_WIDE = {
    "float8_w8a16": "float8",
    "float8_block_w8a16": "float8_block",
    "nvfp4_w4a16": "nvfp4",
}
"""Formats as which Marlin runs a layer of another: it unpacks the weights to the rows' 16 bits."""
QWEN_3_5 = ("qwen3_5_text", "qwen3_5_moe_text")
"""Qwen3.5 and Qwen3.6 by the types of their text parts."""
_OFF = {"0.20.2": (100,), "0.22.0": (100,), "0.24.0": (100, 120), "0.33.0": (100, 120)}
"""By release, the families of compute capabilities on which vLLM turns DeepGEMM off for those:
`should_auto_disable_deep_gemm` in vllm/utils/deep_gemm.py, lines 26-42 of 0.20.2 and 28-54 of
0.33.0, asked by kernels/linear/scaled_mm/deep_gemm.py:74-76 of each."""
_ANY_SIDE = 128
"""A side that every kernel takes: whether Marlin runs such a layer does not depend on sides."""


def dense_format(activations: str, weights: str) -> str | None:
    """Return what a selection is of; None where none is read of these formats."""
    return _FORMATS.get((activations, weights))


def dense_rule(kernel: str, format_: str, sm: int) -> str | None:
    """Return the rule that says a kernel's rows; None where none is read."""
    if kernel == CUTLASS and sm in _DISPATCHES:
        return f"{format_}_sm{_DISPATCHES[sm]}"
    return {MARLIN: "marlin", MACHETE: "machete"}.get(kernel)


def dense_kernel(version: str, format_: str, sm: int, columns: int, depth: int) -> str:
    """Return the kernel that a release of vLLM runs for a product.

    Parameters
    ----------
    version
        vLLM's release.
    format_
        The formats, as `dense_format` names them.
    sm
        The device's compute capability, 90 for 9.0.
    columns, depth
        The weights' sides: elements of an output's row, and of an input's.

    Raises
    ------
    EvidenceError
        It is not read, or what is asked leaves open which of several runs.
    """
    found: list[DenseKernel] = []
    for each in _selection(version, format_).kernels:
        fits = columns % each.columns == 0 and depth % each.depth == 0
        if fits and each.first <= sm <= each.last:
            found.append(each)
            if not each.where:
                break
    if format_ in _WIDE:
        found = [each for each in found if each.name == MARLIN]
    if len(found) == 1 and not found[0].where:
        return found[0].name
    cases = "; ".join(f"{each.name} where {each.where or 'not'}" for each in found)
    kernels = f"one of several kernels ({cases})" if found else "no kernel that is read"
    raise dense_unread(version, format_, sm, kernels)


def instead_of_deepgemm(version: str, model_type: str, sm: int) -> str | None:
    """Return what runs a model's products in float8_block where vLLM turns DeepGEMM off for it."""
    off = model_type in QWEN_3_5 and sm // 10 * 10 in _OFF.get(version, ())
    return CUTLASS if off else None


def dense_widens(version: str, activations: str, weights: str, sm: int) -> bool:
    """Return whether a release runs products of these formats by Marlin, which takes 16-bit rows.

    So it runs float8 and nvfp4 where the device has no such units, or no better kernel: what enters
    is not rounded, and weights are unpacked to 16 bits.
    """
    format_ = dense_format(activations, weights)
    if format_ is None or format_ not in _WIDE.values():
        return False
    try:
        return dense_kernel(version, format_, sm, _ANY_SIDE, _ANY_SIDE) == MARLIN
    except EvidenceError:
        return False


def dense_unread(version: str, format_: str, sm: int, kernels: str) -> EvidenceError:
    """Return why no rows of the kernels that run are known, with the place that names them."""
    chosen = _selection(version, format_)
    place = "{}:{}-{}".format(chosen.file, *chosen.lines[version])
    return EvidenceError(
        f"vllm {version} runs {kernels} for {format_} on compute capability {sm} ({place}),"
        " whose rows are not read",
        remedy="Ask for a format or device whose kernel is read",
    )


def _selection(version: str, format_: str) -> DenseSelection:
    mine = [each for each in SELECTIONS if _WIDE.get(format_, format_) in each.formats]
    for each in mine:
        if version in each.lines:
            return each
    known = ", ".join(release for each in mine for release in each.lines)
    raise EvidenceError(
        f"which kernel vllm {version} runs for products in {format_} is not read; it is of {known}",
        remedy="Ask for one of those releases",
    )
