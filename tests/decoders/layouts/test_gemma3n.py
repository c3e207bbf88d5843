"""Gemma 3n: published sizes of both models, shared caches, inputs of layers, and refusals."""

from pathlib import Path
from typing import Any

import pytest
from gguf_files.files import TensorEntry, scalar
from gguf_files.models import model
from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.layouts.pieces import Matrix
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError
from nearfree.gguf.header import stored_bytes
from nearfree.gguf.matrices import matrices
from nearfree.gguf.reader import read_header
from nearfree.gguf.types import BY_NAME

from decoders.files import modules_by_role, parameters, read, weights_bytes, write

_KINDS = (["sliding_attention"] * 4 + ["full_attention"]) * 7
_E4B: dict[str, Any] = {
    "vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512,
    "layer_types": _KINDS, "num_kv_shared_layers": 15, "altup_num_inputs": 4, "laurel_rank": 64,
    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
}  # fmt: skip
_E2B = {
    **_E4B, "intermediate_size": 8192, "num_hidden_layers": 30, "layer_types": _KINDS[:30],
    "num_kv_shared_layers": 10,
}  # fmt: skip
SIZES = {"E4B": _E4B, "E2B": _E2B}


@pytest.mark.parametrize(("name", "expected"), [("E4B", 6_835_235_568), ("E2B", 4_435_182_688)])
def test_the_class_has_these_parameters(tmp_path: Path, name: str, expected: int) -> None:
    """As many as Gemma3nForCausalLM of transformers 5.23 has, which makes no unused keys."""
    document = {
        "model_type": "gemma3n", "torch_dtype": "bfloat16", "audio_config": {},
        "text_config": {"model_type": "gemma3n_text", **SIZES[name]}, "vision_config": {},
    }  # fmt: skip
    path = write(tmp_path, document)
    contents = stored(path)
    assert parameters(contents) == expected
    assert [(cache.layers, cache.window) for cache in contents.cache] == [(16, 512), (4, None)]
    assert sum(cache.layers * cache.elements for cache in contents.cache) == 20 * 2 * 2 * 256
    assert read_decoder(path).layer_inputs == 256


def _unread(sizes: dict[str, Any]) -> dict[str, TensorEntry]:
    """Return the tensors of keys and values that files have of layers without a cache."""
    layers, type_ = sizes["num_hidden_layers"], BY_NAME["bf16"]
    d_model, width = sizes["hidden_size"], sizes["num_key_value_heads"] * sizes["head_dim"]
    tensors: dict[str, TensorEntry] = {}
    for layer in range(layers - sizes["num_kv_shared_layers"], layers):
        for part in ("attn_k", "attn_v"):
            name = f"blk.{layer}.{part}.weight"
            size = width * type_.row_bytes(d_model)
            tensors[name] = TensorEntry(name, (d_model, width), type_.number, size)
        name = f"blk.{layer}.attn_k_norm.weight"
        tensors[name] = TensorEntry(name, (sizes["head_dim"],), 0, 4 * sizes["head_dim"])
    return tensors


def _plain(matrix: Matrix) -> str:
    return "f32" if matrix.inputs == 1 else "bf16"


@pytest.mark.parametrize(("name", "billions"), [("E4B", 6.87), ("E2B", 4.46)])
def test_a_gguf_file_has_the_published_parameters(
    tmp_path: Path, name: str, billions: float
) -> None:
    """Those that Ollama's library says of its files: ollama/ollama, pull request 11286."""
    sizes = SIZES[name]
    metadata = {"tokenizer.ggml.tokens": None, "gemma3n.vocab_size": scalar("uint32", 262400)}
    _, path = model(
        tmp_path, "gemma3n_text", types=_plain, metadata_changes=metadata,
        tensor_changes=_unread(sizes), **sizes,
    )  # fmt: skip
    file = read_model_file(path)
    assert file.refusals == ()
    assert round(parameters(file) / 1e9, 2) == billions
    assert weights_bytes(file) == stored_bytes(read_header(path))


def test_no_product_reads_keys_of_layers_without_a_cache(tmp_path: Path) -> None:
    """The engine loads them, and its graph has no product with them."""
    sizes = {
        "num_hidden_layers": 6, "num_kv_shared_layers": 2, "hidden_size": 64, "head_dim": 16,
        "num_key_value_heads": 2,
    }  # fmt: skip
    _, path = model(tmp_path, "gemma3n_text", tensor_changes=_unread(sizes))
    header = read_header(path)
    assert "blk.5.attn_k.weight" in header.by_name
    read_layers = {matrix.layer for matrix in matrices(header) if matrix.part == "attn_k"}
    assert read_layers == {0, 1, 2, 3}
    parts = {matrix.part: matrix.count for matrix in matrices(header) if matrix.layer is None}
    assert parts == {
        "altup_proj": 2, "altup_unembd_proj": 2, "per_layer_model_proj": 1, "output": 1,
    }  # fmt: skip


def test_layers_that_share_make_queries_alone(tmp_path: Path) -> None:
    """Four layers project 8 + 2 x 2 heads of 16 elements, two 8 heads."""
    decoder = read(tmp_path, "gemma3n_text")
    kinds = {
        (kind.window, kind.shares): kind.layers
        for kind in decoder.attention
        if isinstance(kind, Grouped)
    }
    assert kinds == {
        (32, False): (0, 2), (None, False): (1, 3), (32, True): (4,), (None, True): (5,),
    }  # fmt: skip
    widths = {
        use.setting.d_ff: use.count
        for role, use in modules_by_role(decoder).items()
        if role.startswith("qkv projection")
    }
    assert widths == {192: 4, 128: 2}


def test_layers_may_differ_in_width(tmp_path: Path) -> None:
    """A list gives each layer's FFN; equal numbers are as one number."""
    decoder = read(tmp_path, "gemma3n_text", intermediate_size=[96, 96, 96, 96, 80, 80])
    assert (decoder.d_ff, decoder.ffn_widths) == (96, ((96, 4), (80, 2)))
    same = read(tmp_path, "gemma3n_text", intermediate_size=[96] * 6)
    assert same == read(tmp_path, "gemma3n_text")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": [96] * 5}, "has 5 entries for 6 layers"),
        ({"intermediate_size": [96, 0, 96, 96, 96, 96]}, "has layers without an FFN"),
        ({"altup_correct_scale": False}, "altup_correct_scale False is off"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers 7 is more than 6 layers"),
        ({"num_kv_shared_layers": 3}, "cache of one that is no full_attention"),
        ({"num_kv_shared_layers": 5}, "cache of one that is no"),
        ({"num_kv_shared_layers": ...}, "num_kv_shared_layers is missing"),
        ({"laurel_rank": ...}, "laurel_rank is missing"),
        ({"vocab_size_per_layer_input": ...}, "vocab_size_per_layer_input is missing"),
    ],
)
def test_what_engines_do_not_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """A file is refused by its key where engines take for granted what it does not say."""
    with pytest.raises(RefusedError, match=message):
        read(tmp_path, "gemma3n_text", **changes)
