"""Layers of Kimi Linear and Kimi K3: delta attention beside latent attention, experts behind both.

Sources: KimiLinearAttention, KimiLinearDeltaAttention and KimiLinearMoE of transformers 5.23; what
Kimi K3 adds to them, kimi_k3/nvidia/model.py, mla.py and kda.py of vllm 0.33.0.
"""

from collections.abc import Sequence

from msgspec import structs

from nearfree.decoders.attention_kinds import DeltaNet
from nearfree.decoders.decoder import Ffn
from nearfree.decoders.feeds import NUMBERED, Names, behind_first, moe, some
from nearfree.decoders.keys import Keys
from nearfree.decoders.latent import mla
from nearfree.decoders.pieces import (
    Layer,
    Part,
    Piece,
    by_kind,
    joined,
    linear,
    norms,
    same,
    together,
    vector,
)
from nearfree.decoders.state_mixers import keeping

STATES = "linear_attn_config"
"""The key that says which layers keep a state."""
LATENT = "routed_expert_hidden_size"
"""The key of the width that K3's routed experts work in."""
_moe = some(
    behind_first, count=("num_experts",), shared=("n_shared_experts", "moe_intermediate_size")
)


def kimi_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Kimi Linear and Kimi K3. Source: KimiLinearMoE of transformers 5.23."""
    found = _moe(keys, layers)
    if found.experts is None or not keys.has(LATENT):
        return found
    return found._replace(experts=structs.replace(found.experts, latent=keys.whole(LATENT)))


def _kinds(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kind of each layer, which the file names by numbers from 1."""
    lists = keys.inner(keys.one_of(STATES))
    delta, latent = lists.list_of("kda_layers", int), lists.list_of("full_attn_layers", int)
    if sorted([*delta, *latent]) != list(range(1, layers + 1)):
        why = f"and full_attn_layers do not part {layers} layers"
        raise lists.wrong("kda_layers", why)
    kinds = {True: "linear_attention", False: "full_attention"}
    return [kinds[layer + 1 in delta] for layer in range(layers)]


def _delta(keys: Keys, layers: int) -> Layer:  # noqa: ARG001 (one signature for all)
    """Read Kimi's delta attention: a request keeps a matrix a head, and convolutions' inputs.

    The matrices are in float32: sglang 0.5.23, sglang/srt/configs/mamba_utils.py:71 and 112. Of K3
    the gate has no narrow rows.
    """
    of, d_model = keys.inner(STATES), keys.whole("hidden_size")
    width, count = of.whole("head_dim"), of.whole("num_heads")
    kernel, inner = of.whole("short_conv_kernel_size"), count * width
    shapes = {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), (d_model, inner)),
        "b_proj": (d_model, count),
        "f_a_proj": (d_model, width),
        "f_b_proj": (width, inner),
        "o_proj": (inner, d_model),
        "conv1d": (kernel, 3 * inner),
    }
    full = of.flag("use_full_rank_gate")
    if full:
        shapes["g_proj"] = d_model, inner
    else:
        shapes |= {"g_a_proj": (d_model, width), "g_b_proj": (width, inner)}
    parts: list[Part] = []
    for name, shape in shapes.items():
        parts += linear(f"self_attn.{name}", "state", *shape)
    parts += vector("self_attn.dt_bias", inner, "state")
    parts += vector("self_attn.A_log", count, "state")
    parts += vector("self_attn.o_norm", width)
    keeps = DeltaNet(
        heads=count, key_heads=count, key_dim=width, value_dim=width, conv=kernel,
        state="float32", rank=width, full_gate=full,
    )  # fmt: skip
    return same(keeping(parts, keeps))


def _gated(keys: Keys, layers: int) -> Layer:
    """Read latent attention, behind which K3 has a gate."""
    attention = mla()(keys, layers)
    if not keys.flag("mla_use_output_gate"):
        return attention
    wide = keys.whole("num_attention_heads") * keys.whole("v_head_dim")
    gate = linear("self_attn.g_proj", "attention", keys.whole("hidden_size"), wide)
    piece = attention(0)
    gated = tuple(structs.replace(kind, gate=True) for kind in piece.attention)
    return same(joined([piece._replace(attention=gated), Piece(gate)]))


def _experts(keys: Keys, layers: int) -> Layer:
    """Read the experts; those of K3 work in a narrower width, with a norm behind them."""
    names = Names(
        at="block_sparse_moe",
        form=NUMBERED,
        latent=LATENT,
        latent_names=("routed_expert_down_proj", "routed_expert_up_proj"),
    )
    experts = moe(kimi_moe, names)(keys, layers)
    if not (keys.has(names.latent) and keys.flag("latent_moe_use_norm")):
        return experts
    norm = Piece(vector(f"{names.at}.routed_expert_norm", keys.whole(names.latent)))
    sparse = set(behind_first(keys, layers))
    return lambda layer: joined([experts(layer), *([norm] if layer in sparse else [])])


def _residuals(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read K3's attention over what earlier blocks of layers left."""
    parts = [*_residual(keys, "self_attention_res"), *_residual(keys, "mlp_res")]
    return same(Piece(tuple(parts)))


def _residual(keys: Keys, name: str) -> Sequence[Part]:
    if not keys.has("attn_res_block_size"):
        return ()
    d_model = keys.whole("hidden_size")
    return (*vector(f"{name}_norm", d_model), *linear(f"{name}_proj", "other", d_model, 1))


def output_residual(keys: Keys) -> Sequence[Part]:
    """Return what joins the blocks behind the last layer."""
    return _residual(keys, "output_attn_res")


KIMI = together(
    norms("input_layernorm", "post_attention_layernorm"),
    by_kind("layer_types", {"linear_attention": _delta, "full_attention": _gated}, _kinds),
    _experts,
    _residuals,
)
