"""The backend that a user's `package==version` names, in this project's name."""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from msgspec import Struct

from nearfree.backends.records import BY_USERS_NAME, backends_of
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.mla import MLA
from nearfree.core.setting import Module
from nearfree.errors import ConfigError


class BackendRelease(Struct, frozen=True):
    """A backend, in this project's name, and its release; None if the user gave none."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


def attention_backend(text: str) -> BackendRelease:
    """Return a backend that runs attention, latent or not; ConfigError for one that does not."""
    return _running_backend(text, (ATTENTION.name, MLA.name), ATTENTION.title)


def moe_backend(text: str) -> BackendRelease:
    """Return a backend that runs experts; ConfigError for one that does not."""
    return _running_backend(text, ("moe_ffn",), "experts")


def dense_backend(text: str) -> BackendRelease:
    """Return a backend that runs dense products; ConfigError for one that does not."""
    return _running_backend(text, ("gemm",), "dense products")


def _running_backend(text: str, modules: Sequence[Module], title: str) -> BackendRelease:
    runnable = {name: record for module in modules for name, record in backends_of(module).items()}
    names = sorted(name for record in runnable.values() for name in record.names)
    release = backend(text, among=names)
    if release.name not in runnable:
        raise ConfigError(
            f"{release.name} runs no {title}",
            remedy=f"Name the kernels that the engine logs at start-up: {', '.join(names)}",
        )
    return release


def backend(text: str, *, among: Collection[str] = BY_USERS_NAME) -> BackendRelease:
    """Return the backend of a text like `flash-attn==2.8.3`, or `flash-attn` for any release.

    Parameters
    ----------
    among
        Names that the error for an unknown one chooses from.

    Raises
    ------
    ConfigError
        The text has another form, or the package is not known; the error gives the nearest names.
    """
    match = re.fullmatch(r"([A-Za-z0-9_.-]{1,64})(?:==([0-9][A-Za-z0-9_.+!-]{0,63}))?", text)
    if match is None:
        raise ConfigError(
            f"{text!r:.120} names no backend", remedy="Write package==version: flash-attn==2.8.3"
        )
    normalized = re.sub(r"[-_.]+", "-", match[1]).lower()
    if normalized not in BY_USERS_NAME:
        nearest = get_close_matches(normalized, among, n=3)
        remedy = f"Nearest are {', '.join(nearest)}" if nearest else f"Known are {', '.join(among)}"
        raise ConfigError(f"the backend {match[1]!r} is not known", remedy=remedy)
    return BackendRelease(BY_USERS_NAME[normalized].name, match[2])


def is_since(version: str | None, first: str) -> bool:
    """Return whether a release is `first` or later; None or a non-number counts as the newest."""
    from packaging.version import InvalidVersion, Version

    try:
        return version is None or Version(version) >= Version(first)
    except InvalidVersion:
        return True
