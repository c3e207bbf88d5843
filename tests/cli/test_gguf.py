"""GGUF files on the command line: an answer, or one message and exit code 2."""

from pathlib import Path

import pytest
from gguf_files.files import SMALL as TINY
from gguf_files.models import model
from msgspec import json
from nearfree.decoders.layouts.pieces import Matrix
from nearfree.gguf.header import stored_bytes
from nearfree.gguf.reader import read_header

from cli.conftest import Call

pytestmark = pytest.mark.usefixtures("recorded")
H100 = ("--platform", "h100", "--largest", "16")


def q4(matrix: Matrix) -> str:
    return "q4_0" if matrix.inputs > 1 else "f32"


def test_a_plain_file_is_answered(call: Call, tmp_path: Path) -> None:
    """A BF16 file has the answer of the config.json that it came from, and its own bytes."""
    config, path = model(tmp_path, "qwen3", hidden_size=256)
    answers = []
    for model_path in (config, path):
        code, out, err = call("predict", "--model", str(model_path), *H100, "--format", "json")
        assert (code, err) == (0, "")
        answers.append(json.decode(out)[0])
    from_config, from_gguf = answers
    assert from_gguf["predictors"] == from_config["predictors"]
    assert from_gguf["curve"] == from_config["curve"]
    assert from_gguf["memory"]["weights_gb"] == stored_bytes(read_header(path)) / 1e9


def test_a_folder_with_one_file_is_its_model(call: Call, tmp_path: Path) -> None:
    """The folder means its only file."""
    config, _ = model(tmp_path, "qwen3_moe", hidden_size=256)
    config.unlink()
    code, out, _ = call("predict", "--model", str(tmp_path), *H100)
    assert code == 0
    assert out.startswith("small on h100")


def test_types_without_a_forward_have_a_memory(call: Call, tmp_path: Path) -> None:
    """A Q4_0 file is refused by its types with what to do, and its memory is that of its bytes."""
    _, path = model(tmp_path, "llama", types=q4)
    command = ("predict", "--model", str(path), *H100)
    code, out, err = call(*command)
    assert code == 2
    assert out.startswith("small on h100")
    assert "memory: " in out
    assert err.count("nearfree: error:") == 1
    assert "q4_0 (86% of all)" in err
    assert "--dtype bfloat16" in err
    code, out, err = call(*command, "--format", "json")
    (answer,) = json.decode(out)
    assert (code, err) == (2, "")
    assert answer["memory"]["weights_gb"] == stored_bytes(read_header(path)) / 1e9
    kv_gb = answer["memory"]["kv_gb"]
    code, out, _ = call(*command, "--format", "json", "--kv-dtype", "float32")
    assert json.decode(out)[0]["memory"]["kv_gb"] == 2 * kv_gb
    code, out, err = call(*command, "--dtype", "bfloat16")
    assert (code, err) == (0, "")


def test_a_model_that_does_not_fit_is_reported_first(call: Call, tmp_path: Path) -> None:
    """Requests that no card holds are reported first, also for a file without a forward."""
    _, path = model(tmp_path, "llama", types=q4)
    code, out, _ = call("predict", "--model", str(path), *H100, "--batch", "100000")
    assert code == 2
    assert out.startswith("DOES NOT FIT")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"GGU", "ends within its first bytes"),
        (b"{} {}", "is no GGUF file"),
        (TINY[:-40], "ends at"),
        (TINY[:50], "ends within"),
        (b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 40, "tensors"),
    ],
)
def test_a_broken_file_is_one_message(call: Call, tmp_path: Path, raw: bytes, reason: str) -> None:
    """What is no GGUF file, or was cut, ends with one message that names it, and exit code 2."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw)
    code, out, err = call("predict", "--model", str(path), *H100)
    assert (code, out) == (2, "")
    assert err.startswith(f"nearfree: error: {path} ")
    assert reason in err
    assert len(err.splitlines()) == 1


def test_a_folder_of_several_files_is_refused(call: Call, tmp_path: Path) -> None:
    """A folder with several GGUF files is refused, and one of them named."""
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(TINY)
    code, out, err = call("predict", "--model", str(tmp_path), *H100)
    assert (code, out) == (2, "")
    assert "holds 2 GGUF files and no config.json" in err
