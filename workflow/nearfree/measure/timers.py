"""Time a forward on a CPU with the monotonic clock."""

from typing import Literal

from nearfree.backends.adapters.kernel import Kernel
from nearfree.hardware.clocks import CpuClock, Sample
from nearfree.log.events import DeviceState


class CpuTimer:
    """The monotonic clock around one forward."""

    name: Literal["cpu", "cuda_events"] = "cpu"
    launch: Literal["eager", "graph"] = "eager"
    forwards_a_sample = 1

    def __init__(self) -> None:
        self._clock = CpuClock()

    def warm(self, kernel: Kernel, n: int) -> None:
        """Run one forward."""
        kernel.forward(n)

    def sample(self, kernel: Kernel, n: int) -> Sample:
        """Return the time of one forward."""
        start = self._clock.start()
        kernel.forward(n)
        return self._clock.stop(start)

    def check(self, wall_us: float) -> None:
        """Raise HardwareError if the clock is too coarse for a sample of `wall_us`."""
        self._clock.check(wall_us)

    def state(self) -> DeviceState | None:
        """Return None: a CPU's disturbances are marked in its samples."""
        return None
