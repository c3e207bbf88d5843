"""Time a forward on a GPU with CUDA events.

The events enclose one forward, or a CUDA graph of several. Without graphs a launch-bound T(1)
measures the host; with a graph per N the GPU alone is timed. NVML, if installed, reports the GPU's
clocks meanwhile; it never sets anything.
"""

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeVar

import torch

from nearfree.backends.adapters.kernel import Kernel
from nearfree.core.boundary import median
from nearfree.core.protocols import Launch
from nearfree.errors import ConfigError, EvidenceError, HardwareError
from nearfree.hardware.clocks import Sample
from nearfree.log.events import DeviceState, LaunchFloor
from nearfree.units import US_PER_MS, US_PER_S

T = TypeVar("T")

_THROTTLE_REASONS = {
    "HwSlowdown": "hardware slowdown",
    "HwThermalSlowdown": "hardware thermal slowdown",
    "HwPowerBrakeSlowdown": "power brake",
    "SwThermalSlowdown": "thermal slowdown",
    "SwPowerCap": "power cap",
}
"""Throttle reasons by NVML's name for their bit, nvmlClocksEventReason*."""
_DISTURBING = frozenset(_THROTTLE_REASONS.values()) - {"power cap"}
"""Reasons that make a sample dirty. A power cap is part of the machine's configuration: it is
recorded but does not count as a disturbance."""
_MW_PER_W = 1000.0


class Nvml:
    """NVML's readings of the first visible GPU; it never sets anything."""

    def __init__(self) -> None:
        self._nvml: Any = None
        try:
            self._nvml = import_module("pynvml")
            self._nvml.nvmlInit()
            self._handle = self._find()
            self.state()  # a MIG slice may report no clocks or power
        except Exception:  # noqa: BLE001 (NVML raises its own types; without it nothing is read)
            self._nvml = None

    def _find(self) -> Any:
        """Return NVML's handle of CUDA's first GPU, by UUID: the two number GPUs differently."""
        uuid = torch.cuda.get_device_properties(0).uuid
        return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())

    def _reasons(self) -> tuple[str, ...]:
        query = getattr(
            self._nvml,
            "nvmlDeviceGetCurrentClocksEventReasons",
            getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None),
        )
        if query is None:
            return ()
        bits = query(self._handle)
        return tuple(name for key, name in _THROTTLE_REASONS.items() if bits & self._bit(key))

    def _bit(self, key: str) -> int:
        for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason"):
            if hasattr(self._nvml, prefix + key):
                return int(getattr(self._nvml, prefix + key))
        return 0

    def throttled(self) -> bool:
        """Return whether heat or a power brake throttles the clocks now."""
        return self._nvml is not None and bool(_DISTURBING.intersection(self._query(self._reasons)))

    def state(self) -> DeviceState | None:
        """Return clocks, power, temperature and reasons for throttling."""
        return None if self._nvml is None else self._query(self._state)

    def _query(self, query: Callable[[], T]) -> T:
        """Return the result of a query to NVML; HardwareError if the GPU does not answer."""
        try:
            return query()
        except self._nvml.NVMLError as error:
            raise HardwareError(
                f"the GPU does not answer: {error}",
                remedy="Whole rounds are kept. Check the GPU, then run the same command again",
            ) from error

    def _state(self) -> DeviceState:
        nvml, handle = self._nvml, self._handle
        return DeviceState(
            sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            memory_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            power_w=nvml.nvmlDeviceGetPowerUsage(handle) / _MW_PER_W,
            temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            throttle=self._reasons(),
        )


_RESOLUTION_US = 0.5
"""The resolution of CUDA events."""
_MIN_TICKS = 5
_WARM_UPS = 3
_FLOOR_SAMPLES = 50


class CudaTimer:
    """Times forwards with CUDA events; NVML tells whether the GPU was throttled meanwhile."""

    name: Literal["cpu", "cuda_events"] = "cuda_events"

    def __init__(self, launch: Launch, graph_forwards: int, copies: int = 1) -> None:
        """Time forwards launched eagerly or by graph, with `copies` of the weights in rotation."""
        if launch == "graph" and graph_forwards % copies:
            raise ConfigError(
                f"a graph of {graph_forwards} forwards does not use {copies} copies alike",
                remedy="Make graph_forwards a multiple of weight_copies",
            )
        self.launch: Launch = launch
        self.forwards_a_sample = graph_forwards if launch == "graph" else 1
        # Each copy of the weights plans its kernels at its first forward over an N.
        self._warm_ups = max(_WARM_UPS, copies)
        self._nvml = Nvml()
        self._pool = torch.cuda.graph_pool_handle() if self.launch == "graph" else None
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        # One stream for all graphs: libraries keep a workspace per stream.
        self._capture_stream = torch.cuda.Stream()

    def _graph(self, kernel: Kernel, n: int) -> torch.cuda.CUDAGraph:
        """Return the graph of a kernel at one N, captured at the first call."""
        key = (id(kernel), n)
        if key not in self._graphs:
            self._capture_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._capture_stream):
                for _ in range(self._warm_ups):
                    kernel.forward(n)
            torch.cuda.current_stream().wait_stream(self._capture_stream)
            self._graphs[key] = self._capture(kernel, n)
        return self._graphs[key]

    def _capture(self, kernel: Kernel, n: int) -> torch.cuda.CUDAGraph:
        stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                for _ in range(self.forwards_a_sample):
                    kernel.forward(n)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a failed capture leaves its own stream as the current
            cause = str(error.__context__ or error).splitlines()[0]
            raise EvidenceError(
                f"the forward over N={n} cannot be captured in a CUDA graph: {cause}",
                remedy="Measure this study with `launch: eager`",
            ) from error
        return graph

    def warm(self, kernel: Kernel, n: int) -> None:
        """Run the forwards of one sample, untimed."""
        if self.launch == "graph":
            self._graph(kernel, n).replay()
        else:
            kernel.forward(n)

    def sample(self, kernel: Kernel, n: int) -> Sample:
        """Return the mean GPU time and host time of a sample's forwards."""
        graph = self._graph(kernel, n) if self.launch == "graph" else None
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        if graph is not None:
            graph.replay()  # keeps the GPU busy, so that no launch gap lies between the events
        start_s = time.perf_counter()
        start.record()
        if graph is None:
            kernel.forward(n)
        else:
            graph.replay()
        end.record()
        host_us = (time.perf_counter() - start_s) * US_PER_S
        end.synchronize()
        return Sample(
            wall_us=round(start.elapsed_time(end) * US_PER_MS / self.forwards_a_sample, 4),
            process_us=round(host_us / self.forwards_a_sample, 4),
            dirty=self._nvml.throttled(),
        )

    def check(self, wall_us: float) -> None:
        """Raise HardwareError if CUDA events are too coarse for a sample of such forwards."""
        if wall_us * self.forwards_a_sample < _MIN_TICKS * _RESOLUTION_US:
            raise HardwareError(
                f"a sample of {self.forwards_a_sample} forward(s) of {wall_us:.3f} us is under "
                f"{_MIN_TICKS} ticks of CUDA events ({_RESOLUTION_US} us)",
                remedy="Use `launch: graph` with more graph_forwards, or measure a larger shape",
            )

    def state(self) -> DeviceState | None:
        """Return the GPU's clocks, power, temperature and throttle reasons; None without NVML."""
        return self._nvml.state()


class _EmptyKernel:
    """A forward of one addition: its time is that of the launch."""

    def __init__(self) -> None:
        self._value = torch.zeros(1, device="cuda")

    def forward(self, n: int) -> torch.Tensor:
        """Add n to one number."""
        return self._value.add_(n)


def launch_floor(graph_forwards: int) -> LaunchFloor:
    """Return the latency of a launch alone, eagerly and in a graph."""
    eager, graph = (_floor(CudaTimer(launch, graph_forwards)) for launch in ("eager", "graph"))
    return LaunchFloor(eager_us=median(eager), graph_us=median(graph), samples=tuple(eager))


def _floor(timer: CudaTimer) -> list[float]:
    kernel: Any = _EmptyKernel()  # a kernel without any work to describe
    timer.warm(kernel, 1)
    return [timer.sample(kernel, 1).wall_us for _ in range(_FLOOR_SAMPLES)]
