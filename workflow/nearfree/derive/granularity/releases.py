"""Which release's rules speak of a backend, and whether they speak of the kernel that ran."""

import re
from typing import NamedTuple

from nearfree.core.modules.moe_ffn import is_triton_moe
from nearfree.errors import EvidenceError
from nearfree.sources.packages import parse_release


class Release(NamedTuple):
    """A package and its version."""

    package: str
    version: str


MODULAR_MOE = re.compile(r"(?i)tritonexperts")
"""Names of the same kernel where it runs inside the class that serving uses."""
_PRINTED = {
    "vllm_0_9_1": Release("vllm", "0.9.1"),
    "sglang_0_5_9": Release("sglang", "0.5.9"),
    "flash_attn_2": Release("flash-attn", "2.8.3"),
    "flashinfer": Release("flashinfer-python", "0.6.13"),
}
"""Backends of the paper's tables: the release is in the name, or is the one its rules are of."""
_PACKAGES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "flash_attn": "flash-attn",
    "flash_attn_3": "xformers",
    "flash_attn_4": "flash-attn-4",
    "flashinfer_fa2": "flashinfer-python",
    "flashinfer_fa3": "flashinfer-python",
}
_MOE_PACKAGES = ("vllm", "sglang")
PINNED_TRITON = {
    Release("sglang", "0.5.9"): "3.5.1",
    Release("sglang", "0.5.10"): "3.5.1",
    Release("sglang", "0.5.14"): "3.6.0",
    Release("sglang", "0.5.23"): "3.8.0",
}
"""The Triton that a release's requirements pin; which tuned file SGLang opens depends on it.
Source: Requires-Dist in the METADATA of each wheel: torch==2.9.1 (0.5.9, 0.5.10), torch==2.11.0
(0.5.14) and torch==2.14.1 (0.5.23); of torch 2.9.1, triton==3.5.1, of torch 2.11.0, triton==3.6.0,
of torch 2.14.1, triton~=3.8.0."""


def is_moe_package(backend: str) -> bool:
    """Return whether a backend is a release whose fused-MoE rules are read."""
    return _package(backend) in _MOE_PACKAGES


def moe_release(backend: str, version: str | None, kernel: str | None) -> Release:
    """Return the release whose fused-MoE rules speak of a backend.

    Parameters
    ----------
    backend
        vllm or sglang, or a backend of the paper's tables.
    version
        The backend's version; not asked for where the backend's name holds it.
    kernel
        The source's own name for what ran, None where it says nothing.

    Raises
    ------
    EvidenceError
        No rules are read of this backend or kernel, or its version is not given.
    """
    if not is_moe_package(backend):
        raise _refused(f"no rules of the MoE kernels of {backend} are read")
    if not is_triton_moe(kernel):
        raise _refused(f"no rules of the MoE kernel {kernel} of {backend} are read")
    return _release(backend, version)


def attention_release(backend: str, version: str | None) -> Release:
    """Return the release whose tile rules speak of an attention backend.

    An engine's own attention (vLLM's fork of FlashAttention, SGLang's) has none.

    Raises
    ------
    EvidenceError
        No rules are read of this backend, or its version is not given.
    """
    if _package(backend) in (None, *_MOE_PACKAGES):
        raise _refused(f"no rules of the attention kernels of {backend} are read")
    return _release(backend, version)


def ruled_release(backend: str, version: str | None) -> Release | None:
    """Return the release whose rules speak of a backend, None where no rules of it are read.

    Raises
    ------
    EvidenceError
        Its version is not given.
    """
    return None if _package(backend) is None else _release(backend, version)


def _package(backend: str) -> str | None:
    name = _plain(backend)
    return _PRINTED[name].package if name in _PRINTED else _PACKAGES.get(name)


def _plain(backend: str) -> str:
    """Return a backend's name as this project writes it: `flash-attn` is `flash_attn`."""
    return backend.lower().replace("-", "_")


def _release(backend: str, version: str | None) -> Release:
    name = _plain(backend)
    if name in _PRINTED:
        return _PRINTED[name]
    if not version:
        raise EvidenceError(
            f"no version of {backend} is given, and rules differ between versions",
            remedy="Give `backend_version`",
        )
    return Release(*parse_release(f"{_PACKAGES[name]}=={version}"))


def _refused(what: str) -> EvidenceError:
    return EvidenceError(what, remedy="Ask for a backend and kernel whose rules are read")
