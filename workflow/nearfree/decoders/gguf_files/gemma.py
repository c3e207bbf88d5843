"""Keys of Gemma's architectures from its second version on.

Source: as of `architectures`.
"""

from typing import Any

from nearfree.decoders.gguf_files.metadata import (
    ANEW,
    alternating,
    head_dim,
    layers_of,
    number_or,
    outputs_of,
    uniform_number,
)
from nearfree.decoders.gguf_files.states import KV_HEADS
from nearfree.decoders.keys import Keys
from nearfree.gguf.header import GgufHeader

_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}
"""Layers of the models with 27 billion weights, whose logits are scaled by another width."""


def _gemma(keys: Keys, header: GgufHeader, period: int) -> dict[str, Any]:
    width, heads = keys.whole("embedding_length"), uniform_number(keys, "attention.head_count")
    largest = keys.whole("block_count") == _LARGEST_GEMMA[header.architecture]
    cap = "final_logit_softcapping"
    return {
        **alternating(keys, header, period),
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width // heads if largest else head_dim(keys),
        **({cap: keys.number(cap)} if keys.has(cap) else {}),
    }


def gemma2(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Gemma 2, every other layer of which has a window."""
    cap = number_or(keys, "attn_logit_softcapping", 50.0)
    last = {"final_logit_softcapping": 30.0}
    own = {"model_type": "gemma2", "attn_logit_softcapping": cap}
    return {**last, **_gemma(keys, header, 2), **own}


def gemma3(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Gemma 3, five of six layers of which have a window."""
    local = number_or(keys, "rope.freq_base_swa", 10000.0)
    own = {"model_type": "gemma3_text", "rope_local_base_freq": local}
    return {**_gemma(keys, header, 6), **own}


def gemma3n(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Gemma 3n; the engine has the rank of the narrow branch in its code.

    It also has the first layer that shares a cache there, which is that of published files.
    """
    layers, tensors = layers_of(keys, header), header.by_name
    rows = outputs_of(tensors, "per_layer_token_embd.weight")
    return {
        **alternating(keys, header, 5),
        "model_type": "gemma3n_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": number_or(keys, "rope.freq_base_swa", 10000.0),
        "altup_num_inputs": keys.whole("altup.num_inputs", default=4),
        "hidden_size_per_layer_input": keys.whole("embedding_length_per_layer_input", default=256),
        "vocab_size_per_layer_input": rows,
        "laurel_rank": outputs_of(tensors, "blk.0.laurel_l.weight"),
        "num_kv_shared_layers": keys.whole(
            "attention.shared_kv_layers", least=0, default=max(0, layers - 20)
        ),
    }


TWO_WIDTHS = ("gemma4",)
"""Architectures whose layers with a window have other heads than those without."""
_FFN, _SHARED = "feed_forward_length", "attention.shared_kv_layers"
_NO_CLASS = "is not what the model's class has"


def windowed_kv_heads(keys: Keys, header: GgufHeader) -> int:
    """Return the key heads of layers with a window."""
    return _kv_heads(keys, header)[0]


def _kv_heads(keys: Keys, header: GgufHeader) -> tuple[int, int]:
    """Return the key heads of layers with a window, and of those without."""
    layers = layers_of(keys, header)
    if not isinstance(keys.values.get(KV_HEADS), list):
        count = keys.whole(KV_HEADS)
        return count, count
    counts, kinds = keys.list_of(KV_HEADS, int), _kinds(keys, header)
    if len(counts) < layers:
        raise keys.wrong(KV_HEADS, f"has {len(counts)} entries for {layers} layers", ANEW)
    by_kind = {
        kind: {count for count, own in zip(counts, kinds, strict=False) if own == kind}
        for kind in ("sliding_attention", "full_attention")
    }
    if any(len(found) != 1 or min(found) < 1 for found in by_kind.values()):
        raise keys.wrong(KV_HEADS, "does not give one number for each kind of layers", ANEW)
    (windowed,), (full,) = by_kind.values()
    return windowed, full


def _kinds(keys: Keys, header: GgufHeader) -> list[str]:
    kinds: list[str] = alternating(keys, header, 6)["layer_types"]
    return kinds


def _widths(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the width of the FFNs, which may be double in layers that share a cache."""
    layers, shared = layers_of(keys, header), keys.whole(_SHARED, least=0, default=0)
    if not isinstance(keys.values.get(_FFN), list):
        return {"intermediate_size": keys.whole(_FFN)}
    widths = keys.list_of(_FFN, int)
    first = max(0, layers - shared)
    if widths != [widths[0]] * first + [2 * widths[0]] * (layers - first):
        raise keys.wrong(_FFN, _NO_CLASS, ANEW)
    return {"intermediate_size": widths[0], "use_double_wide_mlp": True}


def gemma4(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Gemma 4; layers without a window have no values if none is a tensor.

    Which pairs of those layers rotate is in the data of a tensor, which a header does not have.
    """
    kinds, (windowed, full) = _kinds(keys, header), _kv_heads(keys, header)
    full_width, cap = keys.whole("attention.key_length"), "final_logit_softcapping"
    for ending in ("", "_swa"):
        width = keys.whole(f"attention.key_length{ending}")
        if keys.whole(f"attention.value_length{ending}", default=width) != width:
            raise keys.wrong(f"attention.value_length{ending}", f"is not the key_length {width}")
    global_layers = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    first = global_layers[0] if global_layers else 0
    keys_are_values = f"blk.{first}.attn_v.weight" not in header.by_name
    if windowed != full and not keys_are_values:
        raise keys.wrong(KV_HEADS, f"differs by layer beside blk.{first}.attn_v.weight", ANEW)
    experts: dict[str, Any] = {}
    if keys.whole("expert_count", least=0, default=0):
        count, top_k = keys.wholes("expert_count", "expert_used_count")
        width = uniform_number(keys, "expert_feed_forward_length")
        experts = {"enable_moe_block": True, "num_experts": count, "top_k_experts": top_k}
        experts["moe_intermediate_size"] = width
    return {
        **alternating(keys, header, 6),
        **_widths(keys, header),
        **experts,
        **({cap: keys.number(cap)} if keys.has(cap) else {}),
        **({"num_global_key_value_heads": full} if keys_are_values else {}),
        "model_type": "gemma4_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_k_eq_v": keys_are_values,
        "global_head_dim": full_width,
        "hidden_size_per_layer_input": keys.whole(
            "embedding_length_per_layer_input", least=0, default=0
        ),
        "num_kv_shared_layers": keys.whole(_SHARED, least=0, default=0),
        "rope_scaling": {"rope_type": "factors in a tensor"},
    }
