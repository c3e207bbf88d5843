"""Keys of architectures in which some layers have a state or a convolution instead of attention.

Source: as of `architectures`.
"""

from typing import Any

from nearfree.decoders.gguf_files.metadata import (
    ANEW,
    experts_of,
    layers_of,
    qwen_moe,
    uniform_number,
    weights_of_experts,
)
from nearfree.decoders.keys import Keys
from nearfree.gguf.header import GgufHeader

KV_HEADS = "attention.head_count_kv"
OF_ONE_PIECE = ("nemotron_h", "nemotron_h_moe")
"""Architectures whose layers each have a mixer, attention or an FFN alone."""
SOME_ATTEND = ("lfm2", "lfm2moe", *OF_ONE_PIECE)
"""Architectures in which a layer without key heads has a short convolution, a state or an FFN."""


def kv_heads_by_layer(keys: Keys) -> list[int]:
    """Return the key heads of each layer, 0 for a layer that does not attend."""
    if not isinstance(keys.values.get(KV_HEADS), list):
        return [keys.whole(KV_HEADS)] * keys.whole("block_count")
    kv_heads = keys.list_of(KV_HEADS, int)
    if len(set(kv_heads) - {0}) != 1:
        raise keys.wrong(KV_HEADS, "does not give one number for all layers that attend", ANEW)
    return kv_heads


def lfm2(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of LFM2; a layer without key heads has a short convolution."""
    layers, kv_heads = layers_of(keys, header), kv_heads_by_layer(keys)
    if len(kv_heads) < layers:
        raise keys.wrong(KV_HEADS, f"has {len(kv_heads)} entries for {layers} layers", ANEW)
    return {
        "model_type": "lfm2",
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": keys.whole("shortconv.l_cache"),
        "layer_types": ["full_attention" if count else "conv" for count in kv_heads[:layers]],
    }


def lfm2_moe(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of LFM2 with experts behind its dense layers."""
    return {
        **lfm2(keys, header),
        **experts_of(keys, "num_experts"),
        "model_type": "lfm2_moe",
        "intermediate_size": uniform_number(keys, "feed_forward_length"),
        "moe_intermediate_size": uniform_number(keys, "expert_feed_forward_length"),
        "num_dense_layers": keys.whole("leading_dense_block_count", least=0),
    }


def _delta_nets(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the sizes of gated delta nets, and which layers have one.

    Metadata give the width of all value heads together.
    """
    heads, width = keys.wholes("ssm.time_step_rank", "ssm.inner_size")
    if width % heads:
        raise keys.wrong("ssm.inner_size", f"is no multiple of {heads} heads", ANEW)
    layers, key = layers_of(keys, header), "attention.recurrent_layers"
    if keys.has(key):
        marks = keys.list_of(key, bool)
        if len(marks) < layers:
            raise keys.wrong(key, f"has {len(marks)} entries for {layers} layers", ANEW)
    else:
        period = keys.whole("full_attention_interval", default=4)
        marks = [(layer + 1) % period != 0 for layer in range(layers)]
    return {
        "hidden_act": "silu",
        "layer_types": [
            "linear_attention" if is_linear else "full_attention" for is_linear in marks[:layers]
        ],
        "linear_conv_kernel_dim": keys.whole("ssm.conv_kernel"),
        "linear_key_head_dim": keys.whole("ssm.state_size"),
        "linear_value_head_dim": width // heads,
        "linear_num_key_heads": keys.whole("ssm.group_count"),
        "linear_num_value_heads": heads,
    }


_STATES = {"mamba_ssm_dtype": "float32"}
"""The dtype of states in config.json of Qwen3.5, and in llama.cpp; Qwen3-Next's do not say it."""


def qwen35(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Qwen3.5 and 3.6 without experts."""
    return {**_delta_nets(keys, header), **_STATES, "model_type": "qwen3_5_text"}


def qwen35_moe(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Qwen3.5 and 3.6 with experts."""
    return {**qwen3_next(keys, header), **_STATES, "model_type": "qwen3_5_moe_text"}


def qwen3_next(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Qwen3-Next; Qwen3.5 has the products of its delta nets apart."""
    return {
        **_delta_nets(keys, header),
        **qwen_moe(keys),
        "model_type": "qwen3_next",
        "norm_topk_prob": True,
        "shared_expert_intermediate_size": keys.whole("expert_shared_feed_forward_length"),
    }


def nemotron_h(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Nemotron-H and Nemotron 3, whose layers have one piece each."""
    key, tensors = "feed_forward_length", header.by_name
    layers, widths = layers_of(keys, header), keys.list_of(key, int)
    kv_heads = kv_heads_by_layer(keys)
    for name, numbers in ((KV_HEADS, kv_heads), (key, widths)):
        if len(numbers) < layers:
            raise keys.wrong(name, f"has {len(numbers)} entries for {layers} layers", ANEW)
    heads, inner = keys.wholes("ssm.time_step_rank", "ssm.inner_size")
    if inner % heads:
        raise keys.wrong("ssm.inner_size", f"is no multiple of {heads} heads", ANEW)
    letters = [
        "M*"[bool(kv)] if not width else "E-"[f"blk.{layer}.ffn_gate_inp.weight" not in tensors]
        for layer, (kv, width) in enumerate(zip(kv_heads[:layers], widths[:layers], strict=True))
    ]
    dense = {width for letter, width in zip(letters, widths, strict=False) if letter == "-"}
    if len(dense) > 1:
        raise keys.wrong(key, "gives dense FFNs of several widths", ANEW)
    values: dict[str, Any] = {"intermediate_size": dense.pop()} if dense else {}
    if "E" in letters:
        shared = keys.whole("expert_shared_feed_forward_length")
        latent = "moe_latent_size"
        values |= {
            **experts_of(keys, "n_routed_experts"),
            **weights_of_experts(keys),
            **({latent: keys.whole(latent)} if keys.has(latent) else {}),
            "moe_intermediate_size": uniform_number(keys, "expert_feed_forward_length"),
            "moe_shared_expert_intermediate_size": shared,
            "n_shared_experts": keys.whole("expert_shared_count"),
        }
    mixer, ffn = (f"blk.{letters.index(i) if i in letters else 0}" for i in "M-")
    return {
        **values,
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "".join(letters),
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "ssm_state_size": keys.whole("ssm.state_size"),
        "n_groups": keys.whole("ssm.group_count"),
        "conv_kernel": keys.whole("ssm.conv_kernel"),
        "use_conv_bias": f"{mixer}.ssm_conv1d.bias" in tensors,
        "use_bias": f"{mixer}.ssm_in.bias" in tensors,
        "mlp_bias": f"{ffn}.ffn_up.bias" in tensors,
        "mamba_ssm_cache_dtype": "float32",
        "partial_rotary_factor": 1.0,
    }
