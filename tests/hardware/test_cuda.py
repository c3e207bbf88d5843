"""The fingerprint of a GPU, on machines with and without one."""

import sys
from types import SimpleNamespace

import pytest
import torch
from nearfree.errors import HardwareError
from nearfree.hardware.identity import cuda_fingerprint, machine_fingerprint


def test_a_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch sees no GPU, one line says so and what to do."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HardwareError, match="no NVIDIA GPU here") as caught:
        machine_fingerprint("cuda")
    assert "here: [cpu]" in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_machine_without_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is not installed, one line says so."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(HardwareError, match="torch is not installed"):
        cuda_fingerprint()


def test_a_gpu_is_known_by_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint holds name, compute capability, multiprocessors and L2, no driver."""
    facts = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=62914560
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    fingerprint = machine_fingerprint("cuda")
    assert (fingerprint.kind, fingerprint.model, fingerprint.features) == (
        "cuda",
        "NVIDIA H200",
        ("sm_90",),
    )
    assert (fingerprint.cores, fingerprint.caches) == (132, {"l2": 62914560})
