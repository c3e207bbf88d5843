"""Keys of architectures in which some layers have a state or a convolution instead of attention.

Source: as of `architectures`.
"""

from typing import Any

from nearfree.decoders.gguf_files.metadata import ANEW, experts_of, layers_of, uniform_number
from nearfree.decoders.keys import Keys
from nearfree.gguf.header import GgufHeader

KV_HEADS = "attention.head_count_kv"
CONVOLVED = ("lfm2", "lfm2moe")
"""Architectures in which a layer without key heads has a short convolution."""


def kv_heads_by_layer(keys: Keys) -> list[int]:
    """Return the key heads of each layer of LFM2, 0 for a layer with a short convolution."""
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
