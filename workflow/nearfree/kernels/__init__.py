"""What is run: one adapter a module and backend, all with the same interface."""

from importlib import import_module
from typing import Literal, Protocol

from nearfree.errors import EvidenceError
from nearfree.settings import Setting

_ADAPTERS = {("dense_ffn", "torch"): "nearfree.kernels.torch_dense:TorchDenseFfn"}


class Kernel(Protocol):
    """One setting with everything allocated, ready to run a forward over N positions."""

    cache: Literal["cold", "warm"]
    """Whether a forward finds its weights in memory or still in the last-level cache."""

    def forward(self, n: int) -> None:
        """Run one forward over N positions a request."""

    def check(self) -> None:
        """Raise EvidenceError unless a forward's output is finite."""


def make_kernel(
    setting: Setting, positions: tuple[int, ...], *, copies: int, cache_bytes: int
) -> Kernel:
    """Return a setting's kernel, allocated for all its N.

    Parameters
    ----------
    copies
        How many copies of the weights take turns.
    cache_bytes
        The last-level cache, which decides whether those copies are read cold.

    Raises
    ------
    EvidenceError
        No adapter runs this module on this backend.
    """
    where = _ADAPTERS.get((setting.module, setting.backend))
    if where is None:
        raise EvidenceError(
            f"no adapter runs {setting.module} on {setting.backend}",
            remedy=f"Choose from {', '.join('/'.join(key) for key in _ADAPTERS)}",
        )
    module, _, name = where.partition(":")
    kernel: Kernel = getattr(import_module(module), name)(
        setting, positions, copies=copies, cache_bytes=cache_bytes
    )
    return kernel
