"""Which backend runs a module: a package as users write it, in this project's name."""

import re
from collections.abc import Collection
from difflib import get_close_matches

from msgspec import Struct

from nearfree.errors import ConfigError

NAMES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "flash-attn": "flash_attn",
    "flash-attn-3": "flash_attn_3",
    "xformers": "flash_attn_3",
    "flash-attn-4": "flash_attn_4",
    "flashinfer": "flashinfer_fa2",
    "flashinfer-python": "flashinfer_fa2",
    "flashinfer-fa2": "flashinfer_fa2",
    "flashinfer-fa3": "flashinfer_fa3",
    "torch-sdpa": "torch_sdpa",
    "torch-padded": "torch_padded",
    "torch-grouped": "torch_grouped",
}
"""Backends by the name of their package, or their own; the kernels of FlashAttention 3 come with
xformers."""


MOE = frozenset({"vllm", "sglang", "torch_padded", "torch_grouped"})
"""Backends that run experts; all others run attention."""
IN_MODELS = ("torch_sdpa", "flash_attn", "flash_attn_3", "flashinfer_fa2", "flashinfer_fa3")
"""Those that run attention inside a whole model's forward."""
PAGES = {"flash_attn": 256}
"""Positions of a page of the KV cache, where a backend's kernel depends on there being pages.

Engines keep their cache in pages, and 256 is the least that FlashAttention 2 takes. Other backends
choose the same tiles with and without pages."""


class Backend(Struct, frozen=True):
    """A backend in this project's name and its release, None where none is given."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


def attention_backend(text: str) -> Backend:
    """Return a backend that runs attention; ConfigError for one that runs experts."""
    return _of(text, "attention", set(NAMES.values()) - MOE)


def moe_backend(text: str) -> Backend:
    """Return a backend that runs experts; ConfigError for one that runs attention."""
    return _of(text, "experts", MOE)


def _of(text: str, what: str, known: Collection[str]) -> Backend:
    found = backend(text)
    if found.name not in known:
        names = sorted(name for name, meant in NAMES.items() if meant in known)
        raise ConfigError(
            f"{found.name} runs no {what}",
            remedy=f"Name the kernels that the engine logs at start-up: {', '.join(names)}",
        )
    return found


def backend(text: str) -> Backend:
    """Return the backend of a text like `flash-attn==2.8.3`, or `flash-attn` for any release.

    Raises
    ------
    ConfigError
        It has not that form, or the package is not known; the nearest names are given.
    """
    found = re.fullmatch(r"([A-Za-z0-9_.-]{1,64})(?:==([0-9][A-Za-z0-9_.+!-]{0,63}))?", text)
    if found is None:
        raise ConfigError(
            f"{text!r:.120} names no backend", remedy="Write package==version: flash-attn==2.8.3"
        )
    plain = re.sub(r"[-_.]+", "-", found[1]).lower()
    if plain not in NAMES:
        near = get_close_matches(plain, NAMES, n=3)
        known = f"Nearest are {', '.join(near)}" if near else f"Known are {', '.join(NAMES)}"
        raise ConfigError(f"the backend {found[1]!r} is not known", remedy=known)
    return Backend(NAMES[plain], found[2])
