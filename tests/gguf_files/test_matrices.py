"""The matrices of a forward, as a file's tensors have them."""

from pathlib import Path

import pytest
from nearfree.gguf.matrices import WeightMatrix, matrices
from nearfree.gguf.reader import read_header

from gguf_files.files import TensorEntry, gguf

LAYER = [
    TensorEntry("blk.0.attn_norm.weight", (64,), 0, 256),
    TensorEntry("blk.0.attn_q.weight", (64, 32), 2, 32 * 36),
    TensorEntry("blk.0.attn_q.bias", (32,), 0, 128),
    TensorEntry("blk.0.ffn_gate_inp.weight", (64, 8), 0, 64 * 8 * 4),
    TensorEntry("blk.0.ffn_up_exps.weight", (64, 96, 8), 8, 8 * 96 * 68),
    TensorEntry("blk.0.ffn_up_exps.bias", (96, 8), 0, 96 * 8 * 4),
]
EMBEDDING = TensorEntry("token_embd.weight", (64, 10), 8, 10 * 68)
HEAD = TensorEntry("output.weight", (64, 10), 1, 10 * 128)


def read(tmp_path: Path, tensors: list[TensorEntry]) -> dict[str, WeightMatrix]:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([], tensors))
    matrices_by_part = matrices(read_header(path))
    return {matrix.name: matrix for matrix in matrices_by_part}


def test_only_what_products_read_counts(tmp_path: Path) -> None:
    """Vectors, biases and embeddings are not listed; experts are counted one by one."""
    read_matrices = read(tmp_path, [EMBEDDING, *LAYER, HEAD])
    assert list(read_matrices) == [
        "blk.0.attn_q.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_up_exps.weight",
        "output.weight",
    ]
    query, experts = read_matrices["blk.0.attn_q.weight"], read_matrices["blk.0.ffn_up_exps.weight"]
    assert (query.part, query.layer, query.rows, query.columns) == ("attn_q", 0, 32, 64)
    assert (query.type.name, query.size_bytes, query.count) == ("q4_0", 32 * 36, 1)
    assert (experts.count, experts.routed, experts.elements) == (8, True, 8 * 96 * 64)
    assert experts.read_bytes(2) * 4 == experts.read_bytes() == experts.size_bytes
    assert not read_matrices["output.weight"].tied


def test_without_a_head_the_embedding_is_one(tmp_path: Path) -> None:
    """A tied embedding counts once, as the head."""
    read_matrices = read(tmp_path, [EMBEDDING, *LAYER])
    head = read_matrices["token_embd.weight"]
    assert (head.part, head.tied, head.rows, head.columns) == ("output", True, 10, 64)
    assert head.size_bytes == 10 * 68


@pytest.mark.parametrize("name", ["ffn_gate.3", "ffn_down_exps", "ffn_gate_up_exps"])
def test_experts_are_known_by_their_name(tmp_path: Path, name: str) -> None:
    """Experts in one tensor or in one each are routed."""
    (only,) = read(tmp_path, [TensorEntry(f"blk.2.{name}.weight", (32, 4), 0, 512)]).values()
    assert only.routed
    assert only.layer == 2
