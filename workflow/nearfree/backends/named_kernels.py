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

from nearfree.backends.kernels import NO_FILE, Checkpoint, takes_activation
from nearfree.backends.moe_kernels import (
    CUTLASS,
    EIGHT_BITS,
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
_FEW_BITS = ("nvfp4", "mxfp4", "int4", "int8_w8a16")


def _each(kernel: str, *dtypes: str) -> dict[str, str]:
    return dict.fromkeys(dtypes, kernel)


WORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "marlin": _each(MARLIN, *EIGHT_BITS, *_FEW_BITS),
        "triton": {**_each(TRITON, "bf16", *EIGHT_BITS), "mxfp4": TRITON_KERNELS},
        "flashinfer_trtllm": _each(TRTLLM, "bf16", *EIGHT_BITS, "nvfp4", "mxfp4", "int4"),
        "flashinfer_trtllm_afp8": _each(TRTLLM_8, "mxfp4"),
        "flashinfer_cutlass": _each(CUTLASS, "bf16", *EIGHT_BITS, "nvfp4"),
    },
    "sglang": {
        "marlin": _each(MARLIN, *_FEW_BITS),
        "triton": _each(TRITON, "bf16", *EIGHT_BITS),
        "triton_kernel": _each(TRITON_KERNELS, "mxfp4"),
        "flashinfer_trtllm": _each(TRTLLM, "bf16", *EIGHT_BITS, "nvfp4", "int4"),
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
    if not _has(package, version, word):
        raise EvidenceError(
            f"{package} {version} has no {_OPTIONS[package]} {word} that is read",
            remedy=f"Name a release from {_first(package, word)} on, or leave --moe-backend out",
        )

    def untaken(name: str) -> str | None:
        return _untaken((package, version, words[name].get(dtype), dtype), sm, of)

    reason = untaken(word)
    if reason is None:
        return words[word][dtype]
    others = [each for each in words if _has(package, version, each) and untaken(each) is None]
    named = f"Name {' or '.join(others)}, or leave" if others else "Leave"
    raise EvidenceError(
        f"{word} of {package} {version} {reason}", remedy=f"{named} --moe-backend out"
    )


def _first(package: str, word: str) -> str:
    return _LATER.get((package, word), _FIRST[package])


def _has(package: str, version: str, word: str) -> bool:
    return Version(version) >= Version(_first(package, word))


def _untaken(runs: tuple[str, str, str | None, str], sm: int, of: Checkpoint) -> str | None:
    """Return why a kernel is not what runs such experts there, None where it is.

    Source: `_supports_quant_scheme` of vLLM in fused_moe/experts: trtllm_fp8_moe.py:378-389 and
    flashinfer_cutlass_moe.py:145-181 of 0.33.0, and its like in nvfp4; SGLang's
    sglang/srt/arg_groups/moe_hook.py:80-93 and model_overrides/qwen3_moe.py:60-71 of 0.5.23.

    Parameters
    ----------
    runs
        An engine's package and release, its kernel, and the format of the experts.
    """
    package, version, kernel, dtype = runs
    if kernel is None or not _runs(kernel, dtype, sm):
        return f"is not read for experts in {dtype} on compute capability {sm}"
    if runs in _NEVER:
        return "takes no experts in int4"
    if dtype in (*EIGHT_BITS, "nvfp4") and of.wide and kernel != MARLIN:
        return f"takes experts in {dtype} with rows in {dtype} alone, and these keep 16 bits"
    if not takes_activation(package, version, kernel, dtype, of.model_type):
        return f"takes no experts in {dtype} with the activation of {of.model_type}"
    stores = of.static and not (package == "sglang" and of.compressed)
    if dtype == "fp8" and kernel in _STORED[package] and not stores:
        return (
            "takes experts in float8 whose file stores scales of activations, which this does not "
            "say"
        )
    return None


def _runs(kernel: str, dtype: str, sm: int) -> bool:
    first, last = _CAPABLE_OF.get((kernel, dtype), _CAPABLE[kernel])
    return first <= sm <= last
