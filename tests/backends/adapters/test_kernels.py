"""Adapters: their names, and refusals before anything is allocated."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_setting
from nearfree.backends.adapters import kernel as adapter_kernel
from nearfree.backends.adapters import memory
from nearfree.backends.adapters.kernel import (
    ADAPTERS,
    Adapter,
    ExecutionContext,
    find_adapter,
    make_kernel,
)
from nearfree.config.files import Config
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError

from backends.adapters.shapes import make_moe, make_sdpa

ROOT = Path(__file__).parents[3]
CPU_SETTINGS = [
    make_setting(backend="torch"),
    make_sdpa(),
    make_moe(),
    make_moe(backend="torch_grouped"),
]


def test_an_adapter_is_named_once() -> None:
    """A module on a backend is run by one adapter alone."""
    names = [(adapter.module, adapter.backend) for adapter in ADAPTERS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "adapter", ADAPTERS, ids=lambda adapter: f"{adapter.module}-{adapter.backend}"
)
def test_an_adapter_is_a_class_with_an_environment(adapter: Adapter) -> None:
    """Each adapter names a class that runs and counts a forward, and a lock that is there."""
    module, _, name = adapter.class_path.partition(":")
    kind = getattr(import_module(module), name)
    assert callable(kind.forward)
    assert callable(kind.work)
    assert (ROOT / "envs" / f"{adapter.environment}.lock").is_file()


def test_each_backend_of_a_study_has_an_adapter() -> None:
    """A backend that studies may name runs something, in the environment of its adapters."""
    environments = {adapter.backend: adapter.environment for adapter in ADAPTERS}
    assert Config(ROOT / "config").environments == environments


@pytest.mark.parametrize("setting", CPU_SETTINGS, ids=lambda setting: setting.backend)
def test_a_kernel_runs_what_it_was_made_for(setting: Setting) -> None:
    """A kernel runs and counts each N that was asked for, with finite output, and no other N."""
    kernel = make_kernel(setting, (1, 4), ExecutionContext(copies=2))
    for n in (1, 4):
        assert torch.isfinite(kernel.forward(n)).all()
        assert kernel.work(n).flop_executed >= kernel.work(n).flop_logical > 0
    with pytest.raises(KeyError):
        kernel.forward(2)


@pytest.mark.parametrize(
    "setting",
    [
        make_setting(backend="flash_attn"),
        make_setting(module="model", backend="torch"),
        make_setting(backend=""),
    ],
)
def test_an_unknown_adapter_is_refused(setting: Setting) -> None:
    """A module that nothing runs on a backend is refused by both names, with what there is."""
    with pytest.raises(EvidenceError, match=f"{setting.module} on {setting.backend}") as error:
        make_kernel(setting, (1,), ExecutionContext())
    assert "dense_ffn/torch" in error.value.remedy


def test_a_device_that_a_backend_does_not_run_on() -> None:
    """A GPU's backend is refused on a CPU, though the same adapter is found for a GPU."""
    setting = make_moe(backend="vllm", dtype="bfloat16")
    with pytest.raises(EvidenceError, match="vllm runs moe_ffn on cuda, not on cpu"):
        make_kernel(setting, (1,), ExecutionContext())
    assert find_adapter(setting.module, setting.backend, "cuda").package == "vllm"


@pytest.mark.parametrize(
    ("setting", "device"),
    [
        (make_setting(backend="torch", weights="int8"), "cuda"),
        (make_setting(backend="torch", weights="nvfp4"), "cpu"),
        (make_moe(weights="int8"), "cpu"),
        (make_setting(module="model", backend="torch_sdpa", weights="int8"), "cpu"),
    ],
)
def test_weights_that_a_backend_does_not_take(setting: Setting, device: str) -> None:
    """A format of weights that a backend has no product for on a device is refused by all names."""
    text = f"{setting.backend} runs {setting.module} on {device} .* stored as {setting.weights}"
    with pytest.raises(EvidenceError, match=text) as error:
        make_kernel(setting, (1,), ExecutionContext(device=device))
    assert "leave `weights` out" in error.value.remedy


def test_a_package_that_is_not_installed() -> None:
    """A backend whose package is missing is refused with the command that makes its environment."""
    with pytest.raises(EvidenceError, match="needs the package sglang") as error:
        make_kernel(make_moe(backend="sglang"), (1,), ExecutionContext(device="cuda"))
    assert "nearfree environment make sglang" in error.value.remedy


def test_a_package_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is built for another torch or CUDA says so in one message, whatever it imports."""

    def broken(*_: object) -> None:
        raise ImportError("libcudart.so.13: cannot open shared object file\nand more")

    monkeypatch.setattr(adapter_kernel, "load", lambda _: broken)
    with pytest.raises(EvidenceError, match="torch does not load here: libcudart") as error:
        make_kernel(make_setting(backend="torch"), (1,), ExecutionContext())
    assert "\n" not in str(error.value)
    assert "nearfree environment make cpu" in error.value.remedy


@pytest.mark.parametrize("changes", [{"d_model": 10**7, "d_ff": 10**7}, {"batch": 10**12}])
def test_a_shape_that_does_not_fit(changes: dict[str, Any]) -> None:
    """A shape too large for this machine's memory is refused in one message before allocation."""
    execution = ExecutionContext(copies=2)
    with pytest.raises(EvidenceError, match="with 2 copies needs") as error:
        make_kernel(make_setting(backend="torch", **changes), (1,), execution)
    assert "\n" not in str(error.value)
    assert execution.shared == {}


@pytest.mark.parametrize("setting", CPU_SETTINGS, ids=lambda setting: setting.backend)
def test_each_module_checks_its_size_first(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with a kilobyte free every module is refused before a tensor is made."""
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(torch, "empty", None)
    with pytest.raises(EvidenceError, match=r"0\.0 GB are free"):
        make_kernel(setting, (1,), ExecutionContext())


def test_a_dtype_that_torch_lacks() -> None:
    """A dtype that torch has no tensors of is refused by name."""
    with pytest.raises(EvidenceError, match="float8"):
        make_kernel(make_setting(backend="torch", dtype="float8"), (1,), ExecutionContext())
