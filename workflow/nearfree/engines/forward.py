"""The interface of an engine's forward: a kernel that checks its logits and records what ran."""

import random
from abc import ABC, abstractmethod
from typing import Any, Literal

from nearfree.core.work import ExecutedWork
from nearfree.log.events import EngineLoaded

CHUNK = 512
"""Most positions per call while a cache is filled."""
_SPECIAL_TOKENS = 3
"""Special tokens at the start of most vocabularies, which synthetic inputs avoid."""


def random_tokens(count: int, vocabulary: int) -> list[int]:
    """Return random tokens of a vocabulary of some size, the same ones each time."""
    generator = random.Random(0)  # noqa: S311 (random tokens, reproducible)
    first = min(_SPECIAL_TOKENS, vocabulary - 1)
    return [generator.randrange(first, vocabulary) for _ in range(count)]


class EngineKernel(ABC):
    """A decode or verify forward of a real engine over b requests with L cached positions each."""

    cache: Literal["cold", "warm"]
    """Whether a forward reads its weights from memory or from the last-level cache."""

    @abstractmethod
    def forward(self, n: int) -> Any:
        """Run one forward over N positions of each request."""

    @abstractmethod
    def finite(self, n: int) -> bool:
        """Run one forward over N, and return whether all its logits are finite."""

    @abstractmethod
    def work(self, n: int) -> ExecutedWork:
        """Return the work of the matrices and of attention, from the model's shapes."""

    @abstractmethod
    def operations(self) -> tuple[str, ...]:
        """Return the distinct operations of a forward, if no profiler names its kernels."""

    @abstractmethod
    def loaded(self) -> EngineLoaded:
        """Return the event that records the engine and its model."""

    def ready_shares(self) -> None:  # noqa: B027 (most engines report none)
        """Prepare `shares`, so that its own time is that of forwards alone."""

    def shares(self, n: int) -> dict[str, float]:
        """Return the microseconds of each module in one forward over N; empty if not available."""
        del n
        return {}
