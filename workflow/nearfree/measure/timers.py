"""What times a forward on a CPU: the monotonic clock."""

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
        began = self._clock.start()
        kernel.forward(n)
        return self._clock.stop(began)

    def check(self, wall_us: float) -> None:
        """Raise HardwareError if the clock is too coarse for such a time."""
        self._clock.check(wall_us)

    def state(self) -> DeviceState | None:
        """Return nothing: a CPU's signs of disturbance are in its samples."""
        return None
