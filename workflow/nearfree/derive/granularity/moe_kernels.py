"""The kernel that a release runs for an MoE layer, and whether the rules cover its blocks."""

import re

from nearfree.backends.kernels import (
    NO_FILE,
    Checkpoint,
    moe_kernel,
    moe_libraries,
    unread_kernel_error,
)
from nearfree.backends.moe_kernels import (
    MARLIN,
    NEVER_TRITON,
    TRITON,
    TRITON_KERNELS,
    TRTLLM,
    TRTLLM_8,
    Kernel,
)
from nearfree.backends.named_kernels import WORDS, named_kernel
from nearfree.backends.names import BackendRelease
from nearfree.backends.public_kernels import BY_PUBLIC_NAME, PUBLIC_NAMES, kernel_for, public_kernel
from nearfree.backends.records import BY_NAME
from nearfree.core.modules.moe_ffn import OTHER_MOE, MoeQuestion
from nearfree.core.precision import PLAIN, Product
from nearfree.core.precision import Dtype as Format
from nearfree.derive.granularity.releases import Release, moe_release
from nearfree.errors import EvidenceError
from nearfree.sources.answers.marlin import OTHER_KERNEL_RULES
from nearfree.sources.answers.moe import Dtype

MOE_FORMATS: dict[tuple[str, str], Dtype] = {
    ("bfloat16", "bfloat16"): "bf16",
    ("float16", "float16"): "fp16",
    ("float8", "float8"): "fp8",
    ("float8_block", "float8_block"): "fp8_block",
    ("int8", "int8"): "int8",
    ("bfloat16", "int8"): "int8_w8a16",
    ("float16", "int8"): "int8_w8a16",
    ("bfloat16", "int4"): "int4",
    ("float16", "int4"): "int4",
    ("bfloat16", "mxfp4"): "mxfp4",
    ("float16", "mxfp4"): "mxfp4",
    ("float8", "mxfp4"): "mxfp4",
    ("bfloat16", "nvfp4"): "nvfp4",
    ("nvfp4", "nvfp4"): "nvfp4",
}
"""A release's name for formats of (activations, weights); float8 is scaled per tensor."""
_WIDE_FORMATS: dict[tuple[str, str], Dtype] = {
    (plain, stored): MOE_FORMATS[stored, stored]
    for plain in ("bfloat16", "float16")
    for stored in ("float8", "float8_block")
}
"""The same for float8 weights with 16-bit activations, which only Marlin runs."""
_MARLIN_WIDE = {*_WIDE_FORMATS.values(), "nvfp4", "mxfp4"}
"""Release formats of layers that Marlin runs without rounding their activations."""
_LIBRARY_FORMATS = ("bf16", "int4", "mxfp4", "nvfp4", "fp8", "fp8_block")
"""Release formats whose kernels other than Triton's have public curves; those of Marlin may be
curves of another format."""
_LIBRARY_ONLY = ("nvfp4",)
"""Weight formats whose experts run only in libraries, which choose their own tiles."""


def moe_format(activations: str, weights: str) -> Dtype | None:
    """Return a release's name for the formats of a layer; None if it has no such kernel."""
    formats = activations, weights
    return MOE_FORMATS.get(formats) or _WIDE_FORMATS.get(formats)


def runs_marlin(
    release: BackendRelease, formats: Product, sm: int, checkpoint: Checkpoint = NO_FILE
) -> bool:
    """Return whether a release runs 8-bit or 4-bit experts by Marlin, which takes 16-bit rows.

    Parameters are those of `public_library`.
    """
    if MOE_FORMATS.get((formats.activations, formats.weights)) not in _MARLIN_WIDE:
        return False
    kernel = _kernel_of(release, formats, sm, checkpoint)
    return kernel is not None and kernel.name == MARLIN


_ROUNDING_SM = 100
"""The compute capability from which on engines may round activations of mxfp4 experts."""


def activation_format(
    engine: str, weights: str, sm: int | None, kernel: str | None = None
) -> Format | None:
    """Return the activation format of an engine's mxfp4 experts, None where it is the model's.

    TensorRT-LLM rounds activations of mxfp4 experts to mxfp8 from compute capability 10.0 on, and
    keeps 16 bits before: NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/model_config.py,
    ModelConfig.get_mxfp4_quant_algo. SGLang does so on data-centre Blackwell: sglang 0.5.9,
    sglang/srt/layers/quantization/mxfp4.py:754-770, and 0.5.23, sglang/srt/arg_groups/fields/
    exec_.py:892-897. vLLM keeps 16 bits before 10.0, whatever a model's file says: there it runs
    Marlin, Humming or triton_kernels, which take 16 bits (oracle/mxfp4.py). A `kernel` that a user
    names instead of the engine's choice decides the format itself.
    """
    if weights != "mxfp4" or sm is None:
        return None
    if kernel == TRTLLM_8:
        return "float8"
    if kernel in (MARLIN, TRITON_KERNELS):
        return "bfloat16"
    if sm < _ROUNDING_SM:
        return "bfloat16" if engine == "vllm" else None
    return "float8" if engine == "trtllm" or (engine == "sglang" and sm // 10 == 10) else None


def block_kernel(question: MoeQuestion, release: Release, dtype: Dtype) -> str:
    """Return the kernel that runs a layer, whose blocks the rules cover.

    A question with a kernel's name, with a set block, or of a backend of the paper's tables is
    about Triton's kernel. Raises EvidenceError if the rules do not cover the blocks of the kernel,
    or it would round the activations.
    """
    public_name = BY_PUBLIC_NAME.get(question.kernel or "")
    if public_name is not None and public_name in OTHER_KERNEL_RULES:
        return public_name
    if public_name is not None and public_name != TRITON and question.sm is not None:
        raise unread_kernel_error(*release, dtype, question.sm, public_name)
    triton_requested = question.kernel or question.block_size_m or question.backend not in BY_NAME
    kernel = TRITON
    if question.sm is not None and not (triton_requested and dtype not in NEVER_TRITON):
        kernel = moe_kernel(*release, dtype, question.sm, spread=question.ep > 1)
    if (question.dtype, question.weights) in _WIDE_FORMATS and kernel != MARLIN:
        raise EvidenceError(
            f"{release.package} {release.version} runs {kernel} for experts in {question.weights} "
            "there, which rounds their activations",
            remedy="Ask without --activations",
        )
    if question.sm is not None and kernel != TRITON and kernel not in OTHER_KERNEL_RULES:
        raise unread_kernel_error(*release, dtype, question.sm, kernel)
    return kernel


def reads_moe(
    release: BackendRelease, formats: Product, sm: int | None, *, spread: bool = False
) -> bool:
    """Return whether the rules cover the blocks of the kernel that a release runs for experts.

    Parameters
    ----------
    formats
        Of the experts' weights and activations.
    sm
        The device's compute capability, 90 for 9.0, None without one.
    spread
        Whether expert parallelism places whole experts on ranks.
    """
    dtype = MOE_FORMATS.get((formats.activations, formats.weights))
    if dtype is None or sm is None or not release.version:
        return False
    try:
        rules_release = moe_release(release.name, release.version, None)
        return moe_kernel(*rules_release, dtype, sm, spread=spread) in (TRITON, *OTHER_KERNEL_RULES)
    except EvidenceError:
        return False


def public_library(
    release: BackendRelease,
    formats: Product,
    sm: int | None,
    checkpoint: Checkpoint = NO_FILE,
) -> str | None:
    """Return the library or kernel by whose public curves T(N) of a release's experts is predicted.

    None if T(N) follows from blocks, or if the kernel is unknown. Marlin and OpenAI's Triton
    kernels, which run gpt-oss's experts, are returned although the rules cover their blocks.
    `formats` and `sm` are as of `reads_moe`; `checkpoint` are other facts of the model's files that
    decide, of which `wide` follows from the formats.
    """
    weights, activations = formats
    dtype = moe_format(activations, weights)
    if sm is None or dtype not in _LIBRARY_FORMATS:
        return None
    try:
        rules_release = moe_release(release.name, release.version, None)
        kernel = public_kernel(
            *rules_release, dtype, sm, checkpoint=_with_width(formats, checkpoint)
        )
        if (kernel, activations) == (PUBLIC_NAMES["vllm", "mxfp4", TRTLLM], "float8"):
            kernel = PUBLIC_NAMES["vllm", "mxfp4", TRTLLM_8]
        library = moe_libraries(*rules_release, dtype, sm) if weights in _LIBRARY_ONLY else None
        return kernel or (library if library and re.search(OTHER_MOE, library) else None)
    except EvidenceError:
        return None


def triton_stands_in(
    release: BackendRelease, formats: Product, sm: int | None, checkpoint: Checkpoint
) -> bool:
    """Return whether Triton's kernel stands for another or unknown kernel in a prediction.

    That is so for 16-bit experts that the engine runs by a library.
    """
    if sm is None or moe_format(formats.activations, formats.weights) != "bf16":
        return False
    try:
        rules_release = moe_release(release.name, release.version or "0", None)
        kernel = kernel_for(*rules_release, "bf16", sm, checkpoint=checkpoint)
    except EvidenceError:
        return False
    return kernel is None or kernel.name != TRITON


def kernel_by_file(
    release: BackendRelease, formats: Product, sm: int | None, checkpoint: Checkpoint
) -> str | None:
    """Return the kernel other than Triton's that a release chooses by the model's file.

    None if the file does not decide, or not alone. Parameters are those of `public_library`.
    """
    kernel = None if sm is None else _kernel_of(release, formats, sm, checkpoint)
    return kernel.name if kernel and kernel.condition and kernel.name != TRITON else None


def _kernel_of(
    release: BackendRelease, formats: Product, sm: int, checkpoint: Checkpoint
) -> Kernel | None:
    """Return the kernel that a release runs for a model's experts, None if unknown."""
    dtype = moe_format(formats.activations, formats.weights)
    if dtype is None or not release.version:
        return None
    try:
        rules_release = moe_release(release.name, release.version, None)
        return kernel_for(*rules_release, dtype, sm, checkpoint=_with_width(formats, checkpoint))
    except EvidenceError:
        return None


def _with_width(formats: Product, checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint._replace(wide=formats.activations in PLAIN)


def named_moe_kernel(
    release: BackendRelease, formats: Product, sm: int | None, word: str, checkpoint: Checkpoint
) -> str | None:
    """Return the experts' kernel that a word of an engine's option selects.

    None if the release would choose the same kernel by itself, or if its choice is unknown: without
    a device or release, or in a format without kernels. `formats`, `sm` and `checkpoint` are as of
    `public_library`, `word` is as of `named_kernel`.

    Raises
    ------
    EvidenceError
        As `named_kernel`, or the release's kernel for the format is unknown.
    """
    dtype = moe_format(formats.activations, formats.weights)
    optional = release.name in WORDS
    if sm is None or dtype is None or (optional and not release.version):
        return None
    rules_release = Release(release.name, release.version or "")
    if optional:
        rules_release = moe_release(release.name, release.version, None)
    checkpoint = _with_width(formats, checkpoint)
    kernel = named_kernel(*rules_release, word, dtype, sm, checkpoint=checkpoint)
    default = kernel_for(*rules_release, dtype, sm, checkpoint=checkpoint)
    return None if default is not None and default.name == kernel else kernel
