"""MoE kernels that an engine's own option selects in place of the engine's default.

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
    MARLIN,
    MAX_SM,
    TRITON,
    TRITON_KERNELS,
    TRTLLM,
    TRTLLM_8,
)
from nearfree.errors import EvidenceError

_OPTION_SINCE = {"vllm": "0.19.0", "sglang": "0.5.9"}
"""The first release that was read and has the option, by package."""
_WORD_SINCE = {("sglang", "marlin"): "0.5.14"}
"""The first such release that has a word, for words that came later than the option."""
_OPTIONS = {"vllm": "--moe-backend", "sglang": "--moe-runner-backend"}
_FEW_BITS = ("nvfp4", "mxfp4", "int4", "int8_w8a16")


def _by_format(kernel: str, *dtypes: str) -> dict[str, str]:
    return dict.fromkeys(dtypes, kernel)


WORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "marlin": _by_format(MARLIN, *EIGHT_BITS, *_FEW_BITS),
        "triton": {**_by_format(TRITON, "bf16", *EIGHT_BITS), "mxfp4": TRITON_KERNELS},
        "flashinfer_trtllm": _by_format(TRTLLM, "bf16", *EIGHT_BITS, "nvfp4", "mxfp4", "int4"),
        "flashinfer_trtllm_afp8": _by_format(TRTLLM_8, "mxfp4"),
        "flashinfer_cutlass": _by_format(CUTLASS, "bf16", *EIGHT_BITS, "nvfp4"),
    },
    "sglang": {
        "marlin": _by_format(MARLIN, *_FEW_BITS),
        "triton": _by_format(TRITON, "bf16", *EIGHT_BITS),
        "triton_kernel": _by_format(TRITON_KERNELS, "mxfp4"),
        "flashinfer_trtllm": _by_format(TRTLLM, "bf16", *EIGHT_BITS, "nvfp4", "int4"),
        "flashinfer_mxfp4": _by_format(TRTLLM, "mxfp4"),
        "flashinfer_cutlass": _by_format(CUTLASS, "bf16", "fp8", "nvfp4"),
    },
}
"""By package and word, the kernel of each format as a MoE query names it."""
_CAPABILITIES = {
    MARLIN: (80, MAX_SM),
    TRITON: (75, MAX_SM),
    TRITON_KERNELS: (90, 90),
    TRTLLM: (100, 109),
    TRTLLM_8: (100, 109),
    CUTLASS: (90, 129),
}
"""Compute capabilities, 90 for 9.0, on which a kernel runs and its rules are read, inclusive."""
_CAPABILITIES_BY_FORMAT = {
    (TRITON, "fp8"): (89, MAX_SM),
    (TRITON, "fp8_block"): (89, MAX_SM),
    (CUTLASS, "fp8_block"): (90, 90),
    (CUTLASS, "nvfp4"): (100, 129),
}
"""The same for formats that a kernel takes on fewer compute capabilities."""
_STATIC_SCALES_ONLY = {"vllm": (TRTLLM, CUTLASS), "sglang": (CUTLASS,)}
"""Kernels that take float8 with per-tensor scales only if scales of activations are stored."""
_NEVER = {("vllm", "0.24.0", TRTLLM, "int4")}
"""Kernels that a release never runs for a format: its TrtLlmMxint4Experts takes SWIGLUOAI alone,
which no such model has (fused_moe/experts/trtllm_mxint4_moe.py:72-75), and the option is not read
for int4."""


def named_kernel(
    package: str, version: str, word: str, dtype: str, sm: int, *, checkpoint: Checkpoint = NO_FILE
) -> str:
    """Return the kernel that a word of the engine's option selects for experts of a format.

    Parameters
    ----------
    package, version, dtype, sm
        As of `moe_kernel`.
    word
        The value of the engine's option, such as marlin.

    Raises
    ------
    EvidenceError
        The release has no such option or word, the kernel's rules are not read for the format on
        this device, or the engine does not take the kernel for such a file.
    """
    words = WORDS.get(package, {})
    if word not in words:
        raise EvidenceError(
            f"{word!r:.60} names no MoE kernel of {package} that is read",
            remedy=f"Name {', '.join(words)}" if words else "Leave --moe-backend out",
        )
    if not _has(package, version, word):
        raise EvidenceError(
            f"{package} {version} has no {_OPTIONS[package]} {word} that is read",
            remedy=f"Name a release from {_first_release(package, word)} on, "
            "or leave --moe-backend out",
        )

    def refusal(name: str) -> str | None:
        return _refusal((package, version, words[name].get(dtype), dtype), sm, checkpoint)

    reason = refusal(word)
    if reason is None:
        return words[word][dtype]
    alternatives = [
        alternative
        for alternative in words
        if _has(package, version, alternative) and refusal(alternative) is None
    ]
    instruction = f"Name {' or '.join(alternatives)}, or leave" if alternatives else "Leave"
    raise EvidenceError(
        f"{word} of {package} {version} {reason}", remedy=f"{instruction} --moe-backend out"
    )


def _first_release(package: str, word: str) -> str:
    return _WORD_SINCE.get((package, word), _OPTION_SINCE[package])


def _has(package: str, version: str, word: str) -> bool:
    return Version(version) >= Version(_first_release(package, word))


def _refusal(
    query: tuple[str, str, str | None, str], sm: int, checkpoint: Checkpoint
) -> str | None:
    """Return why a release does not run a kernel for such experts; None if it does.

    Source: `_supports_quant_scheme` of vLLM in fused_moe/experts: trtllm_fp8_moe.py:378-389 and
    flashinfer_cutlass_moe.py:145-181 of 0.33.0, and its like in nvfp4; SGLang's
    sglang/srt/arg_groups/moe_hook.py:80-93 and model_overrides/qwen3_moe.py:60-71 of 0.5.23.

    Parameters
    ----------
    query
        The engine's package and release, its kernel, and the format of the experts.
    """
    package, version, kernel, dtype = query
    if kernel is None or not _runs(kernel, dtype, sm):
        return f"is not read for experts in {dtype} on compute capability {sm}"
    if query in _NEVER:
        return "takes no experts in int4"
    if dtype in (*EIGHT_BITS, "nvfp4") and checkpoint.wide and kernel != MARLIN:
        return f"takes experts in {dtype} with rows in {dtype} alone, and these keep 16 bits"
    if not takes_activation(package, version, kernel, dtype, checkpoint.model_type):
        return f"takes no experts in {dtype} with the activation of {checkpoint.model_type}"
    has_static_scales = checkpoint.static and not (package == "sglang" and checkpoint.compressed)
    if dtype == "fp8" and kernel in _STATIC_SCALES_ONLY[package] and not has_static_scales:
        return (
            "takes experts in float8 whose file stores scales of activations, which this does not "
            "say"
        )
    return None


def _runs(kernel: str, dtype: str, sm: int) -> bool:
    min_sm, max_sm = _CAPABILITIES_BY_FORMAT.get((kernel, dtype), _CAPABILITIES[kernel])
    return min_sm <= sm <= max_sm
