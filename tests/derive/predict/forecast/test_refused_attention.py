"""Attention that no backend takes: each refusal names what would run instead."""

from pathlib import Path

import pytest
from decoders.files import read
from nearfree.backends.names import BackendRelease
from nearfree.core.precision import uniform
from nearfree.derive.predict.forecast.attention_choice import attention_candidates as choices
from nearfree.derive.predict.forecast.attention_choice import (
    attention_refusals,
)

from derive.predict.forecast.test_attention_choice import VLLM


@pytest.mark.parametrize(
    ("kind", "backend", "message", "remedy"),
    [
        ("gpt_oss", "flash_attn", "3 layers (window 32): heads have a logit", "vllm-fa3"),
        ("gemma4_text", "flash_attn", "heads of 512 elements are wider than 256", "flashinfer"),
        ("mimo_v2_flash", "flash_attn", "keys have 16 elements and values 12", "vllm-fa3"),
        ("deepseek_v3", "flash_attn", "none is of a latent", "vllm-mla"),
        ("deepseek_v32", "flash_attn", "a latent and an indexer of positions", "sglang-mla"),
        ("llama", "vllm_mla", "none is of grouped queries", "flash-attn-4"),
    ],
)
def test_what_a_backend_does_not_take_is_refused(
    tmp_path: Path, kind: str, backend: str, message: str, remedy: str
) -> None:
    """A refusal names the kind of layers, what lacks a kernel, and which backend has one."""
    changes = {"global_head_dim": 512} if kind == "gemma4_text" else {}
    refusals = list(attention_refusals(read(tmp_path, kind, **changes), BackendRelease(backend)))
    assert any(message in refusal.reason for refusal in refusals)
    assert all(f"--attention {remedy}" in refusal.remedy for refusal in refusals)


@pytest.mark.parametrize(
    ("kind", "sm", "runs", "lacks"),
    [
        ("llama", 100, {"flash-attn", "flash-attn-4"}, {"vllm-fa3", "flash-attn-3"}),
        ("llama", 80, {"flash-attn", "flash-attn-3"}, {"vllm-fa3", "flashinfer-fa3"}),
        ("llama", 90, {"vllm-fa3", "flashinfer-fa3"}, set()),
    ],
)
def test_a_refusal_names_what_runs_on_that_gpu(
    tmp_path: Path, kind: str, sm: int, runs: set[str], lacks: set[str]
) -> None:
    """A remedy names backends with kernels for the GPU only."""
    (found,) = attention_refusals(read(tmp_path, kind), BackendRelease("vllm_mla"), sm)
    offered = {*found.remedy.removeprefix("Ask with --attention ").split(" or --attention ")}
    assert runs <= offered
    assert not lacks & offered


@pytest.mark.parametrize(
    ("cache", "remedy"),
    [
        ("float8", "Ask with --attention flashinfer"),
        ("nvfp4", "Ask with --attention flash-attn --kv-dtype bfloat16"),
    ],
)
def test_a_refusal_names_what_takes_the_cache(tmp_path: Path, cache: str, remedy: str) -> None:
    """A remedy that has no tile rules of the cache's format would be refused in its turn."""
    model, named = read(tmp_path, "llama"), BackendRelease("vllm_mla")
    (found,) = attention_refusals(model, named, 100, cache)
    assert found.remedy.startswith(remedy)


def test_a_latent_is_offered_the_kernels_of_engines_alone(tmp_path: Path) -> None:
    """Torch is not offered for a latent, since its tile is unknown."""
    (found,) = attention_refusals(read(tmp_path, "deepseek_v3"), BackendRelease("flash_attn"), 90)
    offered = found.remedy.removeprefix("Ask with --attention ").split(" or --attention ")
    assert {*offered} == {"tensorrt-llm-mla==VERSION", "vllm-mla", "sglang-mla"}


def test_what_runs_all_is_not_refused(tmp_path: Path) -> None:
    """A backend that takes a model's windows, caps and heads is accepted."""
    assert not list(attention_refusals(read(tmp_path, "gemma2"), BackendRelease("flash_attn")))


def test_others_follow_what_an_engine_takes(tmp_path: Path) -> None:
    """If a choice has no recorded release, the next one that takes the layers stands in."""
    every = list(choices(read(tmp_path, "llama"), uniform("bfloat16"), 90, VLLM))
    assert every[:2] == ["vllm-fa3", "flash-attn"]
