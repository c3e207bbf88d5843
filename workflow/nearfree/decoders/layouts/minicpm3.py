"""MiniCPM3: keys and values are made from a latent and cached whole."""

from nearfree.decoders.attention_kinds import Expansion, Grouped
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.cache import caches_of
from nearfree.decoders.layouts.feeds import ffn
from nearfree.decoders.layouts.layout import block
from nearfree.decoders.layouts.pieces import Layer, Piece, in_every_layer, projection, vector
from nearfree.errors import Refusals

_ATTENTION = "self_attn"


def minicpm3_attention(keys: Keys, layers: int) -> Layer:  # noqa: ARG001 (one signature for all)
    """Read attention whose heads each have a key and a value, expanded from a latent.

    A head's value is padded to the width of its key before it is cached. Biases are refused, as
    engines load none. Source: vllm 0.33.0, vllm/model_executor/models/minicpm3.py:51-201.
    """
    refusals = Refusals()
    for key in ("attention_bias", "mlp_bias"):
        with refusals.collect():
            if keys.flag(key):
                raise keys.wrong(key, "is set, and engines do not read it")
    refusals.check()
    d_model, heads, rank, latent, rope_dim, nope_dim, value_dim = keys.wholes(
        "hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim",
        "qk_nope_head_dim", "v_head_dim",
    )  # fmt: skip
    width = nope_dim + rope_dim
    if value_dim > width:
        raise keys.wrong("v_head_dim", f"is more than {width}, the width of a key")
    if keys.whole("num_key_value_heads", default=heads) != heads:
        raise keys.wrong("num_key_value_heads", f"is not {heads}: each head has a key of its own")
    kind = Grouped(
        heads=heads,
        kv_heads=heads,
        head_dim=width,
        query_rank=rank,
        expansion=Expansion(latent=latent, rope_dim=rope_dim, value_dim=value_dim),
    )
    parts = (
        *projection(f"{_ATTENTION}.q_a_proj", d_model, rank),
        *vector(f"{_ATTENTION}.q_a_layernorm", rank),
        *projection(f"{_ATTENTION}.q_b_proj", rank, kind.queries),
        *projection(f"{_ATTENTION}.kv_a_proj_with_mqa", d_model, latent + rope_dim),
        *vector(f"{_ATTENTION}.kv_a_layernorm", latent),
        *projection(f"{_ATTENTION}.kv_b_proj", latent, heads * (nope_dim + value_dim)),
        *projection(f"{_ATTENTION}.o_proj", kind.inputs, d_model),
    )
    return in_every_layer(Piece(parts, caches_of(kind), (kind,)))


MINICPM_3 = {"minicpm3": block(minicpm3_attention, ffn())}
"""By model type. Source: modeling file of transformers 5.23."""
