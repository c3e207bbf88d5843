"""How each model type composes its layers, and what its checkpoint calls them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nearfree.decoders.decoder import (
    all_experts,
    ernie_moe,
    first_dense,
    hunyuan_moe,
    qwen_moe,
    switched,
    switched_off,
    unwindowed,
    windowed,
)
from nearfree.decoders.feeds import (
    FUSED,
    NUMBERED,
    PLAIN,
    Form,
    Names,
    deepseek_moe,
    deepseek_v4_moe,
    ffn,
    llama4_moe,
    marked,
    mimo_v2_moe,
    moe,
    periodic,
    some,
    step3_moe,
)
from nearfree.decoders.keys import Keys
from nearfree.decoders.kimi import KIMI, output_residual
from nearfree.decoders.latent import mla
from nearfree.decoders.mixers import (
    block_index,
    compressed,
    gqa,
    named_heads,
    window_of,
)
from nearfree.decoders.nemotron import nemotron_h
from nearfree.decoders.pieces import (
    Part,
    Plan,
    by_kind,
    every,
    norms,
    together,
)
from nearfree.decoders.special import (
    BOTH,
    STEP_3,
    WINDOW,
    chunks,
    decilm,
    gemma4_attention,
    gemma4_experts,
    gemma4_inputs,
    gemma4_tables,
    hyper,
    hyper_head,
    indexers,
)
from nearfree.decoders.state_mixers import delta_net, falcon_h1, mamba1, mamba2


class Layout(NamedTuple):
    """A model type's layers, and the names of all around them under `root`.

    `head` is a whole name; `norm_bias` holds where the last norm has one, `head_bias` is the key
    that says whether the LM head has one. `outside` are weights behind the layers.
    """

    plan: Plan
    root: str = "model"
    layers: str = "layers"
    embedding: str = "embed_tokens"
    norm: str = "norm"
    head: str = "lm_head"
    norm_bias: bool = False
    head_bias: str = ""
    outside: Callable[[Keys], Sequence[Part]] = lambda keys: ()  # noqa: ARG005


_NORMS = norms("input_layernorm", "post_attention_layernorm")
_NAMED_NORMS = ("query_layernorm", "key_layernorm")
_ONE_NORM = norms("input_layernorm")
_OLMO_NORMS = norms("post_attention_layernorm", "post_feedforward_layernorm")
_WIDE: dict[str, Any] = {"whole_norm": True, **BOTH}
_FOUR = norms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)  # fmt: skip


def _block(*plans: Plan) -> Layout:
    return Layout(together(_NORMS, *plans))


def _alternating(period: int | str, **attention: Any) -> Plan:
    """Return the plan of attention that has a window in all but the last layer of each period."""
    kinds = {
        "sliding_attention": gqa(window=WINDOW, **attention),
        "full_attention": gqa(**attention),
    }
    return by_kind("layer_types", kinds, every(period, "full_attention", "sliding_attention"))


_LLAMA = _block(gqa(window=unwindowed, **BOTH), ffn(bias="mlp_bias"))
_MISTRAL = _block(gqa(window=windowed), ffn())
_QWEN2 = _block(gqa(window=switched, qkv_bias="qkv_bias"), ffn())
_SHARED = Names(shared="shared_expert", shared_gate="shared_expert_gate")
_DEEPSEEK = moe(deepseek_moe)
_LATENT = _block(mla(), _DEEPSEEK)
_BLOCK_SPARSE = Names(at="block_sparse_moe", form=NUMBERED)
_V4 = Layout(
    together(
        norms("attn_norm", "ffn_norm"),
        by_kind(
            "compress_ratios",
            {"0": compressed(0), "4": compressed(4, index=True), "128": compressed(128)},
        ),
        moe(deepseek_v4_moe, Names(at="ffn", form=NUMBERED, shared_form=NUMBERED)),
        hyper,
    ),
    root="",
    embedding="embed",
    head="head",
    outside=hyper_head,
)
_LING = _block(
    gqa(
        module="attention",
        window=switched_off,
        fused="query_key_value",
        output="dense",
        qkv_bias="use_qkv_bias",
        output_bias="use_bias",
        norm="use_qk_norm",
        norm_names=_NAMED_NORMS,
    ),
    moe(first_dense),
)._replace(embedding="word_embeddings")
_ERNIE: dict[str, Any] = {"qkv_bias": "use_bias", "output_bias": "use_bias", "window": unwindowed}
_HUNYUAN = gqa(
    window=unwindowed, norm=True, norm_names=("query_layernorm", "key_layernorm"), **BOTH
)


def _hybrid(feed: Plan, *, split: bool) -> Layout:
    """Return the layout of Qwen's models in which most layers have a gated delta net."""
    kinds = {
        "linear_attention": delta_net(split=split),
        "full_attention": gqa(gate="query", norm=True, **BOTH),
    }
    order = every("full_attention_interval", "full_attention", "linear_attention", default=4)
    return _block(by_kind("layer_types", kinds, order), feed)


LAYOUTS = {
    **dict.fromkeys(("llama", "granite"), _LLAMA),
    **dict.fromkeys(("mistral", "ministral3"), _MISTRAL),
    **dict.fromkeys(("qwen2", "qwen2_5_vl_text", "qwen2_vl_text"), _QWEN2),
    "qwen3": _block(gqa(window=switched, norm=True, **BOTH), ffn()),
    "qwen3_vl_text": _block(gqa(window=unwindowed, norm=True, **BOTH), ffn()),
    "qwen3_moe": _block(gqa(window=switched_off, norm=True, **BOTH), moe(qwen_moe)),
    "qwen3_vl_moe_text": _block(gqa(window=unwindowed, norm=True, **BOTH), moe(qwen_moe)),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "mistral4"), _LATENT
    ),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), _V4),
    "kimi_linear": Layout(KIMI, outside=output_residual),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe"), _LING),
    "mimo": _block(gqa(window=switched, qkv_bias="attention_bias"), ffn()),
    "wedlm": _block(gqa(window=switched_off, qkv_bias="attention_bias", norm="qk_norm"), ffn()),
    "smollm3": _block(gqa(window=switched_off, **BOTH), ffn(bias="mlp_bias")),
    "seed_oss": _block(
        gqa(window=unwindowed, qkv_bias="attention_bias", output_bias="attention_out_bias"),
        ffn(bias="mlp_bias"),
    ),
    "olmo2": Layout(together(_OLMO_NORMS, gqa(window=unwindowed, norm=True, **_WIDE), ffn())),
    "cohere": Layout(
        together(_ONE_NORM, gqa(window=unwindowed, norm="use_qk_norm", **_WIDE), ffn())
    ),
    "cohere2": Layout(
        together(_ONE_NORM, _alternating("sliding_window_pattern", **BOTH), ffn())
    ),
    "phi3": _block(gqa(window=windowed, fused="qkv_proj"), ffn(form=FUSED)),
    "hunyuan_v1_dense": _block(_HUNYUAN, ffn()),
    "hunyuan_v1_moe": _block(
        _HUNYUAN, moe(hunyuan_moe, Names(router="gate.wg", shared="shared_mlp"))
    ),
    "llada": Layout(
        together(
            norms("attn_norm", "ff_norm"),
            gqa(module="", window=unwindowed, output="attn_out"),
            ffn(at="", form=Form(("ff_proj", "up_proj"), "ff_out")),
        ),
        root="model.transformer",
        layers="blocks",
        embedding="wte",
        norm="ln_f",
        head="model.transformer.ff_out",
    ),
    "ernie4_5": _block(gqa(**_ERNIE), ffn(bias="use_bias")),
    "ernie4_5_moe": _block(
        gqa(**_ERNIE),
        moe(
            ernie_moe,
            Names(dense_bias="use_bias", router_vector="moe_statics.e_score_correction_bias"),
        ),
    )._replace(head_bias="use_bias"),
    "gemma2": Layout(
        together(
            _FOUR,
            _alternating("sliding_window_pattern", soft_cap="attn_logit_softcapping", **BOTH),
            ffn(),
        )
    ),
    "gemma3_text": Layout(
        together(_FOUR, _alternating("sliding_window_pattern", norm=True, **BOTH), ffn())
    ),
    "gemma4_text": Layout(
        together(_FOUR, gemma4_attention, ffn(), gemma4_experts, gemma4_inputs),
        outside=gemma4_tables,
    ),
    "mixtral": _block(gqa(window=windowed), moe(all_experts, _BLOCK_SPARSE)),
    "phimoe": Layout(
        together(
            norms("input_layernorm", "post_attention_layernorm", bias=True),
            gqa(window=windowed, **BOTH),
            moe(all_experts, _BLOCK_SPARSE),
        ),
        norm_bias=True,
        head_bias="lm_head_bias",
    ),
    "olmoe": _block(gqa(window=unwindowed, norm=True, **_WIDE), moe(all_experts)),
    "granitemoe": _block(
        gqa(window=unwindowed, **BOTH),
        moe(
            all_experts,
            Names(
                at="block_sparse_moe",
                experts="",
                form=Form(("input_linear",), "output_linear", 2),
                router="router.layer",
            ),
        ),
    ),
    "qwen2_moe": _block(gqa(window=switched_off, qkv_bias="qkv_bias"), moe(qwen_moe, _SHARED)),
    "qwen3_next": _hybrid(moe(qwen_moe, _SHARED), split=False),
    "qwen3_5_moe_text": _hybrid(moe(qwen_moe, _SHARED), split=True),
    "qwen3_5_text": _hybrid(ffn(), split=True),
    "glm4_moe": _block(
        gqa(window=unwindowed, qkv_bias="attention_bias", norm="use_qk_norm"), moe(first_dense)
    ),
    "gpt_oss": _block(
        _alternating(2, sinks=True, **BOTH),
        moe(all_experts, Names(router="router", bias=True, experts="experts", form=FUSED)),
    ),
    "minimax_m2": _block(
        gqa(window=unwindowed, norm="use_qk_norm", whole_norm=True), moe(all_experts, _BLOCK_SPARSE)
    ),
    "minimax_m3_vl_text": _block(
        gqa(norm=True),
        block_index,
        moe(
            some(
                marked("moe_layer_freq"),
                width="intermediate_size",
                shared=("shared_intermediate_size",),
                dense="dense_intermediate_size",
            ),
            _BLOCK_SPARSE,
        ),
    ),
    "llama4_text": _block(
        by_kind(
            "layer_types",
            {
                "chunked_attention": gqa(
                    window=window_of("attention_chunk_size"), chunked=True, **BOTH
                ),
                "full_attention": gqa(**BOTH),
            },
            chunks,
            beside=("no_rope_layers",),
        ),
        moe(
            llama4_moe,
            Names(
                at="feed_forward",
                experts="experts",
                form=FUSED,
                router="router",
                shared="shared_expert",
                dense="feed_forward",
            ),
        ),
    ),
    "deepseek_v32": _block(mla(selects=True, index=True), _DEEPSEEK),
    "glm_moe_dsa": _block(
        by_kind(
            "indexer_types",
            {"full": mla(selects=True, index=True), "shared": mla(selects=True)},
            indexers,
            beside=("index_topk_pattern", "index_topk_freq"),
        ),
        _DEEPSEEK,
    ),
    "mimo_v2_flash": _block(
        by_kind(
            "hybrid_layer_pattern",
            {
                "0": gqa(
                    shape=named_heads(
                        "num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"
                    ),
                    sinks="add_full_attention_sink_bias",
                ),
                "1": gqa(
                    shape=named_heads(
                        "swa_num_attention_heads",
                        "swa_num_key_value_heads",
                        "swa_head_dim",
                        "swa_v_head_dim",
                    ),
                    window=WINDOW,
                    sinks="add_swa_attention_sink_bias",
                ),
            },
        ),
        moe(mimo_v2_moe),
    ),
    "step3p5": _block(
        STEP_3,
        moe(
            step3_moe,
            Names(at="", router="moe.gate", experts="moe", shared="share_expert"),
        ),
    ),
    "jamba": Layout(
        together(
            norms("input_layernorm", "pre_ff_layernorm"),
            by_kind(
                "layers_block_type",
                {"attention": gqa(), "mamba": mamba1},
                every("attn_layer_period", "attention", "mamba", offset="attn_layer_offset"),
            ),
            moe(
                some(periodic, width="intermediate_size"),
                Names(at="feed_forward", router="router", dense="feed_forward"),
            ),
        ),
        norm="final_layernorm",
    ),
    "falcon_h1": Layout(
        together(
            falcon_h1,
            norms("input_layernorm", "pre_ff_layernorm"),
            gqa(**BOTH),
            mamba2(
                module="mamba",
                names=(
                    "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups",
                    "mamba_d_conv",
                ),
                flags=("mamba_conv_bias", "mamba_proj_bias", "projectors_bias"),
                norm="mamba_rms_norm",
                inner_width="mamba_d_ssm",
            ),
            ffn(at="feed_forward", bias="mlp_bias"),
        ),
        norm="final_layernorm",
    ),
    "nemotron_h": Layout(
        together(norms("norm"), nemotron_h),
        root="backbone",
        embedding="embeddings",
        norm="norm_f",
    ),
    "nemotron": Layout(
        together(
            norms("input_layernorm", "post_attention_layernorm", bias=True),
            gqa(**BOTH),
            ffn(form=PLAIN, bias="mlp_bias"),
        ),
        norm_bias=True,
    ),
    "nemotron-nas": Layout(decilm),
}  # fmt: skip
"""By model type of the text. Sources: modeling files and checkpoint names (conversion_mapping) of
transformers 5.23; inclusionAI/Ling-V2, inclusionAI/dFactory (llada2_moe), GSAI-ML/LLaDA-8B (llada),
Tencent/WeDLM (wedlm), XiaomiMiMo/MiMo-7B (mimo), nvidia/Llama-3_3-Nemotron-Super-49B-v1
(nemotron-nas); deepseek_ref and kimi_k2 are names of deepseek_v4 and deepseek_v3."""
