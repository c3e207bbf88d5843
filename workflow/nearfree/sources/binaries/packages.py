"""The packages whose binaries are read: BSD's and Apache's licences allow to look inside."""

import re
from typing import NamedTuple

from nearfree.errors import SourceError
from nearfree.sources.packages import plain_version

MEMBER_LIMIT = 2**30
"""Bytes of a binary: FlashAttention's hold hundreds of kernels, up to 852 MB."""


class Binary(NamedTuple):
    """A member of a wheel that holds attention kernels, and the rules that say which it takes."""

    path: str
    rules: str
    """The package whose rules are compared."""
    rules_version: str | None = None
    """Their release; None for that of the binary."""
    says: str | None = None
    """The member that may say which release it was built from, which comes before."""


class Package(NamedTuple):
    """A package: its licence, and its binaries."""

    licence: str
    binaries: tuple[Binary, ...]


PACKAGES = {
    # What vLLM builds of FlashAttention 2 is a fork's. Up to 0.14.0 the wheel says of which release
    # (2.7.2.post1, with kernels of 160 elements); 0.20.2's and 0.33.0's kernels are 2.8.3's.
    "vllm": Package(
        "Apache-2.0",
        (
            Binary(
                "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
                rules="flash-attn",
                rules_version="2.8.3",
                says="vllm/vllm_flash_attn/__init__.py",
            ),
            Binary("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", rules="vllm-fa3"),
        ),
    ),
    # SGLang's copy of FlashAttention 3 has no rules of its own on record.
    "sgl-kernel": Package(
        "Apache-2.0",
        (Binary("sgl_kernel/flash_ops.abi3.so", rules="xformers", rules_version="0.0.34"),),
    ),
    "xformers": Package("BSD-3-Clause", (Binary("xformers/flash_attn_3/_C.so", rules="xformers"),)),
}


def binary_release(text: str) -> tuple[str, str]:
    """Return package and version of a text like `vllm==0.20.2`.

    Raises
    ------
    SourceError
        It has not that form, or the package's binaries are not read.
    """
    name, _, version = text.partition("==")
    package = re.sub(r"[-_.]+", "-", name).lower()
    if package not in PACKAGES:
        raise SourceError(
            f"binaries of {name!r} are not read: either their licence does not allow it, or they"
            " hold none of the kernels that rules are of",
            remedy=f"Choose from {', '.join(PACKAGES)}",
        )
    return package, plain_version(package, version)
