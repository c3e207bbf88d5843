"""`nearfree predict --engine llama_cpp` on a GPU: N_max and steps by rules, and no T(N)."""

from pathlib import Path
from typing import Any

import pytest
from gguf_files.files import TensorEntry, gguf, scalar, string
from msgspec import json

from cli.conftest import Call

pytestmark = pytest.mark.usefixtures("recorded")
TYPES = {"attn_q": (12, 144), "ffn_up": (14, 210)}
"""Number and bytes of a block of 256 elements, Q4_K's and Q6_K's, by part."""


F32 = 0


def write_file(path: Path, experts: int = 0) -> Path:
    """Write a file of a layer with matrices of two types, with experts in place of an FFN's."""
    metadata = [
        ("general.architecture", string("llama")),
        ("llama.block_count", scalar("uint32", 1)),
        ("llama.embedding_length", scalar("uint32", 256)),
        ("llama.attention.head_count", scalar("uint32", 4)),
        ("llama.context_length", scalar("uint32", 2048)),
    ]
    tensors = []
    for part, (number, block) in TYPES.items():
        dims: tuple[int, ...] = (256, 512)
        if experts and part == "ffn_up":
            part, dims = "ffn_up_exps", (256, 512, experts)  # noqa: PLW2901 (the experts' name)
        size = 512 * block * (dims[2] if len(dims) == 3 else 1)
        tensors.append(TensorEntry(f"blk.0.{part}.weight", dims, number, size))
    if experts:
        router = TensorEntry("blk.0.ffn_gate_inp.weight", (256, experts), F32, 4 * 256 * experts)
        tensors.append(router)
    path.write_bytes(gguf(metadata, tensors))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with dense matrices."""
    return write_file(tmp_path / "small.gguf")


def command(file: Path, platform: str, *argv: str) -> tuple[str, ...]:
    """Return a command."""
    return ("predict", "--platform", platform, "--engine", "llama_cpp", "--model", str(file), *argv)


def documents(call: Call, *argv: str) -> list[dict[str, Any]]:
    """Return the answers of a command."""
    code, out, err = call(*argv, "--format", "json")
    assert (code, err) == (0, "")
    return list(json.decode(out))


def n_max(document: dict[str, Any]) -> float:
    """Return N_max of the principle by rules."""
    resolved = document["predictors"][0]
    assert resolved["predictor"] == "principle_resolved"
    return float(resolved["n_max"])


def test_the_first_change_of_kernel_is_the_limit(call: Call, file: Path) -> None:
    """By capability: Q4_K goes to tiles above 8 rows on 8.9, above 5 on 12.0."""
    ada, blackwell = documents(call, *command(file, "rtx_4090,rtx_5090"))
    assert (n_max(ada), n_max(blackwell)) == (8.0, 5.0)
    resolved = blackwell["predictors"][0]
    assert resolved["limiting_module"] == "mul_mat q4_k"
    assert "mmq by the rule product in place of mmvq" in resolved["limiting_term"]
    assert "ggml/src/ggml-cuda/mmvq.cu:" in resolved["evidence"]
    assert [(step["type"], step["rows"]) for step in blackwell["steps"]] == [
        ("q4_k", 6), ("q6_k", 8),
    ]  # fmt: skip
    assert {document["release"] for document in (ada, blackwell)} == {"3.22.1"}


def test_rows_are_those_of_all_requests(call: Call, file: Path) -> None:
    """Four requests reach nine rows at three positions."""
    (document,) = documents(call, *command(file, "h100", "--batch", "4", "--release", "0.3.36"))
    assert n_max(document) == 2.0
    assert document["steps"][0]["rows"] == 12
    assert document["release"] == "0.3.36"


def test_times_are_refused_by_name(call: Call, file: Path) -> None:
    """No curve is on record, and what would answer is named."""
    (document,) = documents(call, *command(file, "h100"))
    model = document["predictors"][1]
    assert (model["predictor"], model["n_max"]) == ("work_model", None)
    assert "no curve of llama.cpp on a GPU is on record" in model["refusal"]
    assert not {"latency", "threads", "context"} & document.keys()


def test_the_text_has_the_steps(call: Call, file: Path) -> None:
    """With types, their share, kernels, files and lines."""
    code, out, err = call(*command(file, "rtx_5090"))
    assert (code, err) == (0, "")
    assert "principle_resolved  5    mul_mat q4_k: mmq by the rule product in place of mmvq" in out
    assert "work_model refused: no curve of llama.cpp on a GPU is on record" in out
    assert "  q4_k, 50% of the elements that a token reads" in out
    assert "    6  mmq by product  1 to 1 passes  llama-cpp-cuda 3.22.1, ggml/src/" in out


def test_each_token_of_few_reads_its_own_experts(call: Call, tmp_path: Path) -> None:
    """So two tokens may read an expert's weights twice, which the answer says."""
    path = write_file(tmp_path / "experts.gguf", experts=4)
    (document,) = documents(call, *command(path, "rtx_4090"))
    assert n_max(document) == 1.0
    steps = [step for step in document["steps"] if step["type"] == "q6_k"]
    assert [(step["rows"], step["path"], step["before"], step["after"]) for step in steps] == [
        *((n, "mmvq", n - 1, n) for n in range(2, 9)), (9, "mmq", 8, 1),
    ]  # fmt: skip
    assert any("of experts" in note for note in document["notes"])
    code, out, _ = call(*command(path, "rtx_4090"))
    assert code == 0
    assert "of experts, passes are over one expert's weights, at most" in out


@pytest.mark.parametrize(
    ("platform", "argv", "reason"),
    [
        ("mi300x", (), "kernels on mi300x are not read"),
        ("cpu,h100", (), "Ask for h100 in a command of its own"),
        ("h100", ("--threads", "2"), "--threads has no effect on a GPU"),
        ("h100", ("--context", "64"), "--context has no effect on a GPU"),
        ("h100", ("--epsilon", "0.1"), "--epsilon has no effect on a GPU"),
        ("h100", ("--cpu-flags", "avx2"), "--cpu-flags has no effect on a GPU"),
        ("h100", ("--no-repack",), "--no-repack has no effect on a GPU"),
        ("h100", ("--release", "9.9.9"), "llama-cpp-cuda 9.9.9 is not in the cache"),
        ("h100", ("--tp", "2"), "--tp has no effect with --engine llama_cpp"),
    ],
)
def test_mistakes_are_one_message(
    call: Call, file: Path, platform: str, argv: tuple[str, ...], reason: str
) -> None:
    """An impossible question ends with code 2, and the message names it."""
    code, out, err = call(*command(file, platform, *argv))
    assert (code, out) == (2, "")
    assert reason in err
    assert "Traceback" not in err
