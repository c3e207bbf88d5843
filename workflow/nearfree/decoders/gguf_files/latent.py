"""Keys of architectures with latent attention.

Source: as of `architectures`.
"""

from typing import Any

from nearfree.decoders.gguf_files.metadata import (
    experts_of,
    head_dim,
    uniform_number,
    weights_of_experts,
)
from nearfree.decoders.keys import Keys
from nearfree.gguf.header import GgufHeader

LATENT = ("deepseek2",)
"""Architectures whose lengths of keys and values are those of what is cached, not of a head."""
SIGMOID = 2
"""The value of expert_gating_func for scores that are sigmoids."""


def minicpm3(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of MiniCPM3; a value's width is said by the shape of a tensor alone."""
    rope_dim, output = keys.whole("rope.dimension_count"), "blk.0.attn_output.weight"
    heads, tensors = uniform_number(keys, "attention.head_count"), header.by_name
    return {
        "model_type": "minicpm3",
        "q_lora_rank": keys.whole("attention.q_lora_rank"),
        "kv_lora_rank": keys.whole("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": head_dim(keys) - rope_dim,
        "v_head_dim": tensors[output].dims[0] // heads if output in tensors else None,
    }


def deepseek2(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of DeepSeek V2, or of V3 where scores are sigmoids.

    Kimi K2 and GLM-4.7 Flash have V3's layers under this name. Files from before April 2025, whose
    keys and values are cached apart, give a head's widths as key_length and value_length.
    """
    widths = ["attention.key_length", "attention.value_length"]
    if keys.has("attention.key_length_mla"):
        widths = [f"{key}_mla" for key in widths]
    key_width, value_width, rope_dim = keys.wholes(*widths, "rope.dimension_count")
    if key_width <= rope_dim:
        raise keys.wrong(widths[0], f"is not more than rope.dimension_count {rope_dim}")
    has_rank = "blk.0.attn_q_a.weight" in header.by_name
    scored = keys.whole("expert_gating_func", least=0, default=1) == SIGMOID
    return {
        **experts_of(keys, "n_routed_experts"),
        "model_type": "deepseek_v3" if scored else "deepseek_v2",
        "hidden_act": "silu",
        "intermediate_size": uniform_number(keys, "feed_forward_length"),
        "moe_intermediate_size": uniform_number(keys, "expert_feed_forward_length"),
        "n_shared_experts": keys.whole("expert_shared_count", least=0),
        "first_k_dense_replace": keys.whole("leading_dense_block_count", least=0),
        **weights_of_experts(keys),
        "q_lora_rank": keys.whole("attention.q_lora_rank") if has_rank else None,
        "kv_lora_rank": keys.whole("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key_width - rope_dim,
        "v_head_dim": value_width,
    }
