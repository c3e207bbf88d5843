"""Layers of Kimi Linear and Kimi K3: delta attention or latent attention, then experts.

Sources: KimiLinearAttention, KimiLinearDeltaAttention and KimiLinearMoE of transformers 5.23; for
the additions of Kimi K3, kimi_k3/nvidia/model.py, mla.py and kda.py of vllm 0.33.0.
"""

from collections.abc import Sequence

from msgspec import structs

from nearfree.decoders.decoder import Ffn
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import NUMBERED, Names, after_first_dense, moe, moe_rule
from nearfree.decoders.layouts.latent import mla
from nearfree.decoders.layouts.pieces import (
    Layer,
    Matrix,
    Piece,
    by_kind,
    combined,
    in_every_layer,
    joined,
    linear,
    norms,
    projection,
    vector,
)
from nearfree.decoders.layouts.state import mixer_piece
from nearfree.decoders.state_kinds import DeltaNet

STATES = "linear_attn_config"
"""The key that names the layers that keep a state."""
LATENT = "routed_expert_hidden_size"
"""The key of the width in which K3's routed experts compute."""
_moe = moe_rule(
    after_first_dense, count=("num_experts",), shared=("n_shared_experts", "moe_intermediate_size")
)


def kimi_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Kimi Linear and Kimi K3. Source: KimiLinearMoE of transformers 5.23."""
    layout = _moe(keys, layers)
    if layout.experts is None or not keys.has(LATENT):
        return layout
    return layout._replace(experts=structs.replace(layout.experts, latent=keys.whole(LATENT)))


def _kinds(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kind of each layer; the file counts layers from 1."""
    config = keys.inner(keys.one_of(STATES))
    delta, latent = config.list_of("kda_layers", int), config.list_of("full_attn_layers", int)
    if sorted([*delta, *latent]) != list(range(1, layers + 1)):
        why = f"and full_attn_layers do not part {layers} layers"
        raise config.wrong("kda_layers", why)
    kinds = {True: "linear_attention", False: "full_attention"}
    return [kinds[layer + 1 in delta] for layer in range(layers)]


def _delta(keys: Keys, layers: int) -> Layer:  # noqa: ARG001 (one signature for all)
    """Read Kimi's delta attention, which keeps a matrix per head and the convolutions' inputs.

    The matrices are in float32: sglang 0.5.23, sglang/srt/configs/mamba_utils.py:71 and 112. The
    gate of K3 is one full-rank product.
    """
    config, d_model = keys.inner(STATES), keys.whole("hidden_size")
    width, count = config.whole("head_dim"), config.whole("num_heads")
    kernel, value_width = config.whole("short_conv_kernel_size"), count * width
    shapes = {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), (d_model, value_width)),
        "b_proj": (d_model, count),
        "f_a_proj": (d_model, width),
        "f_b_proj": (width, value_width),
        "o_proj": (value_width, d_model),
        "conv1d": (kernel, 3 * value_width),
    }
    full_gate = config.flag("use_full_rank_gate")
    if full_gate:
        shapes["g_proj"] = d_model, value_width
    else:
        shapes |= {"g_a_proj": (d_model, width), "g_b_proj": (width, value_width)}
    parts: list[Matrix] = []
    for name, shape in shapes.items():
        parts += linear(f"self_attn.{name}", "state", *shape)
    parts += vector("self_attn.dt_bias", value_width, "state")
    parts += vector("self_attn.A_log", count, "state")
    parts += vector("self_attn.o_norm", width)
    kind = DeltaNet(
        heads=count, key_heads=count, key_dim=width, value_dim=width, conv=kernel,
        state="float32", rank=width, full_gate=full_gate,
    )  # fmt: skip
    return in_every_layer(mixer_piece(parts, kind))


def _gated(keys: Keys, layers: int) -> Layer:
    """Read latent attention, whose output K3 gates."""
    attention = mla()(keys, layers)
    if not keys.flag("mla_use_output_gate"):
        return attention
    value_width = keys.whole("num_attention_heads") * keys.whole("v_head_dim")
    gate = projection("self_attn.g_proj", keys.whole("hidden_size"), value_width)
    piece = attention(0)
    gated = tuple(structs.replace(kind, gate=True) for kind in piece.attention)
    return in_every_layer(joined([piece._replace(attention=gated), Piece(gate)]))


def _experts(keys: Keys, layers: int) -> Layer:
    """Read the experts; those of K3 compute in a narrower width, followed by a norm."""
    names = Names(
        module="block_sparse_moe",
        form=NUMBERED,
        latent=LATENT,
        latent_names=("routed_expert_down_proj", "routed_expert_up_proj"),
    )
    experts = moe(kimi_moe, names)(keys, layers)
    if not (keys.has(names.latent) and keys.flag("latent_moe_use_norm")):
        return experts
    norm = Piece(vector(f"{names.module}.routed_expert_norm", keys.whole(names.latent)))
    sparse = set(after_first_dense(keys, layers))
    return lambda layer: joined([experts(layer), *([norm] if layer in sparse else [])])


def _residuals(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read K3's attention over the outputs of earlier blocks of layers."""
    parts = [*_residual(keys, "self_attention_res"), *_residual(keys, "mlp_res")]
    return in_every_layer(Piece(tuple(parts)))


def _residual(keys: Keys, name: str) -> Sequence[Matrix]:
    if not keys.has("attn_res_block_size"):
        return ()
    d_model = keys.whole("hidden_size")
    return (*vector(f"{name}_norm", d_model), *linear(f"{name}_proj", "other", d_model, 1))


def output_residual(keys: Keys) -> Sequence[Matrix]:
    """Return the weights that combine the blocks' outputs after the last layer."""
    return _residual(keys, "output_attn_res")


KIMI = combined(
    norms("input_layernorm", "post_attention_layernorm"),
    by_kind("layer_types", {"linear_attention": _delta, "full_attention": _gated}, _kinds),
    _experts,
    _residuals,
)
