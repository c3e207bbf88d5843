"""Adapters of whole models: what their attention and their experts need."""

import pytest
from msgspec import structs
from nearfree.backends.adapters.kernel import (
    ExecutionContext,
    adapters_of,
    find_adapter,
    make_kernel,
)
from nearfree.backends.records import in_models
from nearfree.config.model_studies import model_sweeps
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from whole_models import DENSE, MOE, model_study, small


def setting(kind: str = MOE, **changes: object) -> Setting:
    """Return a setting of a small model."""
    return model_sweeps(model_study(kind, **changes), small(kind))[0].setting


def test_a_model_needs_its_experts_adapter() -> None:
    """A model with experts has two adapters, that of its attention and that of its experts."""
    adapters = adapters_of(setting(), "cpu")
    assert [(adapter.module, adapter.backend) for adapter in adapters] == [
        ("model", "torch_sdpa"),
        ("moe_ffn", "torch_padded"),
    ]
    assert [adapter.module for adapter in adapters_of(setting(DENSE), "cpu")] == ["model"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_missing_engine_is_named(engine: str) -> None:
    """An engine for experts that is not installed is refused with its lock."""
    with pytest.raises(EvidenceError, match=f"{engine} needs the package {engine}") as error:
        make_kernel(setting(moe=engine), (1,), ExecutionContext(device="cuda"))
    assert f"nearfree environment make {engine}" in error.value.remedy


def test_an_engine_of_another_device_is_refused() -> None:
    """Experts that run on a GPU alone are refused on a CPU, though attention runs there."""
    with pytest.raises(EvidenceError, match="vllm runs moe_ffn on cuda, not on cpu"):
        make_kernel(setting(moe="vllm"), (1,), ExecutionContext())


@pytest.mark.parametrize("backend", in_models("attention"))
def test_models_run_where_their_attention_does(backend: str) -> None:
    """A model runs on the devices of its attention's backend, in the same environment."""
    of_model, of_attention = (
        find_adapter("model", backend, "cuda"),
        find_adapter("attention", backend, "cuda"),
    )
    assert (of_model.devices, of_model.package, of_model.environment) == (
        of_attention.devices,
        of_attention.package,
        of_attention.environment,
    )


def test_an_attention_that_no_model_runs_on_is_refused() -> None:
    """FlashInfer's decode kernel takes one position, so no model runs on it."""
    decode_setting = structs.replace(setting(), backend="flashinfer_decode")
    with pytest.raises(EvidenceError, match="no adapter runs model on flashinfer_decode"):
        adapters_of(decode_setting, "cuda")
