"""Events about a GGUF file's forward."""

from pathlib import Path

import pytest
from gguf_files.files import TensorEntry, array, gguf, scalar, string
from gguf_files.models import model
from nearfree.gguf.reader import read_header
from nearfree.log.events import EngineMatrix, EngineShape
from nearfree.models.gguf_forward import cached_elements, matrices_of, shape_of

F32, Q8_0 = 0, 8


def test_matrices_of_layers_are_counted_together(tmp_path: Path) -> None:
    """Equal matrices of two layers are one entry; the embedding stands in for a missing head."""
    tensors = [TensorEntry("token_embd.weight", (64, 96), Q8_0, 64 * 96 // 32 * 34)]
    for layer in range(2):
        tensors.append(TensorEntry(f"blk.{layer}.ffn_up.weight", (64, 128), F32, 64 * 128 * 4))
        tensors.append(TensorEntry(f"blk.{layer}.ffn_norm.weight", (64,), F32, 64 * 4))
    metadata = [
        ("general.architecture", string("llama")),
        ("llama.block_count", scalar("uint32", 2)),
        ("llama.embedding_length", scalar("uint32", 64)),
        ("llama.attention.head_count", scalar("uint32", 4)),
        ("llama.attention.head_count_kv", scalar("uint32", 2)),
    ]
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf(metadata, tensors))
    header = read_header(path)
    assert matrices_of(header) == (
        EngineMatrix(part="ffn_up", type="f32", rows=128, columns=64, count=2),
        EngineMatrix(part="output", type="q8_0", rows=96, columns=64, count=1),
    )
    assert shape_of(header) == EngineShape(layers=2, heads=4, kv_heads=2, head_dim=16)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "value"),
    [
        ([8] * 6, [2] * 6, (8, 2)),
        ([8] * 6, [0, 0, 8, 0, 8, 0], (8, 3)),
        ([4, 4, 4, 8, 8, 8], None, (6, 6)),
    ],
)
def test_numbers_of_each_layer_are_one(
    tmp_path: Path, heads: list[int], kv_heads: list[int] | None, value: tuple[int, int]
) -> None:
    """A list of numbers by layer becomes its mean, rounded up."""
    metadata = [
        ("general.architecture", string("llama")),
        ("llama.block_count", scalar("uint32", 6)),
        ("llama.embedding_length", scalar("uint32", 96)),
        ("llama.attention.head_count", array("int32", heads)),
        *([("llama.attention.head_count_kv", array("int32", kv_heads))] if kv_heads else []),
    ]
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf(metadata, [TensorEntry("blk.0.ffn_up.weight", (64, 2), F32, 64 * 2 * 4)]))
    shape = shape_of(read_header(path))
    assert (shape.heads, shape.kv_heads) == value
    assert shape.head_dim == 96 // value[0]


@pytest.mark.parametrize(
    ("kind", "changes", "layers", "elements"),
    [
        ("llama", {}, 6, 6 * 2 * (8 + 8)),
        ("qwen3_5_text", {}, 2, 2 * 2 * (16 + 16)),
        ("lfm2", {}, 2, 2 * 2 * (8 + 8)),
        ("deepseek_v3", {}, 6, 6 * (12 + 4)),
        ("gemma4_text", {}, 6, 3 * 2 * (16 + 16) + 3 * 2 * (32 + 32)),
        ("gemma4_text", {"num_kv_shared_layers": 2}, 6, 2 * 2 * (16 + 16) + 2 * 2 * (32 + 32)),
    ],
)
def test_layers_cache_what_they_attend_to(
    tmp_path: Path, kind: str, changes: dict[str, int], layers: int, elements: int
) -> None:
    """A state or a convolution caches no position; latents are keys and values at once."""
    _, path = model(tmp_path, kind, **changes)
    header = read_header(path)
    assert shape_of(header).layers == layers
    assert cached_elements(header) == elements


def test_layers_that_draft_do_not_attend(tmp_path: Path) -> None:
    """They are counted in the metadata, and no forward runs them."""
    changes = {
        "glm4moe.block_count": scalar("uint32", 7),
        "glm4moe.nextn_predict_layers": scalar("uint32", 1),
    }
    _, path = model(tmp_path, "glm4_moe", metadata_changes=changes)
    assert shape_of(read_header(path)).layers == 6
