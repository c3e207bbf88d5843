"""What every engine's forward offers to a study, beside what other kernels do."""

from abc import ABC, abstractmethod
from typing import Any, Literal

from nearfree.core.work import ExecutedWork
from nearfree.log.events import EngineLoaded


class EngineKernel(ABC):
    """A real engine's forward over N positions of b requests with L cached positions each."""

    cache: Literal["cold", "warm"]

    @abstractmethod
    def forward(self, n: int) -> Any:
        """Run one forward over N positions of each request."""

    @abstractmethod
    def finite(self, n: int) -> bool:
        """Run one, and return whether its logits are all finite."""

    @abstractmethod
    def work(self, n: int) -> ExecutedWork:
        """Return what that forward executes."""

    @abstractmethod
    def operations(self) -> tuple[str, ...]:
        """Return what a forward runs, each once, where no profiler names its kernels."""

    @abstractmethod
    def loaded(self) -> EngineLoaded:
        """Return what is on record of what ran."""
