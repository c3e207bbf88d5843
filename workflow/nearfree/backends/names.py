"""Which backend runs a module: a package as users write it, in this project's name."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from msgspec import Struct

from nearfree.backends.records import BY_USERS_NAME, running
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.mla import MLA
from nearfree.core.setting import Module
from nearfree.errors import ConfigError


class BackendRelease(Struct, frozen=True):
    """A backend in this project's name and its release, None where none is given."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


def attention_backend(text: str) -> BackendRelease:
    """Return a backend that runs attention or that of a latent; ConfigError for another one."""
    return _of(text, (ATTENTION.name, MLA.name), ATTENTION.title)


def moe_backend(text: str) -> BackendRelease:
    """Return a backend that runs experts; ConfigError for one that runs attention."""
    return _of(text, ("moe_ffn",), "experts")


def dense_backend(text: str) -> BackendRelease:
    """Return a backend that runs dense products; ConfigError for one that runs none."""
    return _of(text, ("gemm",), "dense products")


def _of(text: str, modules: Sequence[Module], what: str) -> BackendRelease:
    release = backend(text)
    known = {name: each for module in modules for name, each in running(module).items()}
    if release.name not in known:
        names = sorted(name for record in known.values() for name in record.names)
        raise ConfigError(
            f"{release.name} runs no {what}",
            remedy=f"Name the kernels that the engine logs at start-up: {', '.join(names)}",
        )
    return release


def backend(text: str) -> BackendRelease:
    """Return the backend of a text like `flash-attn==2.8.3`, or `flash-attn` for any release.

    Raises
    ------
    ConfigError
        It has not that form, or the package is not known; the nearest names are given.
    """
    match = re.fullmatch(r"([A-Za-z0-9_.-]{1,64})(?:==([0-9][A-Za-z0-9_.+!-]{0,63}))?", text)
    if match is None:
        raise ConfigError(
            f"{text!r:.120} names no backend", remedy="Write package==version: flash-attn==2.8.3"
        )
    plain = re.sub(r"[-_.]+", "-", match[1]).lower()
    if plain not in BY_USERS_NAME:
        near = get_close_matches(plain, BY_USERS_NAME, n=3)
        known = (
            f"Nearest are {', '.join(near)}" if near else f"Known are {', '.join(BY_USERS_NAME)}"
        )
        raise ConfigError(f"the backend {match[1]!r} is not known", remedy=known)
    return BackendRelease(BY_USERS_NAME[plain].name, match[2])
