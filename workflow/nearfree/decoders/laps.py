"""Which module of a forward has just run: told lap by lap to whoever times them."""

from typing import Protocol

BETWEEN = "between"
"""What is no module: embedding, norms, rotations, writing to the cache, and sums."""
QKV, ATTENTION, OUTPUT = "qkv projection", "attention", "output projection"
DENSE, ROUTER, MOE, SHARED = "Dense FFN", "router", "MoE FFN", "shared experts"
HEAD = "LM head"
"""The modules of a forward, in the order in which they first run."""


class Laps(Protocol):
    """What is told of a forward."""

    def lap(self, role: str) -> None:
        """Take in that all since the lap before belongs to a module."""


class Untold:
    """Nobody is told."""

    def lap(self, role: str) -> None:
        """Do nothing."""


UNTOLD = Untold()
