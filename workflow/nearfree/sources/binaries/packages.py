"""The packages whose binaries are read: BSD and Apache licences allow inspection."""

import re
from typing import NamedTuple

from nearfree.errors import SourceError
from nearfree.sources.packages import plain_version

MEMBER_LIMIT = 2**30
"""Limit of a binary, in bytes: FlashAttention's hold hundreds of kernels, up to 852 MB."""


class Binary(NamedTuple):
    """A wheel member that holds attention kernels, and the rules that choose among them."""

    path: str
    rules: str
    """The package whose rules are compared."""
    rules_version: str | None = None
    """The version of the rules; None for the binary's own version."""
    version_member: str | None = None
    """The member that may name the release that it was built from; it overrides rules_version."""


class Package(NamedTuple):
    """A package's licence and its binaries."""

    licence: str
    binaries: tuple[Binary, ...]


PACKAGES = {
    # vLLM builds FlashAttention 2 from a fork. Up to 0.14.0 the wheel names the release
    # (2.7.2.post1, with kernels of 160 elements); the kernels of 0.20.2 and 0.33.0 are 2.8.3's.
    "vllm": Package(
        "Apache-2.0",
        (
            Binary(
                "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
                rules="flash-attn",
                rules_version="2.8.3",
                version_member="vllm/vllm_flash_attn/__init__.py",
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
        It does not have that form, or the package's binaries are not read.
    """
    name, _, version = text.partition("==")
    package = re.sub(r"[-_.]+", "-", name).lower()
    if package not in PACKAGES:
        raise SourceError(
            f"binaries of {name!r} are not read: either their licence does not allow it, or they"
            " hold no kernel that rules cover",
            remedy=f"Choose from {', '.join(PACKAGES)}",
        )
    return package, plain_version(package, version)
