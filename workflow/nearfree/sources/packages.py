"""The packages whose rules are read: one module each, all with the same four names."""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from nearfree.errors import SourceError
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.language.reading import Mechanism, Reading
from nearfree.sources.language.rule import Rule

MODULES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "flash-attn": "flash_attn",
    "xformers": "flash_attn_3",
    "flash-attn-4": "flash_attn_4",
    "flashinfer-python": "flashinfer",
}
"""PyPI's name of each package, and the module of `backends` that reads it; the sources of
FlashAttention 3 come with xformers."""
FORMS = {"vllm": 2, "sglang": 2}
"""The form of what is read of a package, where it is no longer the first: another form is another
plan. The second has block sizes N and K and the group size, beside BLOCK_SIZE_M."""
ALIASES = {"flashinfer": "flashinfer-python", "flash-attn-3": "xformers"}


class PackageReader(Protocol):
    """What a module offers: which files it needs, and how it reads rules and evidence from them."""

    WANTED: str

    def readings(self, files: Mapping[str, str]) -> list[Reading]:
        """Return how to read each rule of a release."""

    def mechanisms(self, files: Mapping[str, str]) -> list[Mechanism]:
        """Return the lines that link the rules to the kernels."""

    def tile(self, rules: Mapping[str, Rule], asked: AttentionQuery, positions: int) -> Tile:
        """Return how an attention backend tiles; MoE packages have none."""

    def notes(self, asked: AttentionQuery) -> tuple[str, ...]:
        """Return what an answer takes for granted; most packages have none."""


def reader(package: str) -> PackageReader:
    """Return the reader of a package."""
    return cast("PackageReader", import_module(f"nearfree.sources.backends.{MODULES[package]}"))


def is_moe(package: str) -> bool:
    """Return whether a package is asked for MoE blocks; the others are asked for attention."""
    return hasattr(reader(package), "TUNED")


def parse_release(text: str) -> tuple[str, str]:
    """Return package and version of a text like `vllm==0.20.2`.

    Raises
    ------
    SourceError
        It has not that form, or the package is none of those that are read.
    """
    found = re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.+!-]{1,64})", text)
    if found is None:
        raise SourceError(
            f"{text!r} names no release", remedy="Write package==version, such as vllm==0.20.2"
        )
    from packaging.version import InvalidVersion, Version

    try:
        return package_name(found[1]), str(Version(found[2]))
    except InvalidVersion as error:
        raise SourceError(
            f"{found[2]!r} is no version of {found[1]}", remedy="Give one like 1.2.3"
        ) from error


def package_name(text: str) -> str:
    """Return a package's name as the index spells it; SourceError if it is not read here."""
    plain = re.sub(r"[-_.]+", "-", text).lower()
    name = ALIASES.get(plain, plain)
    if name not in MODULES:
        raise SourceError(
            f"rules of {text!r} are not read", remedy=f"Choose from {', '.join(MODULES)}"
        )
    return name
