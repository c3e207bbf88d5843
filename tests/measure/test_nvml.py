"""NVML: how a GPU's state is read, with a stand-in that has NVML's names."""

import inspect
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from nearfree.errors import HardwareError
from nearfree.measure import cuda
from nearfree.measure.cuda import _THROTTLE_REASONS, Nvml
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch

from workflow import ROOT


class NvmlError(Exception):
    """What NVML raises: no RuntimeError."""


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace torch's GPU with one that has a name of the test."""
    facts = SimpleNamespace(uuid="4f1c")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: facts)


def stand_in(reasons: int) -> ModuleType:
    """Return a module with the names that are used, and some throttle reasons."""
    module = ModuleType("pynvml")
    facts = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "NVMLError": NvmlError,
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
    """Reasons have names under NVML's newer and older API; only heat disturbs samples."""
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


def test_nvml_is_asked_for_the_gpu_that_cuda_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is found by its own name: NVML numbers all of a machine, CUDA those it may see."""
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(0))
    assert Nvml()._handle == b"GPU-4f1c"


def test_a_gpu_that_stops_answering_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without clock readings is accepted; one lost during the take ends it."""
    module = stand_in(0)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    nvml = Nvml()

    def lost(_handle: object) -> int:
        raise NvmlError("GPU is lost")

    monkeypatch.setattr(module, "nvmlDeviceGetPowerUsage", lost)
    with pytest.raises(HardwareError, match="does not answer: GPU is lost"):
        nvml.state()
    assert Nvml().state() is None


@pytest.mark.slow
def test_nvml_has_the_names_that_are_asked_for(source_cache: Cache) -> None:
    """Each NVML function and constant in use exists in the source of the locked release."""
    lock = (ROOT / "envs/cpu.lock").read_text()
    version = lock.partition("nvidia-ml-py==")[2].split()[0]
    source = fetch("nvidia-ml-py", version, r"pynvml\.py", cache=source_cache)
    text = source.text("pynvml.py")
    used = set(re.findall(r"nvml\.(nvml\w+|NVML\w+)", inspect.getsource(cuda)))
    assert len(used) >= 8
    for name in used | {f"nvmlClocksEventReason{key}" for key in _THROTTLE_REASONS}:
        assert re.search(rf"^(def |class )?{name}\b", text, re.MULTILINE), name
