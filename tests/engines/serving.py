"""Serving engines that are not installed: settings, weights and stand-in modules."""

import sys
from inspect import BoundArguments, Signature
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from backends.adapters.signatures import StandIn, stand_in
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.environments.lock import lock_path, pins
from nearfree.core.setting import Setting
from nearfree.core.weights import RandomWeights
from nearfree.engines import served

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}


def release(engine: str) -> str:
    """Return the release that the engine's lock pins."""
    return pins(lock_path(engine))[engine]


def setting(engine: str, **changes: Any) -> Setting:
    """Return a setting of two requests over a short cache."""
    fields: dict[str, Any] = {
        "module": "engine",
        "backend": engine,
        "dtype": "bfloat16",
        "batch": 2,
        "context": 40,
        "model": "tiny",
        "model_digest": "0123456789ab",
        "release": release(engine),
        "file_type": "bf16",
        "threads": 1,
        "repack": True,
    }
    return Setting(**fields | changes)


def context(engine: str, **config: Any) -> ExecutionContext:
    """Return a run's context, with random weights that the engine makes."""
    weights = RandomWeights(file_type="bf16", config=CONFIG | config, release=release(engine))
    return ExecutionContext(device="cuda", weights={"tiny": weights}, cache_bytes=1)


def installed(monkeypatch: pytest.MonkeyPatch, engine: str, **modules: dict[str, Any]) -> None:
    """Put an engine's modules in the place of those that are not installed, by dotted names."""
    monkeypatch.setattr(served, "version", lambda _: release(engine))
    for name, held in modules.items():
        module = ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)


def record(known: Signature) -> StandIn:
    """Return a stand-in that accepts a signature's arguments and returns them as a record."""

    def made(bound: BoundArguments) -> SimpleNamespace:
        bound.apply_defaults()
        return SimpleNamespace(**bound.arguments)

    return stand_in(known, made)


def weights_of(count: int, elements: int) -> list[Any]:
    """Return tensors of weights as an engine holds them."""
    tensor = SimpleNamespace(numel=lambda: elements, element_size=lambda: 2)
    return [tensor] * count


def lines(text: str, *parts: str) -> None:
    """Assert that a source contains each part; runs of white space count as one blank."""
    plain = " ".join(text.split())
    for part in parts:
        assert " ".join(part.split()) in plain, part
