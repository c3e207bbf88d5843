"""GGUF files of the small models of `decoders.files`, as converters write them, without data."""

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from decoders.files import SMALL, write
from nearfree.decoders.gguf_files.architectures import LAYER_NORMED
from nearfree.decoders.gguf_files.names import tensor_names
from nearfree.decoders.layouts.pieces import Matrix
from nearfree.decoders.weights import stored
from nearfree.gguf.types import BY_NAME

from gguf_files.files import TensorEntry, array, scalar, string, write_gguf

ARCHITECTURES = {
    "llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "phi3": "phi3", "gpt_oss": "gpt-oss", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
    "exaone": "exaone", "internlm2": "internlm2", "phi": "phi2", "gpt_neox": "gptneox",
    "stablelm": "stablelm", "minicpm": "minicpm", "jais2": "jais2", "deepseek": "deepseek",
    "gemma3n_text": "gemma3n", "minicpm3": "minicpm3", "gemma": "gemma", "granite": "granite",
    "glm4_moe": "glm4moe", "seed_oss": "seed_oss", "smollm3": "smollm3", "starcoder2": "starcoder2",
    "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "qwen3_next": "qwen3next", "gemma4_text": "gemma4", "glm4": "glm4",
    "minimax_m2": "minimax-m2", "olmo2": "olmo2", "olmo3": "olmo2",
    "bailing_moe_v2": "bailingmoe2", "nemotron_h": "nemotron_h_moe",
}  # fmt: skip
_KEYS = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "num_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length", "sliding_window": "attention.sliding_window",
    "num_local_experts": "expert_count", "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count", "top_k_experts": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "conv_L_cache": "shortconv.l_cache", "num_dense_layers": "leading_dense_block_count",
    "n_routed_experts": "expert_count", "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "altup_num_inputs": "altup.num_inputs", "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank", "qk_rope_head_dim": "rope.dimension_count",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "linear_conv_kernel_dim": "ssm.conv_kernel", "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count", "linear_num_value_heads": "ssm.time_step_rank",
    "full_attention_interval": "full_attention_interval",
    "num_shared_experts": "expert_shared_count",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "mamba_num_heads": "ssm.time_step_rank", "ssm_state_size": "ssm.state_size",
    "n_groups": "ssm.group_count", "moe_latent_size": "moe_latent_size",
    "n_group": "expert_group_count", "topk_group": "expert_group_used_count",
}  # fmt: skip
Types = Callable[[Matrix], str]


def plain(matrix: Matrix) -> str:
    """Return the type of a matrix in a file of BF16: vectors and routers are in F32."""
    return "f32" if matrix.inputs == 1 or matrix.kind == "router" else "bf16"


def _nemotron(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what Nemotron-H's metadata say of its pieces, by layer, and of its mixers."""
    letters = values["hybrid_override_pattern"]
    dense, experts = (values[key] for key in ("intermediate_size", "moe_intermediate_size"))
    widths = [{"-": dense, "E": experts}.get(letter, 0) for letter in letters]
    kv_heads = [values["num_key_value_heads"] * (letter == "*") for letter in letters]
    inner = values["mamba_num_heads"] * values["mamba_head_dim"]
    return {
        "nemotron_h_moe.feed_forward_length": array("int32", widths),
        "nemotron_h_moe.attention.head_count_kv": array("int32", kv_heads),
        "nemotron_h_moe.ssm.inner_size": scalar("uint32", inner),
        "nemotron_h_moe.ssm.conv_kernel": scalar("uint32", values.get("conv_kernel", 4)),
        "nemotron_h_moe.expert_shared_count": scalar("uint32", 1),
    }


def _gemma4(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what Gemma 4's metadata say of its two kinds of heads and its two widths of FFNs."""
    entries = {
        f"gemma4.attention.{part}_length{ending}": scalar("uint32", values[width])
        for ending, width in (("", "global_head_dim"), ("_swa", "head_dim"))
        for part in ("key", "value")
    }
    if values.get("use_double_wide_mlp"):
        narrow, shared = values["intermediate_size"], values["num_kv_shared_layers"]
        widths = [narrow] * (values["num_hidden_layers"] - shared) + [2 * narrow] * shared
        entries["gemma4.feed_forward_length"] = array("int32", widths)
    if "num_global_key_value_heads" in values:
        by_kind = {
            "sliding_attention": values["num_key_value_heads"],
            "full_attention": values["num_global_key_value_heads"],
        }
        counts = [by_kind[kind] for kind in values["layer_types"]]
        entries["gemma4.attention.head_count_kv"] = array("int32", counts)
    return entries


def metadata(kind: str, values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the metadata of a small model, by key."""
    name = ARCHITECTURES[kind]
    entries = {
        f"{name}.{_KEYS[key]}": scalar("uint32", value)
        for key, value in values.items()
        if key in _KEYS and value is not None
    }
    if kind in ("gpt_oss", "minimax_m2"):
        width = values["intermediate_size"]
        entries[f"{name}.expert_feed_forward_length"] = scalar("uint32", width)
    if kind == "lfm2":  # the width as it is, without the model class's rounding rule
        entries[f"{name}.feed_forward_length"] = scalar("uint32", 96)
    if kind in ("lfm2", "lfm2_moe"):
        kinds = values.get("layer_types") or [
            "full_attention" if layer in values["full_attn_idxs"] else "conv" for layer in range(6)
        ]
        heads = [2 * (kind == "full_attention") for kind in kinds]
        entries[f"{name}.attention.head_count_kv"] = array("int32", heads)
    if kind == "nemotron_h":
        entries |= _nemotron(values)
    if kind == "bailing_moe_v2":
        entries[f"{name}.expert_gating_func"] = scalar("uint32", 2)
    if "linear_value_head_dim" in values:
        width = values["linear_value_head_dim"] * values["linear_num_value_heads"]
        entries[f"{name}.ssm.inner_size"] = scalar("uint32", width)
    if name == "deepseek2":
        nope_dim, rope_dim, latent = (
            values[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
        )
        lengths = {
            "key_length": latent + rope_dim, "value_length": latent,
            "key_length_mla": nope_dim + rope_dim, "value_length_mla": values["v_head_dim"],
            "head_count_kv": 1,
        }  # fmt: skip
        for key, length in lengths.items():
            entries[f"{name}.attention.{key}"] = scalar("uint32", length)
        entries[f"{name}.expert_gating_func"] = scalar("uint32", 1 + (kind == "deepseek_v3"))
    if kind == "minicpm3":
        width = values["qk_nope_head_dim"] + values["qk_rope_head_dim"]
        entries[f"{name}.attention.key_length"] = scalar("uint32", width)
    if kind == "gemma4_text":
        entries |= _gemma4(values)
    if kind in ("gemma3n_text", "gemma4_text"):
        windowed = [kind == "sliding_attention" for kind in values["layer_types"]]
        entries[f"{name}.attention.sliding_window_pattern"] = array("bool", windowed)
    epsilon = "layer_norm_epsilon" if name in LAYER_NORMED else "layer_norm_rms_epsilon"
    return {
        "general.architecture": string(name),
        **entries,
        f"{name}.attention.{epsilon}": scalar("float32", 1e-6),
        f"{name}.rope.freq_base": scalar("float32", 10000.0),
        "tokenizer.ggml.tokens": array("text", ["<t>"] * values["vocab_size"]),
    }


def tensors(config: Path, types: Types = plain) -> dict[str, TensorEntry]:
    """Return the header entries of the tensors of a config.json, by name."""
    stored_parts = stored(config)
    shapes = {}
    for matrix in stored_parts.weights:
        type_ = BY_NAME[types(matrix)]
        for layer in matrix.layers or (None,):
            names = tensor_names(stored_parts.model_type, matrix.name, layer)
            outputs = matrix.outputs // len(names)
            sizes = (outputs,) if matrix.inputs == 1 else (matrix.inputs, outputs)
            dims = (*sizes, matrix.copies) if matrix.copies > 1 else sizes
            size = prod(dims[1:]) * type_.row_bytes(dims[0])
            shapes |= {name: TensorEntry(name, dims, type_.number, size) for name in names}
    return shapes


def model(
    folder: Path,
    kind: str,
    *,
    types: Types = plain,
    metadata_changes: Mapping[str, bytes | None] | None = None,
    tensor_changes: Mapping[str, TensorEntry | None] | None = None,
    **changes: Any,
) -> tuple[Path, Path]:
    """Write a small model as config.json and as GGUF file, and return both paths.

    `changes` are of the config.json and what follows from it; `metadata_changes` and
    `tensor_changes` are of the GGUF file alone, where None removes a key or a tensor.
    """
    values = {**SMALL[kind], **changes}
    config = write(folder, values)
    keys = {**metadata(kind, values), **(metadata_changes or {})}
    names = {**tensors(config, types), **(tensor_changes or {})}
    path = folder / "small.gguf"
    write_gguf(
        path,
        [(key, value) for key, value in keys.items() if value is not None],
        [name for name in names.values() if name is not None],
    )
    return config, path
