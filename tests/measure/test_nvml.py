"""NVML: what a GPU's word is turned into, with a stand-in that has NVML's names."""

import sys
from types import ModuleType

import pytest
from nearfree.measure.nvml import Nvml, _index


def stand_in(reasons: int) -> ModuleType:
    """Return a module with the names that are used, and some throttle reasons."""
    module = ModuleType("pynvml")
    facts = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetClockInfo": lambda _handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetPowerUsage": lambda _handle: 412_000,
        "nvmlDeviceGetTemperature": lambda _handle, _sensor: 55,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _handle: reasons,
        "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0,
        "nvmlClocksEventReasonSwPowerCap": 4, "nvmlClocksEventReasonSwThermalSlowdown": 32,
        "nvmlClocksThrottleReasonHwSlowdown": 8,
    }  # fmt: skip
    module.__dict__.update(facts)
    return module


@pytest.mark.parametrize(
    ("reasons", "names", "spoils"),
    [
        (0, (), False),
        (4, ("power cap",), False),
        (32, ("thermal slowdown",), True),
        (8 | 4, ("hardware slowdown", "power cap"), True),
    ],
)
def test_heat_spoils_a_sample_and_a_power_cap_does_not(
    monkeypatch: pytest.MonkeyPatch, *, reasons: int, names: tuple[str, ...], spoils: bool
) -> None:
    """Reasons are told by name, under NVML's newer and older names; only heat makes dirty."""
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(reasons))
    nvml = Nvml()
    assert nvml.throttled() == spoils
    state = nvml.state()
    assert state is not None
    assert (state.sm_mhz, state.memory_mhz, state.power_w, state.temperature_c) == (
        *(1980, 3201),
        *(412.0, 55),
    )
    assert set(state.throttle) == set(names)


def test_without_nvml_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NVML is missing, or has no GPU, there is no state and no sample is dirty."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (Nvml().state(), Nvml().throttled()) == (None, False)


@pytest.mark.parametrize(("visible", "index"), [("", 0), ("3,1", 3), ("GPU-1234", 0)])
def test_nvml_is_asked_for_the_first_visible_gpu(
    monkeypatch: pytest.MonkeyPatch, visible: str, index: int
) -> None:
    """NVML numbers all GPUs of a machine, CUDA only those that it may see."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _index() == index
