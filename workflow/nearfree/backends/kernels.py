"""Which kernel a release runs for an MoE layer, by `moe_kernels`, and why one is not answered."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version

from nearfree.backends.moe_kernels import (
    CUTLASS,
    EIGHT_BITS,
    ELSE,
    LAST,
    MARLIN,
    TRITON,
    TRITON_KERNELS,
    TRTLLM,
    Kernel,
    Selection,
)
from nearfree.backends.sglang_moe_kernels import SGLANG
from nearfree.backends.vllm_moe_kernels import VLLM
from nearfree.core.parallel import ALONE, Parallel
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
_WIDE = ("bf16", "fp16")
"""Formats whose kernel a question names: Triton, where it says nothing else."""


def moe_kernel(package: str, version: str, dtype: str, sm: int, *, spread: bool = False) -> str:
    """Return the kernel that a release runs for an MoE layer; Triton for one of 16 bits.

    Parameters
    ----------
    package, version
        The engine's release.
    dtype
        The formats as a MoE query names them.
    sm
        The device's compute capability, 90 for 9.0.
    spread
        Whether whole experts are spread over ranks.

    Raises
    ------
    EvidenceError
        It is not read, or what is asked leaves open which of several runs.
    """
    if dtype in _WIDE:
        return TRITON
    found = moe_kernels(package, version, dtype, sm, spread=spread)
    if len(found) == 1:
        return found[0].name
    cases = "; ".join(f"{each.name} where {each.where}" for each in found)
    names = f"one of several kernels ({cases})" if found else "no kernel that is read"
    raise unread(package, version, dtype, sm, names)


def moe_libraries(package: str, version: str, dtype: str, sm: int) -> str | None:
    """Return the libraries of which a release runs one for an MoE layer, None if others may run.

    Parameters and errors are those of `moe_kernel`.
    """
    found = [each.name for each in moe_kernels(package, version, dtype, sm, spread=False)]
    tiled = {TRITON, MARLIN, TRITON_KERNELS}
    return " or ".join(dict.fromkeys(found)) if found and tiled.isdisjoint(found) else None


def moe_kernels(package: str, version: str, dtype: str, sm: int, *, spread: bool) -> list[Kernel]:
    """Return all kernels that a release may run; parameters and errors as of `moe_kernel`."""
    chosen = _selection(package, version, dtype)
    kernels = (chosen.spread if spread else ()) or chosen.kernels
    return [each for each in kernels if each.first <= sm <= each.last]


def kernels_apart(package: str, version: str, dtype: str, sm: int) -> list[Kernel]:
    """Return those of single models and files, which come before `moe_kernels`, with its errors."""
    apart = _selection(package, version, dtype).apart
    return [each for each in apart if each.first <= sm <= each.last]


class Checkpoint(NamedTuple):
    """What decides on a kernel beside formats and device: a model's file, and how it is served.

    `model_type` is the kind of model, `static` whether scales of activations are stored, and
    `compressed` whether the file is one of compressed-tensors, `group` how many inputs of an expert
    share a scale; None where that is not known. `wide` holds where rows enter experts in 16 bits.
    `parallel` is how it is spread over GPUs, and `named` the kernel that an option of the engine
    names in the place of its own choice, None where none does.
    """

    model_type: str = ""
    static: bool | None = None
    compressed: bool | None = None
    group: int | None = None
    wide: bool = False
    parallel: Parallel = ALONE
    named: str | None = None


NO_FILE = Checkpoint()


def chosen_kernel(kernels: Sequence[Kernel], holds: Mapping[str, bool | None]) -> Kernel | None:
    """Return the first kernel whose condition holds, in the order in which a release tries them.

    Parameters
    ----------
    kernels
        As `moe_kernels` returns them.
    holds
        By conditions, whether they hold, None where that is not known. What is not in it is not.

    Returns
    -------
    None where it is not known whether one holds that stands before.
    """
    for each in kernels:
        said = each.where in ELSE or holds.get(each.where)
        if said is not False:
            return each if said else None
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
"""The first release of vLLM read that takes a kind of model's activation by a kernel, None where
none does: it goes on to the next kernel, and raises where a word names this one (`_return_or_raise`
in fused_moe/oracle). Source: `_supports_activation` in fused_moe/experts: trtllm_bf16_moe.py:69-70
of 0.22.0 and 72-74 of 0.24.0, trtllm_fp8_moe.py:180-187 and deep_gemm_moe.py:191-200 of 0.33.0,
trtllm_nvfp4_moe.py:139-147 of 0.22.0 and 0.24.0, and flashinfer_cutlass_moe.py:191-196 of 0.22.0
and 188-194 of 0.24.0."""


def takes_activation(package: str, version: str, kernel: str, dtype: str, model_type: str) -> bool:
    """Return whether nothing read says that a release's kernel lacks a model's activation.

    Parameters
    ----------
    package, version, dtype
        As of `moe_kernel`.
    kernel
        By its name here.
    model_type
        The kind of model.
    """
    if package != "vllm" or (model_type, kernel, dtype) not in _ACTIVATIONS:
        return True
    since = _ACTIVATIONS[model_type, kernel, dtype]
    return since is not None and Version(version) >= Version(since)


def unread(package: str, version: str, dtype: str, sm: int, kernels: str) -> EvidenceError:
    """Return why there are no blocks of the kernels that run, with their place and what works."""
    chosen = _selection(package, version, dtype)
    place = "{}:{}-{}".format(chosen.file, *chosen.lines[version])
    alone = {
        name: [_span(each) for each in chosen.kernels if each.name == name and not each.where]
        for name in (TRITON, MARLIN)
    }
    works = " and ".join(
        f"{name}, whose blocks are, runs on {', '.join(spans)}"
        for name, spans in alone.items()
        if spans
    )
    return EvidenceError(
        f"{package} {version} runs {kernels} for {_TITLES[dtype]} on compute capability {sm} "
        f"({place}), whose blocks are not read; {works or 'ask about another format'}",
        remedy="Ask for a case whose rules are read",
    )


def _span(kernel: Kernel) -> str:
    if kernel.last == LAST:
        return f"{kernel.first} and newer"
    return f"{kernel.first}" if kernel.first == kernel.last else f"{kernel.first} to {kernel.last}"


def _selection(package: str, version: str, dtype: str) -> Selection:
    mine = [each for each in SELECTIONS if each.package == package and dtype in each.dtypes]
    for each in mine:
        if version in each.lines:
            return each
    known = ", ".join(release for each in mine for release in each.lines) or "no release"
    raise EvidenceError(
        f"which MoE kernel {package} {version} runs for {_TITLES[dtype]} is not read; "
        f"it is of {known}",
        remedy="Ask for one of those releases",
    )
