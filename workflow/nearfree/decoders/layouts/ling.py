"""Ling 3: most layers have delta attention with gates per channel, the others gated latents."""

from collections.abc import Sequence

from msgspec import structs

from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.decoder import first_dense
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import moe
from nearfree.decoders.layouts.latent import mla
from nearfree.decoders.layouts.layout import block
from nearfree.decoders.layouts.pieces import (
    Layer,
    Matrix,
    Piece,
    by_kind,
    in_every_layer,
    joined,
    linear,
    one_per_period,
    projection,
    vector,
)
from nearfree.decoders.layouts.state import mixer_piece
from nearfree.decoders.state_kinds import DeltaNet
from nearfree.errors import Refusals

_PERIOD, _FULL_RANK = "layer_group_size", "no_kda_lora"
_LIGHTNING = "Give a file of Ling 3: Ling 2.5 has no such key, and lightning attention is not read"
_GRANULARITY, _QUERY_RANK = "gated_attention_proj_granularity_type", "q_lora_rank"


def _order(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kinds of layers: the last of each group has latents."""
    period = keys.whole(_PERIOD)
    if layers % period:
        raise keys.wrong(_PERIOD, f"does not divide {layers} layers, of which engines differ then")
    return one_per_period(period, "full_attention", "linear_attention")(keys, layers)


def _delta(keys: Keys, layers: int) -> Layer:  # noqa: ARG001 (one signature for all)
    """Read delta attention, whose decays and gates are made by full-rank products.

    Source: BailingHybridDeltaAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/bailing_moe_v3.py:687, which refuses products of two steps; the state
    is in float32, as of Kimi's delta attention.
    """
    d_model, heads, width, kernel = keys.wholes(
        "hidden_size", "num_attention_heads", "head_dim", "short_conv_kernel_size"
    )
    inner_width = heads * width
    kind = DeltaNet(
        heads=heads, key_heads=heads, key_dim=width, value_dim=width, conv=kernel,
        state="float32", channel_gates=True,
    )  # fmt: skip
    parts = list[Matrix]()
    for name in ("q_proj", "k_proj", "v_proj", "g_proj", "forget_gate.f_proj"):
        parts += linear(f"self_attn.{name}", "state", d_model, inner_width)
    parts += linear("self_attn.b_proj", "state", d_model, heads)
    parts += linear("self_attn.conv1d", "state", kernel, 3 * inner_width)
    parts += linear("self_attn.o_proj", "state", inner_width, d_model)
    parts += vector("self_attn.forget_gate.dt_bias", inner_width, "state")
    parts += vector("self_attn.forget_gate.A_log", heads, "state")
    parts += vector("self_attn.o_norm", width)
    return in_every_layer(mixer_piece(parts, kind))


def _gated_latents(keys: Keys, layers: int) -> Layer:
    """Read latent attention, whose output has one gate per head.

    Source: BailingHybridAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/bailing_moe_v3.py:527-570.
    """
    if keys.text(_GRANULARITY) != "head_wise":
        raise keys.wrong(_GRANULARITY, "is not head_wise, the only one that is read")
    with_rank = keys.replaced(_QUERY_RANK, keys.values.get(_QUERY_RANK))
    piece = mla()(with_rank, layers)(0)
    gate = projection("self_attn.g_proj", *keys.wholes("hidden_size", "num_attention_heads"))
    gated = tuple(
        structs.replace(kind, head_gates=True)
        for kind in piece.attention
        if isinstance(kind, Latent)
    )
    return in_every_layer(joined([piece._replace(attention=gated), Piece(gate)]))


def _mixers(keys: Keys, layers: int) -> Layer:
    """Read a layer's delta attention or latents; what else files of the type may say is refused."""
    refusals = Refusals()
    with refusals.collect():
        if not keys.flag(keys.one_of(_FULL_RANK, remedy=_LIGHTNING)):
            raise keys.wrong(_FULL_RANK, "gives gates two products each, which is not read")
    with refusals.collect():
        if keys.flag("multi_gate") or keys.is_text("router_type", "MultiRouter"):
            key = "multi_gate" if keys.flag("multi_gate") else "router_type"
            raise keys.wrong(key, "gives a layer several routers, which are not read")
    for key in ("use_bias", "use_qkv_bias", "attention_bias"):
        with refusals.collect():
            if keys.flag(key):
                raise keys.wrong(key, "adds biases, which are not read of this model type")
    refusals.check()
    kinds = {"linear_attention": _delta, "full_attention": _gated_latents}
    return by_kind("layer_types", kinds, _order, other_keys=(_PERIOD,))(keys, layers)


LING_3 = {"bailing_hybrid": block(_mixers, moe(first_dense))._replace(states=(_PERIOD,))}
"""By model type. Source: modeling file of transformers 5.23."""
