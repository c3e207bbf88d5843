"""torch, which only measuring needs."""

from importlib.util import find_spec

from nearfree.errors import HardwareError


def need_torch() -> None:
    """Raise HardwareError where torch, which only measuring needs, is not installed."""
    if find_spec("torch") is None:
        raise HardwareError(
            "torch is not installed in this environment",
            remedy="Run `make install`, or install envs/cpu.lock",
        )
