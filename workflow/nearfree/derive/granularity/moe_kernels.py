"""Which kernel runs an MoE layer where a release is asked, and whether its blocks are read."""

import re

from nearfree.backends.kernels import (
    NO_FILE,
    Checkpoint,
    moe_kernel,
    moe_libraries,
    unread,
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
from nearfree.sources.answers.marlin import BESIDE_TRITON
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
"""What a release calls the formats of activations and weights; float8 is scaled per tensor."""
_WIDE: dict[tuple[str, str], Dtype] = {
    (plain, stored): MOE_FORMATS[stored, stored]
    for plain in ("bfloat16", "float16")
    for stored in ("float8", "float8_block")
}
"""The same where what enters is not rounded: layers in float8 are run so by Marlin alone."""
_WIDENED = {*_WIDE.values(), "nvfp4", "mxfp4"}
"""Formats, as a release calls them, of layers that Marlin takes without rounding what enters."""
_OF_LIBRARIES = ("bf16", "int4", "mxfp4", "nvfp4", "fp8", "fp8_block")
"""Formats, as a release calls them, whose kernels beside Triton's have public curves, if of Marlin
those of another format."""
_LIBRARIES_ALONE = ("nvfp4",)
"""Formats whose experts run in libraries alone, which pick their own tiles."""


def moe_format(activations: str, weights: str) -> Dtype | None:
    """Return what a release calls the formats of a layer; None where it has no such kernel."""
    formats = activations, weights
    return MOE_FORMATS.get(formats) or _WIDE.get(formats)


def moe_widens(
    release: BackendRelease, formats: Product, sm: int, of: Checkpoint = NO_FILE
) -> bool:
    """Return whether a release runs experts in 8 or 4 bits by Marlin, which takes 16-bit rows.

    Parameters are those of `library_of`.
    """
    dtype = MOE_FORMATS.get((formats.activations, formats.weights))
    if dtype is None or dtype not in _WIDENED or not release.version:
        return False
    runs = _runs(release, formats, sm, of)
    return runs is not None and runs.name == MARLIN


_ROUNDING = 100


def entering(engine: str, weights: str, sm: int | None, named: str | None = None) -> Format | None:
    """Return the format in which an engine lets rows enter experts, None where it is the model's.

    TensorRT-LLM rounds what enters mxfp4 experts to mxfp8 from compute capability 10.0 on, and
    keeps 16 bits before: NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/model_config.py,
    ModelConfig.get_mxfp4_quant_algo. SGLang does so on data-centre Blackwell: sglang 0.5.9,
    sglang/srt/layers/quantization/mxfp4.py:754-770, and 0.5.23, sglang/srt/arg_groups/fields/
    exec_.py:892-897. vLLM keeps them before 10.0, whatever a model's file says: there it runs
    Marlin, Humming or triton_kernels, which take 16 bits (oracle/mxfp4.py). A kernel that is
    `named` in the place of the engine's choice takes its own.
    """
    if weights != "mxfp4" or sm is None:
        return None
    if named == TRTLLM_8:
        return "float8"
    if named in (MARLIN, TRITON_KERNELS):
        return "bfloat16"
    if sm < _ROUNDING:
        return "bfloat16" if engine == "vllm" else None
    return "float8" if engine == "trtllm" or (engine == "sglang" and sm // 10 == 10) else None


def asked_kernel(asked: MoeQuestion, release: Release, dtype: Dtype) -> str:
    """Return the kernel whose blocks are read and that runs.

    A kernel's name, a block that is set, and the backends of the paper's tables stand for Triton.
    """
    public = BY_PUBLIC_NAME.get(asked.kernel or "")
    if public is not None and public in BESIDE_TRITON:
        return public
    if public is not None and public != TRITON and asked.sm is not None:
        raise unread(*release, dtype, asked.sm, public)
    named = asked.kernel or asked.block_size_m or asked.backend not in BY_NAME
    kernel = TRITON
    if asked.sm is not None and not (named and dtype not in NEVER_TRITON):
        kernel = moe_kernel(*release, dtype, asked.sm, spread=asked.ep > 1)
    if (asked.dtype, asked.weights) in _WIDE and kernel != MARLIN:
        raise EvidenceError(
            f"{release.package} {release.version} runs {kernel} for experts in {asked.weights} "
            "there, which rounds what enters them",
            remedy="Ask without --activations",
        )
    if asked.sm is not None and kernel != TRITON and kernel not in BESIDE_TRITON:
        raise unread(*release, dtype, asked.sm, kernel)
    return kernel


def reads_moe(
    release: BackendRelease, formats: Product, sm: int | None, *, spread: bool = False
) -> bool:
    """Return whether the kernel that a release runs for experts has blocks that are read.

    Parameters
    ----------
    formats
        Of the experts' weights and of what enters their products.
    sm
        The device's compute capability, 90 for 9.0, None without one.
    spread
        Whether whole experts are spread over ranks.
    """
    dtype = MOE_FORMATS.get((formats.activations, formats.weights))
    if dtype is None or sm is None or not release.version:
        return False
    try:
        known = moe_release(release.name, release.version, None)
        return moe_kernel(*known, dtype, sm, spread=spread) in (TRITON, *BESIDE_TRITON)
    except EvidenceError:
        return False


def library_of(
    release: BackendRelease,
    formats: Product,
    sm: int | None,
    of: Checkpoint = NO_FILE,
) -> str | None:
    """Return what a release runs experts by where T(N) is a library's or of a kernel's own curves.

    None where blocks make T(N), or it is not known. Marlin and OpenAI's Triton kernels, which run
    gpt-oss's experts, have blocks that are read all the same.

    Parameters
    ----------
    formats, sm
        As of `reads_moe`.
    of
        What else decides; whether rows are wide is said by the formats.
    """
    stored, entering = formats
    dtype = moe_format(entering, stored)
    if sm is None or dtype not in _OF_LIBRARIES:
        return None
    try:
        known = moe_release(release.name, release.version, None)
        named = public_kernel(*known, dtype, sm, of=_of(formats, of))
        if (named, entering) == (PUBLIC_NAMES["vllm", "mxfp4", TRTLLM], "float8"):
            named = PUBLIC_NAMES["vllm", "mxfp4", TRTLLM_8]
        alone = moe_libraries(*known, dtype, sm) if stored in _LIBRARIES_ALONE else None
        return named or (alone if alone and re.search(OTHER_MOE, alone) else None)
    except EvidenceError:
        return None


def stands_in(release: BackendRelease, formats: Product, sm: int | None, of: Checkpoint) -> bool:
    """Return whether Triton's kernel stands for another, or for one that is not known.

    So it does for experts in 16 bits, of which an engine runs a library's where it takes them.
    """
    if sm is None or moe_format(formats.activations, formats.weights) != "bf16":
        return False
    try:
        known = moe_release(release.name, release.version or "0", None)
        runs = kernel_for(*known, "bf16", sm, of=of)
    except EvidenceError:
        return False
    return runs is None or runs.name != TRITON


def by_file(
    release: BackendRelease, formats: Product, sm: int | None, of: Checkpoint
) -> str | None:
    """Return the kernel beside Triton's that a release runs by what a model's file says.

    None where it does not decide, or not alone. Parameters are those of `library_of`.
    """
    runs = None if sm is None else _runs(release, formats, sm, of)
    return runs.name if runs and runs.where and runs.name != TRITON else None


def _runs(release: BackendRelease, formats: Product, sm: int, of: Checkpoint) -> Kernel | None:
    """Return the kernel that a release runs for a model's experts, None where it is not known."""
    dtype = moe_format(formats.activations, formats.weights)
    if dtype is None or not release.version:
        return None
    try:
        known = moe_release(release.name, release.version, None)
        return kernel_for(*known, dtype, sm, of=_of(formats, of))
    except EvidenceError:
        return None


def _of(formats: Product, of: Checkpoint) -> Checkpoint:
    return of._replace(wide=formats.activations in PLAIN)


def named_moe(
    release: BackendRelease, formats: Product, sm: int | None, word: str, of: Checkpoint
) -> str | None:
    """Return the kernel that a word of an engine's option names for experts.

    None where it is the one that the release would take by itself, or where nothing says what that
    would be: without a device or release, and in a format without kernels.

    Parameters
    ----------
    formats, sm, of
        As of `library_of`.
    word
        As of `named_kernel`.

    Raises
    ------
    EvidenceError
        As `named_kernel`, or what the release runs for the format is not read.
    """
    dtype = moe_format(formats.activations, formats.weights)
    optional = release.name in WORDS
    if sm is None or dtype is None or (optional and not release.version):
        return None
    known = Release(release.name, release.version or "")
    if optional:
        known = moe_release(release.name, release.version, None)
    of = _of(formats, of)
    kernel = named_kernel(*known, word, dtype, sm, of=of)
    own = kernel_for(*known, dtype, sm, of=of)
    return None if own is not None and own.name == kernel else kernel
