"""Layouts of models whose attention is biased by distance (ALiBi): BLOOM and MPT.

A bias of a head's logits grows with the distance of two positions. Of FlashAttention only version 2
has it, whose tiles are those without it, but for grouped heads, which it then does not pack at N =
1: get_flash_attn_version of vllm 0.33.0, vllm/v1/attention/backends/fa_utils.py:127-137;
csrc/flash_attn/flash_api.cpp of flash-attn 2.8.3 (seqlenq_ngroups_swapped).
"""

from collections.abc import Sequence

from nearfree.decoders.decoder import Ffn, head_width
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import Feed, Form
from nearfree.decoders.layouts.layout import Layout, layered
from nearfree.decoders.layouts.mixers import Heads, gqa
from nearfree.decoders.layouts.pieces import Layer, Matrix, Piece, in_every_layer, norms, vector
from nearfree.errors import Refusals

_HIDDEN, _HEADS, _WITHOUT_BIAS = "hidden_size", "num_attention_heads", "no_bias"


def one_key_per_head(keys: Keys) -> Heads:
    """Return the heads of a model with as many key heads as query heads."""
    count, width = keys.whole(_HEADS), head_width(keys)
    return Heads(count, count, width, width)


def mpt_heads(keys: Keys) -> Heads:
    """Return the heads of MPT; what its class refuses, or adds to ALiBi, is refused.

    Source: vllm 0.28.0, the last release with it, vllm/model_executor/models/mpt.py:64-75 and
    203-204; MptConfig of transformers 5.23.
    """
    heads, refusals = one_key_per_head(keys), Refusals()
    inner = keys.inner(keys.one_of("attn_config"))
    with refusals.collect():
        if inner.has("alibi") and not inner.flag("alibi"):
            raise inner.wrong("alibi", "is off, and engines do not run MPT without it")
    for key in ("prefix_lm", "qk_ln"):
        with refusals.collect():
            if inner.flag(key):
                raise inner.wrong(key, "is set, which is not read")
    with refusals.collect():
        if inner.whole("kv_n_heads", default=heads.queries) != heads.queries:
            raise inner.wrong("kv_n_heads", f"is not n_heads {heads.queries}: groups are not read")
    with refusals.collect():
        if keys.has("norm_type") and keys.text("norm_type") != "low_precision_layernorm":
            raise keys.wrong("norm_type", "is not low_precision_layernorm, which engines assume")
    refusals.check()
    return heads


def _bloom_ffn(keys: Keys, layers: int) -> Ffn:  # noqa: ARG001 (one signature for all)
    return Ffn(4 * keys.whole(_HIDDEN), gated=False)


def _mpt_ffn(keys: Keys, layers: int) -> Ffn:  # noqa: ARG001
    return Ffn(keys.whole("expansion_ratio", default=4) * keys.whole(_HIDDEN), gated=False)


def _bloom_layer(keys: Keys, layers: int) -> Layer:
    d_ff, form = _bloom_ffn(keys, layers).d_ff or 0, Form(("dense_h_to_4h",), "dense_4h_to_h")
    parts = form.parts("mlp", "ffn", keys.whole(_HIDDEN), d_ff, bias=True)
    return in_every_layer(Piece(tuple(parts)))


def _mpt_layer(keys: Keys, layers: int) -> Layer:
    d_ff, bias = _mpt_ffn(keys, layers).d_ff or 0, _biased(keys)
    parts = Form(("up_proj",), "down_proj").parts(
        "ffn", "ffn", keys.whole(_HIDDEN), d_ff, bias=bias
    )
    return in_every_layer(Piece(tuple(parts)))


def _biased(keys: Keys) -> bool:
    """Return whether MPT's products and norms have biases; no published model's do."""
    return keys.has(_WITHOUT_BIAS) and not keys.flag(_WITHOUT_BIAS)


def _mpt_attention(keys: Keys, layers: int) -> Layer:
    bias = _biased(keys)
    plan = gqa(
        module="attn", shape=mpt_heads, fused="Wqkv", output="out_proj", qkv_bias=bias,
        output_bias=bias, alibi=True,
    )  # fmt: skip
    return plan(keys, layers)


def _mpt_norms(keys: Keys, layers: int) -> Layer:
    return norms("norm_1", "norm_2", bias=_biased(keys))(keys, layers)


def _embedding_norm(keys: Keys) -> Sequence[Matrix]:
    """Return the norm behind BLOOM's embedding. Source: BloomModel of transformers 5.23."""
    name, width = "transformer.word_embeddings_layernorm", keys.whole(_HIDDEN)
    return (*vector(name, width), *vector(f"{name}.bias", width))


def _last_bias(keys: Keys) -> Sequence[Matrix]:
    return vector("transformer.norm_f.bias", keys.whole(_HIDDEN)) if _biased(keys) else ()


ALIBI: dict[str, Layout] = {
    "bloom": layered(
        norms("input_layernorm", "post_attention_layernorm", bias=True),
        gqa(
            module="self_attention", shape=one_key_per_head, fused="query_key_value",
            output="dense", qkv_bias=True, output_bias=True, alibi=True,
        ),
        Feed(_bloom_layer, _bloom_ffn),
    )._replace(
        root="transformer", layers="h", embedding="word_embeddings", norm="ln_f", norm_bias=True,
        outside=_embedding_norm,
    ),
    "mpt": layered(_mpt_norms, _mpt_attention, Feed(_mpt_layer, _mpt_ffn))._replace(
        root="transformer", layers="blocks", embedding="wte", norm="norm_f", outside=_last_bias
    ),
}  # fmt: skip
"""By model type. Sources: modeling files of transformers 5.23; of MPT vllm 0.28.0."""
