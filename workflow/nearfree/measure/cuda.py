"""CUDA events, which time a forward on a GPU.

They stand around a forward, or around a graph of several. Without graphs a launch-bound T(1)
measures the host; a graph for each N shows the GPU alone. NVML says what the GPU's clocks did
meanwhile, where it is installed; nothing is ever set.
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

_HELD_BACK = {
    "HwSlowdown": "hardware slowdown",
    "HwThermalSlowdown": "hardware thermal slowdown",
    "HwPowerBrakeSlowdown": "power brake",
    "SwThermalSlowdown": "thermal slowdown",
    "SwPowerCap": "power cap",
}
"""Throttle reasons by NVML's name for their bit, nvmlClocksEventReason*."""
_SPOILS = frozenset(_HELD_BACK.values()) - {"power cap"}
"""A power cap belongs to the machine as it is run, so it is told but spoils no sample."""
_MW_PER_W = 1000.0


class Nvml:
    """The first visible GPU, as NVML sees it. Nothing is ever set."""

    def __init__(self) -> None:
        self._nvml: Any = None
        try:
            self._nvml = import_module("pynvml")
            self._nvml.nvmlInit()
            self._handle = self._find()
            self.state()  # a part of a GPU may have no clocks or power to tell
        except Exception:  # noqa: BLE001 (NVML's errors are its own; without it nothing is told)
            self._nvml = None

    def _find(self) -> Any:
        """Return NVML's handle of the first GPU that CUDA sees: the two do not count alike."""
        uuid = torch.cuda.get_device_properties(0).uuid
        return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())

    def _reasons(self) -> tuple[str, ...]:
        ask = getattr(
            self._nvml,
            "nvmlDeviceGetCurrentClocksEventReasons",
            getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None),
        )
        if ask is None:
            return ()
        bits = ask(self._handle)
        return tuple(name for key, name in _HELD_BACK.items() if bits & self._bit(key))

    def _bit(self, key: str) -> int:
        for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason"):
            if hasattr(self._nvml, prefix + key):
                return int(getattr(self._nvml, prefix + key))
        return 0

    def throttled(self) -> bool:
        """Whether heat or a power brake holds the clocks back right now."""
        return self._nvml is not None and bool(_SPOILS.intersection(self._query(self._reasons)))

    def state(self) -> DeviceState | None:
        """Return clocks, power, temperature and reasons for throttling."""
        return None if self._nvml is None else self._query(self._state)

    def _query(self, ask: Callable[[], T]) -> T:
        """Return what a question to NVML gives; HardwareError if the GPU does not answer now."""
        try:
            return ask()
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
"""Of CUDA events."""
_FEWEST_TICKS = 5
_WARM_UPS = 3
_FLOOR_SAMPLES = 50


class CudaTimer:
    """CUDA events, with NVML's word on whether the GPU was throttled meanwhile."""

    name: Literal["cpu", "cuda_events"] = "cuda_events"

    def __init__(self, launch: Launch, graph_forwards: int, copies: int = 1) -> None:
        """Time forwards as `launch` says, over that many copies of weights that take turns."""
        if launch == "graph" and graph_forwards % copies:
            raise ConfigError(
                f"a graph of {graph_forwards} forwards does not use {copies} copies alike",
                remedy="Make graph_forwards a multiple of weight_copies",
            )
        self.launch: Launch = launch
        self.forwards_a_sample = graph_forwards if launch == "graph" else 1
        self._warm_ups = max(_WARM_UPS, copies)  # each copy plans at its first forward of an N
        self._nvml = Nvml()
        self._pool = torch.cuda.graph_pool_handle() if self.launch == "graph" else None
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._side = torch.cuda.Stream()  # one for all: libraries keep a workspace a stream

    def _graph(self, kernel: Kernel, n: int) -> torch.cuda.CUDAGraph:
        """Return the graph of a kernel at one N, captured when it is first asked for."""
        key = (id(kernel), n)
        if key not in self._graphs:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                for _ in range(self._warm_ups):
                    kernel.forward(n)
            torch.cuda.current_stream().wait_stream(self._side)
            self._graphs[key] = self._capture(kernel, n)
        return self._graphs[key]

    def _capture(self, kernel: Kernel, n: int) -> torch.cuda.CUDAGraph:
        before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                for _ in range(self.forwards_a_sample):
                    kernel.forward(n)
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # a capture that fails leaves its own stream behind
            cause = str(error.__context__ or error).splitlines()[0]
            raise EvidenceError(
                f"the forward over N={n} cannot be captured in a CUDA graph: {cause}",
                remedy="Measure this study with `launch: eager`",
            ) from error
        return graph

    def warm(self, kernel: Kernel, n: int) -> None:
        """Run untimed what a sample runs."""
        if self.launch == "graph":
            self._graph(kernel, n).replay()
        else:
            kernel.forward(n)

    def sample(self, kernel: Kernel, n: int) -> Sample:
        """Return the mean time of a sample's forwards on the GPU, and of the host beside it."""
        graph = self._graph(kernel, n) if self.launch == "graph" else None
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        if graph is not None:
            graph.replay()  # the host gets ahead, so that no launch lies between the events
        began = time.perf_counter()
        start.record()
        if graph is None:
            kernel.forward(n)
        else:
            graph.replay()
        end.record()
        host_us = (time.perf_counter() - began) * US_PER_S
        end.synchronize()
        return Sample(
            wall_us=round(start.elapsed_time(end) * US_PER_MS / self.forwards_a_sample, 4),
            process_us=round(host_us / self.forwards_a_sample, 4),
            dirty=self._nvml.throttled(),
        )

    def check(self, wall_us: float) -> None:
        """Raise HardwareError if CUDA events are too coarse for a sample of such forwards."""
        if wall_us * self.forwards_a_sample < _FEWEST_TICKS * _RESOLUTION_US:
            raise HardwareError(
                f"a sample of {self.forwards_a_sample} forward(s) of {wall_us:.3f} us is under "
                f"{_FEWEST_TICKS} ticks of CUDA events ({_RESOLUTION_US} us)",
                remedy="Use `launch: graph` with more graph_forwards, or measure a larger shape",
            )

    def state(self) -> DeviceState | None:
        """Return the GPU's clocks, power, temperature and throttle reasons, if NVML tells."""
        return self._nvml.state()


class _Nothing:
    """A forward of one addition: what remains is the launch."""

    def __init__(self) -> None:
        self._value = torch.zeros(1, device="cuda")

    def forward(self, n: int) -> torch.Tensor:
        """Add n to one number."""
        return self._value.add_(n)


def launch_floor(graph_forwards: int) -> LaunchFloor:
    """Return what a launch costs by itself, eagerly and in a graph."""
    eager, graph = (_floor(CudaTimer(launch, graph_forwards)) for launch in ("eager", "graph"))
    return LaunchFloor(
        eager_us=median(eager),
        graph_us=median(graph),
        samples=tuple(eager),
    )


def _floor(timer: CudaTimer) -> list[float]:
    nothing: Any = _Nothing()  # a kernel without any work to describe
    timer.warm(nothing, 1)
    return [timer.sample(nothing, 1).wall_us for _ in range(_FLOOR_SAMPLES)]
