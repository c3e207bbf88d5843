"""Numbers of a GGUF file's metadata that keys of several architectures are made of.

Source: llama.cpp v0.5.0, src/models/NAME.cpp (load_arch_hparams) and src/llama-model.cpp.
"""

from collections.abc import Mapping
from typing import Any

from nearfree.decoders.keys import Keys
from nearfree.gguf.header import GgufHeader, Tensor

ANEW = "Convert the model anew, or give its config.json"


def layers_of(keys: Keys, header: GgufHeader) -> int:
    """Return the number of layers without those that predict further tokens.

    Each must have at least one tensor.
    """
    layers, drafting = keys.whole("block_count"), drafting_layers(keys)
    if layers > len(header.tensors):
        raise keys.wrong("block_count", f"is more than its {len(header.tensors)} tensors", ANEW)
    if drafting >= layers:
        raise keys.wrong("nextn_predict_layers", f"is not less than {layers} layers", ANEW)
    return layers - drafting


def drafting_layers(keys: Keys) -> int:
    """Return the number of layers behind the others that predict further tokens."""
    return keys.whole("nextn_predict_layers", least=0, default=0)


def uniform_number(keys: Keys, key: str, *, default: int | None = None) -> int:
    """Return a number that files may give per layer, and that must be equal in all layers."""
    if isinstance(keys.values.get(key), list):
        raise keys.wrong(key, "differs by layer, which is not read", ANEW)
    return keys.whole(key, default=default)


def head_dim(keys: Keys) -> int:
    """Return the width of a head's key, which must also be that of its value."""
    d_model, heads = keys.whole("embedding_length"), uniform_number(keys, "attention.head_count")
    if not keys.has("attention.key_length") and d_model % heads:
        raise keys.wrong(
            "embedding_length", f"is no multiple of {heads} heads, and no key_length is said", ANEW
        )
    width = keys.whole("attention.key_length", default=max(1, d_model // heads))
    if keys.whole("attention.value_length", default=width) != width:
        raise keys.wrong("attention.value_length", f"is not the key_length {width}", ANEW)
    return width


def number_or(keys: Keys, key: str, default: float) -> float:
    """Return a number, or the default of engines where the file does not give it."""
    return keys.number(key) if keys.has(key) else default


def adds_bias(header: GgufHeader) -> bool:
    """Return whether queries have a bias, in a tensor of their own or one with keys and values."""
    return not header.by_name.keys().isdisjoint(f"blk.0.attn_{part}.bias" for part in ("q", "qkv"))


def experts_of(keys: Keys, count_key: str) -> dict[str, Any]:
    """Return the number of routed experts, by its name in a config.json, and of those taken."""
    experts, top_k = keys.wholes("expert_count", "expert_used_count")
    return {count_key: experts, "num_experts_per_tok": top_k}


def weights_of_experts(keys: Keys) -> dict[str, Any]:
    """Return how a router of DeepSeek's kind weights experts, and groups them if files say so."""
    scale = "expert_weights_scale"
    groups = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
    return {
        "norm_topk_prob": keys.flag("expert_weights_norm"),
        **({"routed_scaling_factor": keys.number(scale)} if keys.has(scale) else {}),
        **{name: keys.whole(key) for name, key in groups.items() if keys.has(key)},
    }


def qwen_moe(keys: Keys) -> dict[str, Any]:
    """Return the keys of the experts of Qwen's models, which all layers have."""
    width = uniform_number(keys, "expert_feed_forward_length")
    return {
        **experts_of(keys, "num_experts"),
        "moe_intermediate_size": width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def alternating(keys: Keys, header: GgufHeader, period: int) -> dict[str, Any]:
    """Return the kinds of layers: all but the last of each period have a window, or as listed."""
    layers, key = layers_of(keys, header), "attention.sliding_window_pattern"
    pattern = keys.values.get(key)
    if isinstance(pattern, list):
        if len(pattern) < layers:
            raise keys.wrong(key, f"has {len(pattern)} entries for {layers} layers", ANEW)
        windowed = [bool(mark) for mark in pattern[:layers]]
    else:
        period = keys.whole(key, default=period)
        windowed = [layer % period < period - 1 for layer in range(layers)]
    kinds = ["sliding_attention" if has_window else "full_attention" for has_window in windowed]
    window = keys.whole("attention.sliding_window", default=4096)
    return {"layer_types": kinds, "sliding_window": window}


def outputs_of(tensors: Mapping[str, Tensor], name: str) -> int | None:
    """Return the number of rows of a matrix, None where the file has no such matrix."""
    return tensors[name].dims[-1] if name in tensors else None
