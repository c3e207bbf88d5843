"""Serving engines' forwards: refusals before loading, and work."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from nearfree.decoders.config_file import read_decoder
from nearfree.engines import served
from nearfree.engines.served import served_work
from nearfree.engines.vllm import VllmForward
from nearfree.errors import EvidenceError

from engines.serving import CONFIG, context, installed, setting


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a stand-in of the lock's release, whose engine fails when it is loaded."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("this model's architecture is not supported\nby this release")

    installed(monkeypatch, "vllm", vllm={"LLM": fail})


@pytest.mark.parametrize(
    ("changes", "config", "says"),
    [
        ({"context": 8183}, {}, r"L \+ 2 N = 8193 positions, .* are more than tiny's 8192"),
        ({"dtype": "float16"}, {}, "draws weights of a config.json in float16 itself"),
        ({"file_type": "q8_0"}, {}, "and tiny is q8_0"),
        ({"release": "0.1.0"}, {}, "is installed, and the study asks for 0.1.0"),
        ({}, {}, "does not load tiny: this model's architecture is not supported by this release"),
    ],
)
def test_what_an_engine_does_not_run_is_one_message(
    changes: dict[str, Any], config: dict[str, Any], says: str
) -> None:
    """Another release, other weights, a context too short, and what the engine itself says."""
    with pytest.raises(EvidenceError, match=says):
        VllmForward(setting("vllm", **changes), (1, 5), context("vllm", **config))


@pytest.mark.parametrize("vocabulary", [1, 8, 1000])
def test_tokens_are_those_of_the_vocabulary(vocabulary: int) -> None:
    """Token ids stay below the vocabulary's size, however small it is."""
    model: Any = SimpleNamespace(_decoder=SimpleNamespace(vocabulary=vocabulary))
    tokens = VllmForward.tokens(model, 1, 100)
    assert len(tokens) == 100
    assert set(tokens) <= set(range(vocabulary))
    assert tokens == VllmForward.tokens(model, 1, 100)


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment variables that are set while an engine loads are restored afterwards."""
    monkeypatch.setenv("ONE", "before")
    monkeypatch.delenv("TWO", raising=False)
    with served.variables(ONE="1", TWO="2"):
        assert (served.os.environ["ONE"], served.os.environ["TWO"]) == ("1", "2")
    assert served.os.environ["ONE"] == "before"
    assert "TWO" not in served.os.environ


def test_work_is_that_of_the_matrices_and_of_attention(tmp_path: Path) -> None:
    """Two FLOPs for each weight and row, and four for each head's element and key."""
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(CONFIG))
    served, rows = setting("vllm"), 2 * 5
    work = served_work(served, read_decoder(tmp_path), 5)
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128
    weights = 2 * layer + 64 * 1000
    keys = 2 * sum(40 + 1 + place for place in range(5))
    assert work.flop_logical == 2 * rows * weights + 4 * 2 * 4 * 16 * keys
    assert work.bytes_compulsory > 2 * weights


def test_memory_that_is_not_enough_is_one_message_and_a_failing_gpu_is_not() -> None:
    """An engine's out-of-memory message is a refusal; a CUDA error is passed on."""
    requested = setting("sglang")
    with (
        pytest.raises(EvidenceError, match="does not load tiny: Not enough memory"),
        served.refused(requested),
    ):
        raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")
    with pytest.raises(RuntimeError, match="CUDA error"), served.refused(requested):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
