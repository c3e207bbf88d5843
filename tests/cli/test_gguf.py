"""GGUF files on the command line: an answer, or one message and exit code 2."""

from pathlib import Path

import pytest
from gguf_files.files import SMALL as TINY
from gguf_files.models import model
from msgspec import json
from nearfree.decoders.weights import Matrix
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
    told = []
    for each in (config, path):
        code, out, err = call("predict", "--model", str(each), *H100, "--format", "json")
        assert (code, err) == (0, "")
        told.append(json.decode(out)[0])
    theirs, ours = told
    assert ours["predictors"] == theirs["predictors"]
    assert ours["curve"] == theirs["curve"]
    assert ours["memory"]["weights_gb"] == stored_bytes(read_header(path)) / 1e9


def test_a_folder_with_one_file_is_its_model(call: Call, tmp_path: Path) -> None:
    """The folder stands for the file."""
    config, _ = model(tmp_path, "qwen3_moe", hidden_size=256)
    config.unlink()
    code, out, _ = call("predict", "--model", str(tmp_path), *H100)
    assert code == 0
    assert out.startswith("small on h100")


def test_types_without_a_forward_have_a_memory(call: Call, tmp_path: Path) -> None:
    """A Q4_0 file is refused by its types with what to do, and its memory is that of its bytes."""
    _, path = model(tmp_path, "llama", types=q4)
    asked = ("predict", "--model", str(path), *H100)
    code, out, err = call(*asked)
    assert code == 2
    assert out.startswith("small on h100")
    assert "memory: " in out
    assert err.count("nearfree: error:") == 1
    assert "q4_0 (86% of all)" in err
    assert "--dtype bfloat16" in err
    code, out, err = call(*asked, "--format", "json")
    (found,) = json.decode(out)
    assert (code, err) == (2, "")
    assert found["memory"]["weights_gb"] == stored_bytes(read_header(path)) / 1e9
    cached = found["memory"]["kv_gb"]
    code, out, _ = call(*asked, "--format", "json", "--kv-dtype", "float32")
    assert json.decode(out)[0]["memory"]["kv_gb"] == 2 * cached
    code, out, err = call(*asked, "--dtype", "bfloat16")
    assert (code, err) == (0, "")


def test_what_does_not_fit_is_said_first(call: Call, tmp_path: Path) -> None:
    """Requests that no card holds are said so of a file without a forward, too."""
    _, path = model(tmp_path, "llama", types=q4)
    code, out, _ = call("predict", "--model", str(path), *H100, "--batch", "100000")
    assert code == 2
    assert out.startswith("DOES NOT FIT")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"GGU", "ends within its first bytes"),
        (b"{} {}", "is no GGUF file"),
        (TINY[:-40], "ends at"),
        (TINY[:50], "ends within"),
        (b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 40, "tensors"),
    ],
)
def test_a_broken_file_is_one_message(call: Call, tmp_path: Path, raw: bytes, why: str) -> None:
    """What is no GGUF file, or was cut, ends with one message that names it, and exit code 2."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw)
    code, out, err = call("predict", "--model", str(path), *H100)
    assert (code, out) == (2, "")
    assert err.startswith(f"nearfree: error: {path} ")
    assert why in err
    assert len(err.splitlines()) == 1


def test_several_files_must_be_told_apart(call: Call, tmp_path: Path) -> None:
    """A folder with several GGUF files is refused, and one of them named."""
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(TINY)
    code, out, err = call("predict", "--model", str(tmp_path), *H100)
    assert (code, out) == (2, "")
    assert "holds 2 GGUF files and no config.json" in err
