"""What a GPU says of itself while it is measured, by NVML; nothing where NVML is not there."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import torch

from nearfree.errors import HardwareError
from nearfree.log.events import DeviceState

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
