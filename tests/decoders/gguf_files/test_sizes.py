"""Numbers of parameters of GGUF files of published models."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
from gguf_files.files import TensorEntry, scalar
from gguf_files.models import ARCHITECTURES, model
from nearfree.decoders.model_file import read_model_file

from decoders.files import parameters, weights_bytes

_PHI_2 = {
    "vocab_size": 51200, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32,
    "num_attention_heads": 32,
}  # fmt: skip


def test_phi_2_has_the_published_size(tmp_path: Path) -> None:
    """The engine says 2.78 B parameters and 10.36 GiB in F32: ggml-org/llama.cpp, issue 4437."""
    _, path = model(tmp_path, "phi", types=lambda matrix: "f32", **_PHI_2)  # noqa: ARG005
    file = read_model_file(path)
    assert parameters(file) == 2_779_683_840
    assert round(weights_bytes(file) / 2**30, 2) == 10.36
    assert file.decoder is not None
    assert (file.decoder.model_type, file.decoder.gated) == ("phi", False)


@pytest.mark.parametrize(
    ("kind", "sizes", "published"),
    [
        (
            "gemma",
            {"vocab_size": 256000, "hidden_size": 2048, "intermediate_size": 16384,
             "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1,
             "head_dim": 256},
            2_506_172_416,
        ),
        (
            "starcoder2",
            {"vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
             "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2},
            3_030_371_328,
        ),
        (
            "smollm3",
            {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
             "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4},
            3_075_098_624,
        ),
        (
            "olmo2",
            {"vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 11008,
             "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32},
            7_298_617_344,
        ),
    ],
)  # fmt: skip
def test_sizes_are_the_published_ones(
    tmp_path: Path, kind: str, sizes: dict[str, Any], published: int
) -> None:
    """Gemma 2B, SmolLM3-3B and OLMo-2-7B have as many as their repositories say.

    The 3 billion of StarCoder2-3B are published without their last digits, which are counted.
    """
    name = ARCHITECTURES[kind]
    metadata = {
        "tokenizer.ggml.tokens": None,
        f"{name}.vocab_size": scalar("uint32", sizes["vocab_size"]),
    }
    _, path = model(tmp_path, kind, metadata_changes=metadata, **sizes)
    file = read_model_file(path)
    assert file.refusals == ()
    assert parameters(file) == published


_QWEN_35 = {
    "vocab_size": 248320, "head_dim": 256, "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
}  # fmt: skip
_GEMMA_4 = {"vocab_size": 262144, "head_dim": 256, "global_head_dim": 512}
_FIVE_OF_SIX = [*["sliding_attention"] * 5, "full_attention"]
_BENCHED: list[tuple[str, dict[str, Any], str]] = [
    (
        "qwen3_5_text",
        {
            **_QWEN_35, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
            "num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_value_heads": 48,
        },
        "26.90",
    ),
    (
        "qwen3_5_moe_text",
        {
            **_QWEN_35, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
            "num_key_value_heads": 2, "linear_num_value_heads": 32, "num_experts": 256,
            "num_experts_per_tok": 8, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        "34.66",
    ),
    (
        "qwen3_next",
        {
            **_QWEN_35, "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32,
            "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        "79.67",
    ),
    (
        "deepseek_v3",
        {
            "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
            "num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512,
            "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3,
        },
        "671.03",
    ),
    (
        "glm4",
        {
            "vocab_size": 151552, "hidden_size": 6144, "intermediate_size": 23040,
            "num_hidden_layers": 61, "num_attention_heads": 48, "num_key_value_heads": 2,
            "head_dim": 128, "attention_bias": False,
        },
        "32.57",
    ),
    (
        "bailing_moe_v2",
        {
            "vocab_size": 157184, "hidden_size": 4096, "intermediate_size": 9216,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 1024, "num_shared_experts": 1, "first_k_dense_replace": 1,
            "use_qk_norm": True,
        },
        "102.89",
    ),
    (
        "nemotron_h",
        {
            "vocab_size": 131072, "hidden_size": 2688, "num_hidden_layers": 52,
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
            "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
        },
        "31.58",
    ),
    (
        "minimax_m2",
        {
            "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
            "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
            "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8,
            "use_qk_norm": True,
        },
        "228.69",
    ),
    (
        "gemma4_text",
        {
            **_GEMMA_4, "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
            "num_key_value_heads": 8, "num_attention_heads": 16, "attention_k_eq_v": True,
            "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 128,
            "top_k_experts": 8, "moe_intermediate_size": 704, "layer_types": [*_FIVE_OF_SIX * 5],
        },
        "25.23",
    ),
    (
        "gemma4_text",
        {
            **_GEMMA_4, "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48,
            "num_key_value_heads": 8, "num_attention_heads": 16, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "layer_types": [*_FIVE_OF_SIX * 8],
        },
        "11.91",
    ),
    (
        "gemma4_text",
        {
            **_GEMMA_4, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
            "num_key_value_heads": 1, "num_attention_heads": 8, "use_double_wide_mlp": True,
            "num_kv_shared_layers": 20, "hidden_size_per_layer_input": 256,
            "layer_types": [*_FIVE_OF_SIX[1:] * 7],
        },
        "4.65",
    ),
]  # fmt: skip
"""Sizes of Qwen3.6-27B, Qwen3.5-35B-A3B, Qwen3-Next-80B-A3B, DeepSeek-R1, GLM-4-32B-0414,
Ling-flash-2.0, Nemotron-3-Nano-30B-A3B, MiniMax-M2 and Gemma 4 26B-A4B, 12B and E2B, with the
billions of parameters that llama-bench prints of their files, without layers that draft."""


@pytest.mark.parametrize(("kind", "sizes", "published"), _BENCHED)
def test_sizes_are_those_that_the_engine_prints(
    tmp_path: Path, kind: str, sizes: dict[str, Any], published: str
) -> None:
    """Its bench adds up the elements of all tensors, and so do the weights here.

    Those of E2B include keys and values of layers that share a cache and do not read them.
    """
    name, vocabulary = ARCHITECTURES[kind], scalar("uint32", sizes["vocab_size"])
    metadata = {"tokenizer.ggml.tokens": None, f"{name}.vocab_size": vocabulary}
    unread: dict[str, TensorEntry | None] = {}
    layers, shared = sizes["num_hidden_layers"], sizes.get("num_kv_shared_layers", 0)
    for layer in range(layers - shared, layers):
        is_full = sizes["layer_types"][layer] == "full_attention"
        dims = (sizes["hidden_size"], sizes["global_head_dim" if is_full else "head_dim"])
        for tensor in (f"blk.{layer}.attn_k.weight", f"blk.{layer}.attn_v.weight"):
            unread[tensor] = TensorEntry(tensor, dims, 0, 4 * prod(dims))
    _, path = model(tmp_path, kind, metadata_changes=metadata, tensor_changes=unread, **sizes)
    file = read_model_file(path)
    assert file.refusals == ()
    assert f"{parameters(file) / 1e9:.2f}" == published


def test_glm_4_5_air_has_its_106_billion(tmp_path: Path) -> None:
    """Its model card says 106 billion parameters, which its layer that drafts is not among."""
    sizes = {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944,
        "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
        "head_dim": 128, "attention_bias": True, "n_routed_experts": 128, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
    }  # fmt: skip
    metadata = {"tokenizer.ggml.tokens": None, "glm4moe.vocab_size": scalar("uint32", 151552)}
    _, path = model(tmp_path, "glm4_moe", metadata_changes=metadata, **sizes)
    file = read_model_file(path)
    assert file.refusals == ()
    assert int(parameters(file) / 1e9) == 106
