"""The kernel that a release runs for an MoE layer, from the facts of `moe_kernels`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version

from nearfree.backends.moe_kernels import (
    CUTLASS,
    EIGHT_BITS,
    FALLBACKS,
    MARLIN,
    MAX_SM,
    TRITON,
    TRITON_KERNELS,
    TRTLLM,
    Kernel,
    Selection,
    selection_of,
)
from nearfree.backends.sglang_moe_kernels import SGLANG
from nearfree.backends.vllm_moe_kernels import VLLM
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.errors import EvidenceError

SELECTIONS = (*VLLM, *SGLANG)
_TITLES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8",
    "fp8_block": "float8_block",
    "int8": "int8",
    "int8_w8a16": "int8 weights",
    "int4": "int4 weights",
    "mxfp4": "mxfp4 weights",
    "nvfp4": "nvfp4",
}
_SIXTEEN_BITS = ("bf16", "fp16")
"""Formats of 16 bits, for which a query without a kernel's name means Triton."""


def moe_kernel(package: str, version: str, dtype: str, sm: int, *, spread: bool = False) -> str:
    """Return the kernel that a release runs for an MoE layer; Triton for 16-bit formats.

    Parameters
    ----------
    dtype
        The formats as an MoE query names them.
    sm
        The device's compute capability, 90 for 9.0.
    spread
        Whether whole experts are spread over ranks (expert parallelism).

    Raises
    ------
    EvidenceError
        The rules are not read, or the query does not determine which of several kernels runs.
    """
    if dtype in _SIXTEEN_BITS:
        return TRITON
    candidates = moe_kernels(package, version, dtype, sm, spread=spread)
    if len(candidates) == 1:
        return candidates[0].name
    cases = "; ".join(f"{kernel.name} where {kernel.condition}" for kernel in candidates)
    names = f"one of several kernels ({cases})" if candidates else "no kernel that is read"
    raise unread_kernel_error(package, version, dtype, sm, names)


def moe_libraries(package: str, version: str, dtype: str, sm: int) -> str | None:
    """Return the libraries one of which a release runs for an MoE layer, joined by " or ".

    None if none is known, or if a kernel whose tiles are read may run. Parameters and errors are
    those of `moe_kernel`.
    """
    names = [kernel.name for kernel in moe_kernels(package, version, dtype, sm, spread=False)]
    tiled = {TRITON, MARLIN, TRITON_KERNELS}
    return " or ".join(dict.fromkeys(names)) if names and tiled.isdisjoint(names) else None


def moe_kernels(package: str, version: str, dtype: str, sm: int, *, spread: bool) -> list[Kernel]:
    """Return all kernels that a release may run; parameters and errors are as of `moe_kernel`."""
    selection = _selection(package, version, dtype)
    kernels = (selection.spread if spread else ()) or selection.kernels
    return [kernel for kernel in kernels if kernel.min_sm <= sm <= kernel.max_sm]


def model_kernels(package: str, version: str, dtype: str, sm: int) -> list[Kernel]:
    """Return the kernels for single models and files, which a release tries before `moe_kernels`.

    Parameters and errors are those of `moe_kernel`.
    """
    kernels = _selection(package, version, dtype).for_models
    return [kernel for kernel in kernels if kernel.min_sm <= sm <= kernel.max_sm]


class Checkpoint(NamedTuple):
    """What selects a kernel besides formats and device: the model's file and its deployment.

    `model_type` is the config's model type. `static` says whether scales of activations are
    stored, `compressed` whether the file is one of compressed-tensors, and `group` how many inputs
    of an expert share a scale; None if unknown. `wide` says whether rows enter experts in 16 bits.
    `parallel` is the parallelism over GPUs. `named` is the kernel that an option of the engine
    selects in place of the engine's own choice, None without one.
    """

    model_type: str = ""
    static: bool | None = None
    compressed: bool | None = None
    group: int | None = None
    wide: bool = False
    parallel: Parallel = ONE_GPU
    named: str | None = None


NO_FILE = Checkpoint()


def chosen_kernel(kernels: Sequence[Kernel], holds: Mapping[str, bool | None]) -> Kernel | None:
    """Return the first kernel whose condition holds, in the order in which a release tries them.

    It is None if no condition holds, or if an earlier kernel's condition is unknown, for which
    `holds` has None or nothing.
    """
    for kernel in kernels:
        condition_holds = kernel.condition in FALLBACKS or holds.get(kernel.condition)
        if condition_holds is not False:
            return kernel if condition_holds else None
    return None


_SWIGLU = ("bf16", *EIGHT_BITS, "nvfp4")
_ACTIVATIONS: Mapping[tuple[str, str, str], str | None] = {
    **{("gemma4_text", TRTLLM, dtype): None for dtype in ("bf16", *EIGHT_BITS)},
    ("gemma4_text", TRTLLM, "nvfp4"): "0.24.0",
    **{("gemma4_text", CUTLASS, dtype): "0.24.0" for dtype in _SWIGLU},
    ("gemma4_text", "DeepGEMM", "fp8_block"): None,
    **{("gpt_oss", TRTLLM, dtype): None for dtype in _SWIGLU},
    ("nemotron_h", TRTLLM, "bf16"): "0.24.0",
}
"""By model type, kernel and format, the first release of vLLM that was read and whose kernel takes
the model's activation; None if none does. Otherwise vLLM goes on to the next kernel, and raises if
its option names this one (`_return_or_raise` in fused_moe/oracle). Source: `_supports_activation`
in fused_moe/experts: trtllm_bf16_moe.py:69-70
of 0.22.0 and 72-74 of 0.24.0, trtllm_fp8_moe.py:180-187 and deep_gemm_moe.py:191-200 of 0.33.0,
trtllm_nvfp4_moe.py:139-147 of 0.22.0 and 0.24.0, and flashinfer_cutlass_moe.py:191-196 of 0.22.0
and 188-194 of 0.24.0."""


def takes_activation(package: str, version: str, kernel: str, dtype: str, model_type: str) -> bool:
    """Return whether a release's kernel takes a model's activation, as far as is read.

    It is true as well for kernels and models of which nothing is read.
    """
    if package != "vllm" or (model_type, kernel, dtype) not in _ACTIVATIONS:
        return True
    first_release = _ACTIVATIONS[model_type, kernel, dtype]
    return first_release is not None and Version(version) >= Version(first_release)


def unread_kernel_error(
    package: str, version: str, dtype: str, sm: int, kernels: str
) -> EvidenceError:
    """Return the error that the blocks of the kernels that run are not read.

    It names the lines that select the kernels, and the devices whose kernel's blocks are read.
    """
    selection = _selection(package, version, dtype)
    place = selection.place(version)
    unconditional = {
        name: [
            _span(kernel)
            for kernel in selection.kernels
            if kernel.name == name and not kernel.condition
        ]
        for name in (TRITON, MARLIN)
    }
    answerable = " and ".join(
        f"{name}, whose blocks are, runs on {', '.join(spans)}"
        for name, spans in unconditional.items()
        if spans
    )
    return EvidenceError(
        f"{package} {version} runs {kernels} for {_TITLES[dtype]} on compute capability {sm} "
        f"({place}), whose blocks are not read; {answerable or 'ask about another format'}",
        remedy="Ask for a case whose rules are read",
    )


def _span(kernel: Kernel) -> str:
    if kernel.max_sm == MAX_SM:
        return f"{kernel.min_sm} and newer"
    return (
        f"{kernel.min_sm}"
        if kernel.min_sm == kernel.max_sm
        else f"{kernel.min_sm} to {kernel.max_sm}"
    )


def _selection(package: str, version: str, dtype: str) -> Selection:
    what = f"which MoE kernel {package} {version} runs for {_TITLES[dtype]}"
    return selection_of(SELECTIONS, package, version, dtype, what)
