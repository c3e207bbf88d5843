"""Keys of architectures with latent attention.

Source: as of `architectures`.
"""

from typing import Any

from nearfree.decoders.gguf_files.metadata import head_dim, uniform_number
from nearfree.decoders.keys import Keys
from nearfree.gguf.header import GgufHeader


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
