"""Layouts of hybrid models: some layers have a state mixer instead of attention, or beside it."""

from nearfree.decoders.decoder import qwen_moe
from nearfree.decoders.layouts.feeds import (
    SHARED_EXPERT,
    Feed,
    Names,
    ffn,
    moe,
    moe_rule,
    periodic_layers,
)
from nearfree.decoders.layouts.granite import granite_hybrid_ffn, granite_hybrid_moe
from nearfree.decoders.layouts.kimi import KIMI, STATES, kimi_moe, output_residual
from nearfree.decoders.layouts.layout import NORMS, POST_NORMS, WIDE, Layout, block, layered
from nearfree.decoders.layouts.mixers import gqa
from nearfree.decoders.layouts.nemotron import BLOCKS, PATTERN, nemotron_ffn, nemotron_h
from nearfree.decoders.layouts.pieces import Plan, by_kind, combined, norms, one_per_period
from nearfree.decoders.layouts.special import BOTH
from nearfree.decoders.layouts.state import (
    FUSED_NET,
    OLMO_NET,
    SPLIT_NET,
    DeltaNames,
    delta_net,
    falcon_h1,
    mamba1,
    mamba2,
)

_MAMBA_SIZES = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
_GRANITE_MIXER = mamba2(
    module="mamba",
    names=_MAMBA_SIZES,
    flags=("mamba_conv_bias", "mamba_proj_bias", "mamba_proj_bias"),
)


def _hybrid(feed: Feed, names: DeltaNames) -> Layout:
    """Return the layout of Qwen's models in which most layers have a gated delta net."""
    kinds: dict[str, Plan] = {
        "linear_attention": delta_net(names),
        "full_attention": gqa(gate="query", norm=True, **BOTH),
    }
    order = one_per_period(
        "full_attention_interval", "full_attention", "linear_attention", default=4
    )
    layout = block(by_kind("layer_types", kinds, order), feed)
    return layout._replace(states=("full_attention_interval",))


HYBRIDS = {
    "kimi_linear": Layout(
        KIMI, kimi_moe, residual_block="attn_res_block_size", states=(STATES,),
        outside=output_residual,
    ),
    "qwen3_next": _hybrid(moe(qwen_moe, SHARED_EXPERT), FUSED_NET),
    "qwen3_5_moe_text": _hybrid(moe(qwen_moe, SHARED_EXPERT), SPLIT_NET),
    "qwen3_5_text": _hybrid(ffn(), SPLIT_NET),
    "olmo_hybrid": layered(
        by_kind(
            "layer_types",
            {
                "linear_attention": combined(NORMS, delta_net(OLMO_NET)),
                "full_attention": combined(POST_NORMS, gqa(norm=True, **WIDE)),
            },
        ),
        ffn(),
    ),
    "granitemoehybrid": block(
        by_kind(
            "layer_types",
            {**dict.fromkeys(("attention", "full_attention"), gqa(**BOTH)),
             **dict.fromkeys(("mamba", "linear_attention"), _GRANITE_MIXER)},
        ),
        Feed(granite_hybrid_ffn, granite_hybrid_moe),
    )._replace(states=("mamba_d_state",)),
    "jamba": layered(
        norms("input_layernorm", "pre_ff_layernorm"),
        by_kind(
            "layers_block_type",
            {"attention": gqa(), "mamba": mamba1},
            one_per_period("attn_layer_period", "attention", "mamba", offset="attn_layer_offset"),
        ),
        moe(
            moe_rule(periodic_layers, width="intermediate_size"),
            Names(module="feed_forward", router="router", dense="feed_forward"),
        ),
    )._replace(norm="final_layernorm"),
    "falcon_h1": layered(
        falcon_h1,
        norms("input_layernorm", "pre_ff_layernorm"),
        gqa(**BOTH),
        mamba2(
            module="mamba",
            names=_MAMBA_SIZES,
            flags=("mamba_conv_bias", "mamba_proj_bias", "projectors_bias"),
            norm="mamba_rms_norm",
            inner_width="mamba_d_ssm",
        ),
        ffn(module="feed_forward", bias="mlp_bias"),
    )._replace(states=("mamba_d_state", BLOCKS), norm="final_layernorm"),
    "nemotron_h": Layout(
        combined(norms("norm"), nemotron_h),
        nemotron_ffn,
        states=(PATTERN, BLOCKS),
        apart=True,
        root="backbone",
        embedding="embeddings",
        norm="norm_f",
    ),
}  # fmt: skip
"""By model type of the text. Sources: those of `LAYOUTS`."""
