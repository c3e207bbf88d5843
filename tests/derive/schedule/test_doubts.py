"""Warnings about a schedule: its drafter, too little memory, a release without the option."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import CONFIG, SMALL, change, write
from msgspec import structs
from nearfree.backends.names import BackendRelease
from nearfree.decoders.decoder import States
from nearfree.decoders.model_file import find_drafter_file, find_model_file, read_model_file
from nearfree.derive.schedule.doubts import drafter_warnings, release_warnings, state_warnings

FIELDS: dict[str, Any] = {"platform": "h200", "attention": BackendRelease("flash_attn", "2.8.3")}


@pytest.mark.parametrize(
    ("kind", "changes", "doubts"),
    [
        ("qwen3", {}, 1),
        ("qwen3", {"num_nextn_predict_layers": 0}, 1),
        ("deepseek_v3", {"num_nextn_predict_layers": 1}, 0),
        ("qwen3_next", {}, 0),
    ],
)
def test_a_layer_of_its_own_is_in_the_file_or_the_type(
    tmp_path: Path, kind: str, changes: dict[str, Any], doubts: int
) -> None:
    """If a model's file counts no draft layer, its cost is called assumed."""
    model = read_model_file(write(tmp_path, change(kind, **changes)))
    warnings = list(drafter_warnings("vllm", model, None))
    assert len(warnings) == doubts
    assert all("names no layer of its own" in warning for warning in warnings)


def test_a_draft_model_has_the_model_s_vocabulary(tmp_path: Path) -> None:
    """A draft model of another vocabulary size is named with both, since vLLM refuses it."""
    model = read_model_file(write(tmp_path, SMALL["qwen3"]))
    assert list(drafter_warnings("vllm", model, model)) == []
    other = read_model_file(write(tmp_path, change("qwen3", vocab_size=640)))
    (refused,) = drafter_warnings("vllm", model, other)
    assert "640 tokens" in refused
    assert "vLLM refuses such a draft model" in refused
    *_, translated = drafter_warnings("sglang", model, other)
    assert "have to be translated" in translated


def test_a_head_of_another_model_is_told() -> None:
    """A head whose file has another vocabulary than the model's is named."""
    head = find_drafter_file(CONFIG, str(CONFIG / "whole" / "heads" / "eagle3_llama_3_1_8b.json"))
    own, other = (find_model_file(CONFIG, name) for name in ("llama_3_1_8b", "qwen3_8b"))
    assert own.d_model == other.d_model
    assert not [*drafter_warnings("vllm", own, head)]
    (said,) = drafter_warnings("vllm", other, head)
    assert "the head of a model of 128,256 tokens, and qwen3_8b has 151,936" in said


def test_a_forward_that_is_refused_says_nothing_of_a_drafter(tmp_path: Path) -> None:
    """Without a forward of the model or the drafter nothing is compared."""
    model = read_model_file(write(tmp_path, SMALL["qwen3"]))
    refused = structs.replace(model, decoder=None)
    for engine in ("vllm", "sglang"):
        assert list(drafter_warnings(engine, model, refused)) == []
        assert list(drafter_warnings(engine, refused, model)) == []


def test_sglang_runs_no_schedule_of_a_draft_model(tmp_path: Path) -> None:
    """SGLang's adaptive steps are for EAGLE only, so a draft model is warned of."""
    model = read_model_file(write(tmp_path, SMALL["qwen3"]))
    (dropped,) = drafter_warnings("sglang", model, model)
    assert "drops the schedule of a draft model" in dropped
    assert "STANDALONE" in dropped


def test_a_head_beside_chunked_layers_is_told(tmp_path: Path) -> None:
    """A head beside chunked layers is warned of in vLLM only."""
    chunked = read_model_file(write(tmp_path, SMALL["llama4_text"]))
    (tmp_path / "plain").mkdir()
    plain = read_model_file(write(tmp_path / "plain", SMALL["llama"]))
    assert plain.decoder is not None
    states = States(width=64, layers=3)
    head = structs.replace(plain, decoder=structs.replace(plain.decoder, states=states))
    (warning,) = drafter_warnings("vllm", chunked, head)
    assert "caches all positions" in warning
    assert not [*drafter_warnings("sglang", chunked, head), *drafter_warnings("vllm", plain, head)]


@pytest.mark.parametrize(
    ("engine", "kind", "many"),
    [
        ("vllm", "qwen3_next", "K + 1"),
        ("sglang", "nemotron_h", "K + 2"),
        ("llama.cpp", "qwen3_next", None),
        ("vllm", "qwen3", None),
        ("vllm", "deepseek_v4", None),
    ],
)
def test_states_that_drafts_add_are_told(
    tmp_path: Path, engine: str, kind: str, many: str | None
) -> None:
    """A warning says that engines keep one state per draft and one or two more."""
    model = read_model_file(write(tmp_path, SMALL[kind]))
    warnings = list(state_warnings(engine, model))
    assert len(warnings) == (many is not None)
    for warning in warnings:
        assert f"{engine} keeps {many}" in warning


@pytest.mark.parametrize(
    ("engine", "moe", "doubted"),
    [
        ("vllm", BackendRelease("vllm", "0.20.2"), True),
        ("vllm", BackendRelease("vllm", "0.23.0"), True),
        ("vllm", BackendRelease("vllm", "0.24.0"), False),
        ("vllm", BackendRelease("vllm"), False),
        ("sglang", BackendRelease("sglang", "0.5.10"), True),
        ("sglang", BackendRelease("sglang", "0.5.13"), False),
        ("llama.cpp", BackendRelease("vllm", "0.9.1"), False),
    ],
)
def test_a_release_that_reads_no_such_option_is_named(
    engine: str, moe: BackendRelease, *, doubted: bool
) -> None:
    """A release older than the first that reads the option is warned of."""
    warnings = list(release_warnings(engine, [moe, moe]))
    assert len(warnings) == doubted
    assert all(f"{moe} does not read this option" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("engine", "served", "others"),
    [
        ("vllm", [BackendRelease("sglang"), BackendRelease("sglang", "0.5.9")], ["sglang"]),
        ("sglang", [BackendRelease("sglang"), BackendRelease("vllm", "0.33.0")], ["vllm"]),
        ("vllm", [BackendRelease("trtllm")], ["trtllm"]),
        ("vllm", [BackendRelease("vllm", "0.33.0")], []),
        ("llama.cpp", [BackendRelease("vllm", "0.33.0")], []),
    ],
)
def test_an_option_for_one_engine_from_the_steps_of_another_is_doubted(
    engine: str, served: list[BackendRelease], others: list[str]
) -> None:
    """An option for one engine from T(N) of another has one warning."""
    warnings = list(release_warnings(engine, served))
    assert len(warnings) == len(others)
    for other, warning in zip(others, warnings, strict=True):
        assert f"as {other} runs them, while {engine} reads" in warning
