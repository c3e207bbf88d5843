"""Kernels of experts that an engine's own option names in the place of what it takes by itself.

The words are those of vLLM's `--moe-backend` (map_fp8_backend and its like in fused_moe/oracle:
fp8.py:193-206, unquantized.py:132-142, nvfp4.py:132-144 and mxfp4.py:170-187 of 0.20.2, fp8.py:
271-286, unquantized.py:180-191, nvfp4.py:163-179, mxfp4.py:352-396 and int_wna16.py:238-250 of
0.33.0) and of SGLang's `--moe-runner-backend` (sglang/srt/server_args.py:177-185 of 0.5.9 and
232-244 of 0.5.14, arg_groups/choices.py:137-154 of 0.5.23). A release of vLLM that lacks a word
may have an environment variable for it: VLLM_MXFP4_USE_MARLIN=1 is marlin,
VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1 flashinfer_trtllm_afp8, and VLLM_USE_FLASHINFER_MOE_INT4=1
flashinfer_trtllm of int4, beside which 0.33.0 reads the word, too.
"""

from collections.abc import Mapping

from packaging.version import Version

from nearfree.backends.kernels import NO_FILE, Checkpoint
from nearfree.backends.moe_kernels import (
    CUTLASS,
    LAST,
    MARLIN,
    TRITON,
    TRITON_KERNELS,
    TRTLLM,
    TRTLLM_8,
)
from nearfree.errors import EvidenceError

_FIRST = {"vllm": "0.19.0", "sglang": "0.5.9"}
"""The first release read that has the option."""
_LATER = {("sglang", "marlin"): "0.5.14"}
"""The first that has a word, where it came later."""
_OPTIONS = {"vllm": "--moe-backend", "sglang": "--moe-runner-backend"}
_EIGHT_BITS = ("fp8", "fp8_block")
_FEW_BITS = ("nvfp4", "mxfp4", "int4", "int8_w8a16")


def _each(kernel: str, *dtypes: str) -> dict[str, str]:
    return dict.fromkeys(dtypes, kernel)


WORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "marlin": _each(MARLIN, *_EIGHT_BITS, *_FEW_BITS),
        "triton": {**_each(TRITON, "bf16", *_EIGHT_BITS), "mxfp4": TRITON_KERNELS},
        "flashinfer_trtllm": _each(TRTLLM, "bf16", *_EIGHT_BITS, "nvfp4", "mxfp4", "int4"),
        "flashinfer_trtllm_afp8": _each(TRTLLM_8, "mxfp4"),
        "flashinfer_cutlass": _each(CUTLASS, "bf16", *_EIGHT_BITS, "nvfp4"),
    },
    "sglang": {
        "marlin": _each(MARLIN, *_FEW_BITS),
        "triton": _each(TRITON, "bf16", *_EIGHT_BITS),
        "triton_kernel": _each(TRITON_KERNELS, "mxfp4"),
        "flashinfer_trtllm": _each(TRTLLM, "bf16", *_EIGHT_BITS, "nvfp4", "int4"),
        "flashinfer_mxfp4": _each(TRTLLM, "mxfp4"),
        "flashinfer_cutlass": _each(CUTLASS, "bf16", "fp8", "nvfp4"),
    },
}
"""By package and word, the kernel of each format as a MoE query names it."""
_CAPABLE = {
    MARLIN: (80, LAST),
    TRITON: (75, LAST),
    TRITON_KERNELS: (90, 90),
    TRTLLM: (100, 109),
    TRTLLM_8: (100, 109),
    CUTLASS: (90, 129),
}
"""The compute capabilities, 90 for 9.0, where a kernel runs and is read, both ends included."""
_CAPABLE_OF = {
    (TRITON, "fp8"): (89, LAST),
    (TRITON, "fp8_block"): (89, LAST),
    (CUTLASS, "fp8_block"): (90, 90),
    (CUTLASS, "nvfp4"): (100, 129),
}
"""The same for formats that a kernel takes on fewer."""
_STORED = {"vllm": (TRTLLM, CUTLASS), "sglang": (CUTLASS,)}
"""Kernels that take float8 with one scale where scales of activations are stored, too."""
_NEVER = {("vllm", "0.24.0", TRTLLM, "int4")}
"""What a release never runs: its TrtLlmMxint4Experts takes SWIGLUOAI alone, which no such model
has (fused_moe/experts/trtllm_mxint4_moe.py:72-75), and the option is not read for int4."""


def named_kernel(
    package: str, version: str, word: str, dtype: str, sm: int, *, of: Checkpoint = NO_FILE
) -> str:
    """Return the kernel that a word names to a release for experts of a format.

    Parameters
    ----------
    package, version, dtype, sm
        As of `moe_kernel`.
    word
        What is given to the engine's option, such as marlin.
    of
        What the model's file says.

    Raises
    ------
    EvidenceError
        The release has no such option or word, what it names is not read for the format there, or
        the engine does not take it for such a file.
    """
    words = WORDS.get(package, {})
    if word not in words:
        raise EvidenceError(
            f"{word!r:.60} names no kernel of experts of {package} that is read",
            remedy=f"Name {', '.join(words)}" if words else "Leave --moe-backend out",
        )
    first = _LATER.get((package, word), _FIRST[package])
    if Version(version) < Version(first):
        raise EvidenceError(
            f"{package} {version} has no {_OPTIONS[package]} {word} that is read",
            remedy=f"Name a release from {first} on, or leave --moe-backend out",
        )
    kernel = words[word].get(dtype)
    if not _runs(kernel, dtype, sm):
        others = [each for each, kernels in words.items() if _runs(kernels.get(dtype), dtype, sm)]
        named = f"Name {' or '.join(others)}, or leave" if others else "Leave"
        raise EvidenceError(
            f"{word} of {package} {version} is not read for experts in {dtype} on compute "
            f"capability {sm}",
            remedy=f"{named} --moe-backend out",
        )
    takes = _asks(package, version, str(kernel), dtype, of)
    if takes:
        raise EvidenceError(
            f"{word} of {package} {version} takes {takes}", remedy="Leave --moe-backend out"
        )
    return str(kernel)


def _asks(package: str, version: str, kernel: str, dtype: str, of: Checkpoint) -> str | None:
    """Return what a kernel asks of experts that these do not have, None where it takes them.

    Source: `_supports_quant_scheme` of vLLM in fused_moe/experts: trtllm_fp8_moe.py:378-389 and
    flashinfer_cutlass_moe.py:145-181 of 0.33.0, and its like in nvfp4; SGLang's
    sglang/srt/arg_groups/moe_hook.py:80-93 and model_overrides/qwen3_moe.py:60-71 of 0.5.23.
    """
    if (package, version, kernel, dtype) in _NEVER:
        return "no experts in int4"
    if dtype == "nvfp4" and of.wide and kernel != MARLIN:
        return "experts in nvfp4 with rows in nvfp4 alone, and these keep 16 bits"
    stores = of.static and not (package == "sglang" and of.compressed)
    whole = dtype == "fp8" and kernel in _STORED[package]
    if whole and not stores:
        return "experts in float8 whose file stores scales of activations, which this does not say"
    return None


def _runs(kernel: str | None, dtype: str, sm: int) -> bool:
    if kernel is None:
        return False
    first, last = _CAPABLE_OF.get((kernel, dtype), _CAPABLE[kernel])
    return first <= sm <= last
