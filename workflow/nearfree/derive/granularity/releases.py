"""The release whose rules cover a backend, and whether they cover the kernel that ran."""

import re
from typing import NamedTuple

from nearfree.backends.public_kernels import BY_PUBLIC_NAME
from nearfree.backends.record import Backend
from nearfree.backends.records import BACKENDS
from nearfree.core.modules.moe_ffn import is_triton_moe
from nearfree.core.setting import Module
from nearfree.errors import EvidenceError
from nearfree.sources.packages import parse_release


class Release(NamedTuple):
    """A package and its version."""

    package: str
    version: str


MODULAR_MOE = re.compile(r"(?i)tritonexperts")
"""Kernel names that say that Triton's kernel runs inside the class that serving uses."""
_RULED = {
    name: (rules, backend)
    for backend in BACKENDS
    if (rules := backend.rules)
    for name in (backend.name, *backend.printed)
}
"""Backends with rules, by their own names and by those of the paper's tables."""
PINNED_TRITON = {
    Release(rules.package, version): triton
    for rules, _ in _RULED.values()
    for version, triton in rules.triton.items()
}
"""The Triton that a release's requirements pin."""


def is_moe_package(backend: str) -> bool:
    """Return whether a backend has fused-MoE rules."""
    _, record = _RULED.get(_normalised(backend), (None, None))
    return record is not None and "moe_ffn" in record.modules


def moe_release(backend: str, version: str | None, kernel: str | None) -> Release:
    """Return the release whose fused-MoE rules cover a backend.

    Parameters
    ----------
    backend
        vllm or sglang, or a backend of the paper's tables.
    version
        The backend's version; not needed where the backend's name implies it.
    kernel
        The source's own name of the kernel that ran, None where it gives none.

    Raises
    ------
    EvidenceError
        There are no rules for this backend or kernel, or its version is not given.
    """
    ruled_backend(backend, "moe_ffn")
    if not (kernel in BY_PUBLIC_NAME or is_triton_moe(kernel)):
        raise _no_rules(f"no rules of the MoE kernel {kernel} of {backend} are read")
    return _release(backend, version)


def module_release(backend: str, version: str | None, module: Module) -> Release:
    """Return the release whose rules cover a backend's attention or dense products.

    An engine's own attention (vLLM's fork of FlashAttention, SGLang's) has no rules. Raises
    EvidenceError if there are no rules for this backend, or its version is not given.
    """
    ruled_backend(backend, module)
    return _release(backend, version)


def ruled_release(backend: str, version: str | None) -> Release | None:
    """Return the release whose rules cover a backend, None if it has no rules.

    Raises EvidenceError if its version is not given.
    """
    return _release(backend, version) if _normalised(backend) in _RULED else None


def ruled_backend(backend: str, module: Module) -> Backend:
    """Return the record of a backend; EvidenceError if it has no rules for the module."""
    _, record = _RULED.get(_normalised(backend), (None, None))
    if record is None or module not in record.modules:
        kernels = {"moe_ffn": "MoE", "gemm": "dense"}.get(module, module)
        raise _no_rules(f"no rules of the {kernels} kernels of {backend} are read")
    return record


def _normalised(backend: str) -> str:
    """Return a backend's name in this project's spelling: `flash-attn` becomes `flash_attn`."""
    return backend.lower().replace("-", "_")


def _release(backend: str, version: str | None) -> Release:
    name = _normalised(backend)
    rules, record = _RULED[name]
    if name in record.printed:
        return Release(rules.package, record.printed[name])
    if not version:
        raise EvidenceError(
            f"no version of {backend} is given, and rules differ between versions",
            remedy="Give `backend_version`",
        )
    return Release(*parse_release(f"{rules.package}=={version}"))


def _no_rules(what: str) -> EvidenceError:
    return EvidenceError(what, remedy="Ask for a backend and kernel whose rules are read")
