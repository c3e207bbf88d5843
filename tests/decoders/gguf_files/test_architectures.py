"""Architectures of GGUF files: joint tensors, what is read of them, and what stays refused."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
from gguf_files.files import TensorEntry, array, scalar, string
from gguf_files.models import ARCHITECTURES, model
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.gguf_files.config import gguf_values
from nearfree.decoders.layouts.pieces import Matrix
from nearfree.decoders.model_file import read_model_file
from nearfree.gguf.header import stored_bytes
from nearfree.gguf.matrices import matrices
from nearfree.gguf.reader import read_header
from nearfree.gguf.types import BY_NAME

from decoders.files import parameters, weights_bytes


def _types(matrix: Matrix) -> str:
    """Return a type with blocks for each matrix whose rows have whole blocks of it."""
    return "f32" if matrix.inputs == 1 or matrix.inputs % 32 else "q8_0"


def test_gates_of_experts_may_be_in_one_tensor_with_what_they_gate(tmp_path: Path) -> None:
    """A file with a joint tensor is the model of the file with two, to the byte."""
    _, apart = model(tmp_path, "qwen3_5_moe_text", types=_types)
    decoder, whole = read_decoder(apart), read_model_file(apart)
    changes: dict[str, TensorEntry | None] = {}
    for name, tensor in read_header(apart).by_name.items():
        if "ffn_gate_exps" in name:
            joint, (columns, rows, experts) = name.replace("gate", "gate_up"), tensor.dims
            size = 2 * rows * experts * tensor.type.row_bytes(columns)
            dims = (columns, 2 * rows, experts)
            changes[joint] = TensorEntry(joint, dims, tensor.type.number, size)
            changes |= dict.fromkeys((name, name.replace("gate", "up")))
    _, path = model(tmp_path, "qwen3_5_moe_text", types=_types, tensor_changes=changes)
    file, header = read_model_file(path), read_header(path)
    assert file.refusals == ()
    assert read_decoder(path) == decoder
    assert weights_bytes(file) == weights_bytes(whole) == stored_bytes(header)
    (joint,) = {matrix.count for matrix in matrices(header) if matrix.part == "ffn_gate_up_exps"}
    assert joint == 4


def _joint(path: Path) -> dict[str, TensorEntry | None]:
    """Return the changes that join query, key and value of each layer of a file."""
    changes: dict[str, TensorEntry | None] = {}
    tensors = read_header(path).by_name
    for name, tensor in tensors.items():
        if ".attn_q." in name:
            of_keys = tensors[name.replace("attn_q", "attn_k")]
            rows = tensor.dims[-1] + 2 * of_keys.dims[-1]
            dims, joint = (*tensor.dims[:-1], rows), name.replace("attn_q", "attn_qkv")
            size = prod(dims[1:]) * tensor.type.row_bytes(dims[0])
            changes[joint] = TensorEntry(joint, dims, tensor.type.number, size)
            changes |= dict.fromkeys(name.replace("attn_q", f"attn_{part}") for part in "qkv")
    return changes


@pytest.mark.parametrize("kind", ["phi", "llama", "jais2"])
def test_query_key_and_value_may_be_one_tensor(tmp_path: Path, kind: str) -> None:
    """A file with a joint tensor is the model of the file with three, to the byte."""
    _, apart = model(tmp_path, kind, types=_types)
    decoder, whole, joint = read_decoder(apart), read_model_file(apart), _joint(apart)
    _, path = model(tmp_path, kind, types=_types, tensor_changes=joint)
    file = read_model_file(path)
    assert file.refusals == ()
    assert read_decoder(path) == decoder
    assert weights_bytes(file) == weights_bytes(whole) == stored_bytes(read_header(path))


def test_a_joint_tensor_of_other_sizes_is_refused(tmp_path: Path) -> None:
    """One row too many is no part of query, key or value."""
    _, apart = model(tmp_path, "phi")
    name = "blk.0.attn_qkv.weight"
    entry = TensorEntry(name, (64, 193), BY_NAME["bf16"].number, 2 * 64 * 193)
    _, path = model(tmp_path, "phi", tensor_changes={**_joint(apart), name: entry})
    reasons = [str(refusal) for refusal in read_model_file(path).refusals]
    assert any("blk.0.attn_q.weight is missing" in reason for reason in reasons)


def test_layers_that_draft_are_left_out(tmp_path: Path) -> None:
    """A file has them behind its layers; they are no weights, and no product reads them."""
    config, whole = model(tmp_path, "glm4_moe")
    expected = read_model_file(whole)
    names = ("blk.6.nextn.eh_proj.weight", "blk.6.attn_q.weight")
    drafting = {name: TensorEntry(name, (128, 64), 0, 4 * 128 * 64) for name in names}
    metadata = {
        "glm4moe.block_count": scalar("uint32", 7),
        "glm4moe.nextn_predict_layers": scalar("uint32", 1),
    }
    _, path = model(tmp_path, "glm4_moe", metadata_changes=metadata, tensor_changes=drafting)
    file = read_model_file(path)
    assert file.refusals == ()
    assert read_decoder(path) == read_decoder(config)
    assert weights_bytes(file) == weights_bytes(expected)
    assert file.drafts
    assert any("num_nextn_predict_layers" in note for note in file.notes)
    assert {matrix.layer for matrix in matrices(read_header(path))} == {None, *range(6)}


@pytest.mark.parametrize("drafting", [7, 6])
def test_a_file_of_layers_that_draft_alone_is_refused(tmp_path: Path, drafting: int) -> None:
    """Some layer must be left that does not."""
    metadata = {"glm4moe.nextn_predict_layers": scalar("uint32", drafting)}
    _, path = model(tmp_path, "glm4_moe", metadata_changes=metadata)
    reasons = [str(refusal) for refusal in read_model_file(path).refusals]
    assert any(f"{drafting} is not less than 6 layers" in reason for reason in reasons)


def test_a_delta_net_may_have_one_product_for_all_its_inputs(tmp_path: Path) -> None:
    """The first files of Qwen3-Next have it; the model and its bytes are the same."""
    config, apart = model(tmp_path, "qwen3_next")
    changes: dict[str, TensorEntry | None] = {}
    for layer in (0, 1, 3, 4):
        joint = f"blk.{layer}.ssm_in.weight"
        changes[joint] = TensorEntry(joint, (64, 160), BY_NAME["bf16"].number, 2 * 64 * 160)
        changes |= dict.fromkeys(f"blk.{layer}.attn_{part}.weight" for part in ("qkv", "gate"))
    expected = read_model_file(apart)
    _, path = model(tmp_path, "qwen3_next", tensor_changes=changes)
    file, header = read_model_file(path), read_header(path)
    assert file.refusals == ()
    assert read_decoder(path) == read_decoder(config)
    assert weights_bytes(file) == weights_bytes(expected) == stored_bytes(header)
    parts = {matrix.part for matrix in matrices(header) if matrix.layer == 0}
    assert {"ssm_in", "ssm_ba", "ssm_out"} <= parts
    assert "ssm_conv1d" not in parts


_GEMMA_4_MOE = {
    "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24,
    "attention_k_eq_v": True, "num_global_key_value_heads": 1,
}  # fmt: skip
_GEMMA_4_SHARED = {
    "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 12,
}  # fmt: skip


@pytest.mark.parametrize("changes", [_GEMMA_4_MOE, _GEMMA_4_SHARED])
def test_gemma_4_is_the_model_of_its_config(tmp_path: Path, changes: dict[str, Any]) -> None:
    """With experts and keys that are values, and with layers that share a cache."""
    config, path = model(tmp_path, "gemma4_text", **changes)
    file, of_config = read_model_file(path), read_model_file(config)
    assert file.refusals == ()
    assert read_decoder(path) == read_decoder(config)
    assert file.cache == of_config.cache
    assert parameters(file) == parameters(of_config)
    assert weights_bytes(file) == stored_bytes(read_header(path))


def test_factors_of_gemma_4_layers_are_no_weights(tmp_path: Path) -> None:
    """Nor are keys of a layer that shares a cache, which some converters keep."""
    _, path = model(tmp_path, "gemma4_text", **_GEMMA_4_SHARED)
    names = {"blk.5.attn_k.weight": 64 * 64, "blk.0.layer_output_scale.weight": 1}
    names["rope_freqs.weight"] = 16
    changes = {name: TensorEntry(name, (size,), 0, 4 * size) for name, size in names.items()}
    changes["blk.5.attn_k.weight"] = TensorEntry("blk.5.attn_k.weight", (64, 64), 0, 4 * 64 * 64)
    expected = weights_bytes(read_model_file(path))
    _, path = model(tmp_path, "gemma4_text", tensor_changes=changes, **_GEMMA_4_SHARED)
    file, header = read_model_file(path), read_header(path)
    assert file.refusals == ()
    assert weights_bytes(file) == expected + 4 * sum(names.values()) == stored_bytes(header)
    products = [matrix for matrix in matrices(header) if matrix.part in ("attn_k", "attn_v")]
    assert {matrix.layer for matrix in products} == {0, 1, 2, 3}


def _absorbed(path: Path, heads: int, nope_dim: int) -> dict[str, TensorEntry | None]:
    """Return the changes that split keys and values of latents as later converters do."""
    changes: dict[str, TensorEntry | None] = {}
    for name, tensor in read_header(path).by_name.items():
        if "attn_kv_b" not in name:
            continue
        latent, outputs = tensor.dims
        value_dim, size = outputs // heads - nope_dim, tensor.size_bytes
        shapes = {"k_b": (nope_dim, latent, heads), "v_b": (latent, value_dim, heads)}
        for part, dims in shapes.items():
            new = name.replace("kv_b", part)
            changes[new] = TensorEntry(
                new, dims, tensor.type.number, size * prod(dims) // outputs // latent
            )
        changes[name] = None
    return changes


@pytest.mark.parametrize("rank", [None, 20])
def test_keys_and_values_of_latents_may_be_apart(tmp_path: Path, rank: int | None) -> None:
    """Files from April 2025 on have them by head; the model and its bytes are the same."""
    config, apart = model(tmp_path, "deepseek_v3", q_lora_rank=rank)
    joint = read_model_file(apart)
    changes = _absorbed(apart, heads=8, nope_dim=6)
    _, path = model(tmp_path, "deepseek_v3", q_lora_rank=rank, tensor_changes=changes)
    file, header = read_model_file(path), read_header(path)
    assert file.refusals == ()
    assert read_decoder(path) == read_decoder(config)
    assert weights_bytes(file) == weights_bytes(joint) == stored_bytes(header)
    of_layer = {matrix.part: matrix for matrix in matrices(header) if matrix.layer == 0}
    of_keys, of_values = of_layer["attn_k_b"], of_layer["attn_v_b"]
    assert (of_keys.count, of_keys.rows, of_keys.columns) == (8, 12, 6)
    assert (of_values.count, of_values.rows, of_values.columns) == (8, 10, 12)


def test_keys_of_latents_for_other_heads_are_refused(tmp_path: Path) -> None:
    """Four heads of twice the width have as many elements, and are no part of this model."""
    _, apart = model(tmp_path, "deepseek_v3")
    name = "blk.0.attn_k_b.weight"
    changes = _absorbed(apart, heads=8, nope_dim=6)
    changes[name] = TensorEntry(name, (12, 12, 4), BY_NAME["bf16"].number, 2 * 12 * 12 * 4)
    _, path = model(tmp_path, "deepseek_v3", tensor_changes=changes)
    reasons = [str(refusal) for refusal in read_model_file(path).refusals]
    assert any("12 x 12 x 4 and 12 x 10 x 8 elements" in reason for reason in reasons)


def test_lengths_of_early_files_are_those_of_heads(tmp_path: Path) -> None:
    """Files that do not say that keys are cached as latents give a head's widths."""
    lengths = {"key_length": 10, "value_length": 10, "head_count_kv": 8}
    metadata = {
        f"deepseek2.attention.{key}": scalar("uint32", value) for key, value in lengths.items()
    }
    metadata |= dict.fromkeys(
        f"deepseek2.attention.{key}_mla" for key in ("key_length", "value_length")
    )
    config, path = model(tmp_path, "deepseek_v2", metadata_changes=metadata)
    assert read_decoder(path) == read_decoder(config)
    assert read_model_file(path).refusals == ()


def test_scaling_of_latent_attention_is_that_of_its_config(tmp_path: Path) -> None:
    """Files give a tenth of mscale_all_dim, which mscale equals in all published models."""
    scaling = {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
        "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
    }  # fmt: skip
    prefix = "deepseek2.rope.scaling."
    metadata = {
        f"{prefix}type": string("yarn"),
        f"{prefix}factor": scalar("float32", 40.0),
        f"{prefix}original_context_length": scalar("uint32", 4096),
        f"{prefix}yarn_log_multiplier": scalar("float32", 0.0707),
    }
    changes = {"rope_scaling": scaling, "n_group": 4, "topk_group": 2}
    config, path = model(tmp_path, "deepseek_v2", metadata_changes=metadata, **changes)
    assert read_decoder(path) == read_decoder(config)
    values = gguf_values(read_header(path))
    assert (values["n_group"], values["topk_group"]) == (4, 2)
    assert values["rope_scaling"]["mscale"] == values["rope_scaling"]["mscale_all_dim"] == 0.707


@pytest.mark.parametrize("latent", [{}, {"moe_latent_size": 32}])
def test_vectors_of_mixers_may_have_an_axis_for_groups(
    tmp_path: Path, latent: dict[str, int]
) -> None:
    """Files of Nemotron 3 have them so; they are vectors, and no product reads them."""
    config, flat = model(tmp_path, "nemotron_h", **latent)
    changes: dict[str, TensorEntry | None] = {}
    for name, tensor in read_header(flat).by_name.items():
        if name.endswith((".ssm_a", ".ssm_d", ".ssm_norm.weight")):
            (size,), groups = tensor.dims, 2
            dims = (size // groups, groups) if "norm" in name else (1, size)
            changes[name] = TensorEntry(name, dims, tensor.type.number, tensor.size_bytes)
    name = "blk.2.exp_probs_b.bias"
    changes[name] = TensorEntry(name, (4,), 0, 16)
    _, path = model(tmp_path, "nemotron_h", tensor_changes=changes, **latent)
    file, header = read_model_file(path), read_header(path)
    assert file.refusals == ()
    assert read_decoder(path) == read_decoder(config)
    assert weights_bytes(file) == stored_bytes(header)
    by_layer = {
        layer: {matrix.part for matrix in matrices(header) if matrix.layer == layer}
        for layer in range(4)
    }
    experts = {"ffn_gate_inp", "ffn_up_exps", "ffn_down_exps", "ffn_up_shexp", "ffn_down_shexp"}
    assert by_layer == {
        0: {"ssm_in", "ssm_out"},
        1: {"ffn_up", "ffn_down"},
        2: experts | ({"ffn_latent_down", "ffn_latent_up"} if latent else set()),
        3: {"attn_q", "attn_k", "attn_v", "attn_output"},
    }


@pytest.mark.parametrize("kind", ["glm4", "minimax_m2"])
def test_a_part_of_a_head_may_rotate(tmp_path: Path, kind: str) -> None:
    """Files say how many elements do, and config.json which part."""
    metadata = {f"{ARCHITECTURES[kind]}.rope.dimension_count": scalar("uint32", 8)}
    config, path = model(tmp_path, kind, metadata_changes=metadata, partial_rotary_factor=0.5)
    assert gguf_values(read_header(path))["partial_rotary_factor"] == 0.5
    assert read_decoder(path) == read_decoder(config)
    assert read_model_file(path).refusals == ()


def test_products_of_a_delta_net_are_read_and_its_convolution_is_not(tmp_path: Path) -> None:
    """Qwen3.5's recurrent layers have five products each; the others attend."""
    _, path = model(tmp_path, "qwen3_5_text")
    parts = {matrix.part for matrix in matrices(read_header(path)) if matrix.layer == 0}
    ffn = {"ffn_gate", "ffn_up", "ffn_down"}
    assert parts - ffn == {"attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out"}
    marks = array("bool", [False] + [True] * 5)
    changes = {"qwen35.attention.recurrent_layers": marks}
    _, path = model(tmp_path, "qwen3_5_text", metadata_changes=changes)
    assert gguf_values(read_header(path))["layer_types"] == [
        "full_attention",
        *["linear_attention"] * 5,
    ]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (
            "qwen3_5_text",
            {"metadata_changes": {"qwen35.ssm.inner_size": scalar("uint32", 63)}},
            "qwen35.ssm.inner_size 63 is no multiple of 4 heads",
        ),
        (
            "qwen3_5_text",
            {"metadata_changes": {"qwen35.attention.recurrent_layers": array("bool", [True])}},
            "has 1 entries for 6 layers",
        ),
        (
            "gemma4_text",
            {"metadata_changes": {"gemma4.attention.head_count_kv": array("int32", [2, 1] * 3)}},
            "differs by layer beside blk.1.attn_v.weight",
        ),
        (
            "gemma4_text",
            {"metadata_changes": {"gemma4.attention.head_count_kv": array("int32", [2, 1, 1] * 2)}},
            "does not give one number for each kind of layers",
        ),
        (
            "gemma4_text",
            {"metadata_changes": {"gemma4.feed_forward_length": array("int32", [96, 80] * 3)}},
            "is not what the model's class has",
        ),
        (
            "gemma4_text",
            {"metadata_changes": {"gemma4.attention.value_length_swa": scalar("uint32", 8)}},
            "gemma4.attention.value_length_swa 8 is not the key_length 16",
        ),
        (
            "nemotron_h",
            {"metadata_changes": {
                "nemotron_h_moe.feed_forward_length": array("int32", [96, 96, 24, 0, 80, 24])
            }},
            "gives dense FFNs of several widths",
        ),
        (
            "nemotron_h",
            {"metadata_changes": {"nemotron_h_moe.feed_forward_length": array("int32", [0, 96])}},
            "has 2 entries for 6 layers",
        ),
        (
            "deepseek_v2",
            {"metadata_changes": {"deepseek2.attention.key_length_mla": scalar("uint32", 4)}},
            "attention.key_length_mla 4 is not more than rope.dimension_count 4",
        ),
        (
            "stablelm",
            {"tensor_changes": dict.fromkeys(
                f"blk.{layer}.ffn_norm.{end}" for layer in range(6) for end in ("weight", "bias")
            )},
            "use_parallel_residual True is set",
        ),
        (
            "minicpm",
            {"metadata_changes": {"minicpm.expert_count": scalar("uint32", 8)}},
            "num_experts 8 gives layers experts",
        ),
        (
            "granite",
            {"metadata_changes": {"granite.expert_count": scalar("uint32", 32)}},
            "granite.expert_count 32 gives layers experts",
        ),
        (
            "phi",
            {"metadata_changes": {"phi2.attention.layer_norm_epsilon": None}},
            "phi2.attention.layer_norm_epsilon is missing",
        ),
    ],
)  # fmt: skip
def test_what_a_class_does_not_run_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    """What files say by their tensors is refused as in a config.json, and so is a lack."""
    _, path = model(tmp_path, kind, **changes)
    assert any(message in str(refusal) for refusal in read_model_file(path).refusals)
