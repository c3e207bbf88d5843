"""What an engine's forward has beside any kernel: numbers that are finite, formats, a record."""

from abc import ABC, abstractmethod
from typing import Any, Literal

from nearfree.core.work import ExecutedWork
from nearfree.log.events import EngineLoaded


class EngineKernel(ABC):
    """A decode or verify forward of a real engine over b requests with L cached positions each."""

    cache: Literal["cold", "warm"]
    """Whether a forward finds its weights in memory or still in the last-level cache."""

    @abstractmethod
    def forward(self, n: int) -> Any:
        """Run one forward over N positions of each request."""

    @abstractmethod
    def finite(self, n: int) -> bool:
        """Run one, and return whether its logits are all finite."""

    @abstractmethod
    def work(self, n: int) -> ExecutedWork:
        """Return the work of the matrices and of attention, as the model's shapes say it."""

    @abstractmethod
    def operations(self) -> tuple[str, ...]:
        """Return what a forward runs, each once, where no profiler names its kernels."""

    @abstractmethod
    def loaded(self) -> EngineLoaded:
        """Return what is on record of what ran."""

    def ready_shares(self) -> None:  # noqa: B027 (most engines tell none)
        """Make what `shares` runs, so that its time is that of forwards alone."""

    def shares(self, n: int) -> dict[str, float]:
        """Return the microseconds of each module in one forward over N; none if not to be had."""
        del n
        return {}
