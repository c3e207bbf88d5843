"""The layout of each model type: its layers, and their names in the checkpoint."""

from typing import Any

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
from nearfree.decoders.layouts.alibi import ALIBI
from nearfree.decoders.layouts.early import EARLY
from nearfree.decoders.layouts.exaone import exaone_moe_attention, exaone_windows
from nearfree.decoders.layouts.feeds import (
    FUSED,
    NUMBERED,
    PLAIN,
    SHARED_EXPERT,
    Feed,
    Form,
    Names,
    afmoe_moe,
    deepseek_moe,
    deepseek_v4_moe,
    exaone_moe,
    ffn,
    gemma4_moe,
    hy_v3_moe,
    laguna_moe,
    llama4_moe,
    m3_moe,
    mimo_v2_moe,
    moe,
    step3_moe,
)
from nearfree.decoders.layouts.gemma3n import GEMMA_3N
from nearfree.decoders.layouts.granite import GRANITE
from nearfree.decoders.layouts.hybrids import HYBRIDS
from nearfree.decoders.layouts.latent import mla
from nearfree.decoders.layouts.layout import (
    FOUR_NORMS,
    GLM_NORMS,
    NAMED_NORMS,
    ONE_NORM,
    POST_NORMS,
    WIDE,
    Layout,
    alternating,
    biased,
    block,
    layered,
)
from nearfree.decoders.layouts.lfm2 import LFM2
from nearfree.decoders.layouts.ling import LING_3
from nearfree.decoders.layouts.longcat import LONGCAT
from nearfree.decoders.layouts.minicpm3 import MINICPM_3
from nearfree.decoders.layouts.mixers import (
    compressed,
    gqa,
    in_selected_blocks,
    named_heads,
    window_of,
)
from nearfree.decoders.layouts.pieces import (
    by_kind,
    norms,
)
from nearfree.decoders.layouts.special import (
    BOTH,
    STEP_3,
    WINDOW,
    chunked_layers,
    decilm,
    decilm_ffn,
    gemma4_attention,
    gemma4_experts,
    gemma4_ffn,
    gemma4_inputs,
    gemma4_tables,
    hunyuan_window,
    hy_v3_attention,
    hyper_connections,
    hyper_head,
    indexer_layers,
    laguna_attention,
    xielu_parameters,
)
from nearfree.decoders.layouts.step3 import STEP3
from nearfree.decoders.layouts.variants import VARIANTS
from nearfree.decoders.layouts.windowed import WINDOWED

_LLAMA = block(gqa(window=unwindowed, **BOTH), ffn(bias="mlp_bias"))
_MISTRAL = block(gqa(window=windowed), ffn())
_QWEN2 = block(gqa(window=switched, qkv_bias="qkv_bias"), ffn())
_DEEPSEEK = moe(deepseek_moe)
_LATENT = block(mla(), _DEEPSEEK)
_BLOCK_SPARSE = Names(module="block_sparse_moe", form=NUMBERED)
_V4 = layered(
    norms("attn_norm", "ffn_norm"),
    by_kind(
        "compress_ratios",
        {"0": compressed(0), "4": compressed(4, index=True), "128": compressed(128)},
    ),
    moe(deepseek_v4_moe, Names(module="ffn", form=NUMBERED, shared_form=NUMBERED)),
    hyper_connections,
)._replace(streams="hc_mult", root="", embedding="embed", head="head", outside=hyper_head)
_LING = block(
    gqa(
        module="attention",
        window=switched_off,
        fused="query_key_value",
        output="dense",
        qkv_bias="use_qkv_bias",
        output_bias="use_bias",
        norm="use_qk_norm",
        norm_names=NAMED_NORMS,
    ),
    moe(first_dense),
)._replace(embedding="word_embeddings")
_ERNIE: dict[str, Any] = {"qkv_bias": "use_bias", "output_bias": "use_bias", "window": unwindowed}
_HUNYUAN = gqa(window=hunyuan_window, norm=True, norm_names=NAMED_NORMS, **BOTH)


_LAYOUTS = {
    **dict.fromkeys(("llama", "granite", "telechat3"), _LLAMA),
    "gemma": block(gqa(window=unwindowed, **BOTH), ffn()),
    **dict.fromkeys(("mistral", "ministral3"), _MISTRAL),
    **dict.fromkeys(("qwen2", "qwen2_5_vl_text", "qwen2_vl_text"), _QWEN2),
    **dict.fromkeys(("qwen3", "sdar"), block(gqa(window=switched, norm=True, **BOTH), ffn())),
    "qwen3_vl_text": block(gqa(window=unwindowed, norm=True, **BOTH), ffn()),
    **dict.fromkeys(
        ("qwen3_moe", "sdar_moe"),
        block(gqa(window=switched_off, norm=True, **BOTH), moe(qwen_moe)),
    ),
    "qwen3_vl_moe_text": block(gqa(window=unwindowed, norm=True, **BOTH), moe(qwen_moe)),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "mistral4"), _LATENT
    ),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), _V4),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe", "sarvam_moe"), _LING),
    "sarvam_mla": block(mla(), moe(first_dense)),
    "mimo": block(gqa(window=switched, qkv_bias="attention_bias"), ffn()),
    "wedlm": block(gqa(window=switched_off, qkv_bias="attention_bias", norm="qk_norm"), ffn()),
    "smollm3": block(gqa(window=switched_off, **BOTH), ffn(bias="mlp_bias")),
    "seed_oss": block(
        gqa(window=unwindowed, qkv_bias="attention_bias", output_bias="attention_out_bias"),
        ffn(bias="mlp_bias"),
    ),
    "olmo2": layered(POST_NORMS, gqa(window=unwindowed, norm=True, **WIDE), ffn()),
    "olmo3": layered(POST_NORMS, alternating(4, norm=True, **WIDE), ffn()),
    "exaone4": layered(POST_NORMS, alternating(exaone_windows, norm=True), ffn()),
    "glm": block(gqa(window=unwindowed, qkv_bias="attention_bias"), ffn(form=FUSED)),
    "glm4": layered(GLM_NORMS, gqa(window=unwindowed, qkv_bias="attention_bias"), ffn(form=FUSED)),
    "glm4v_text": layered(GLM_NORMS, gqa(window=unwindowed, qkv_bias=True), ffn(form=FUSED)),
    "arcee": block(gqa(window=unwindowed, **BOTH), ffn(form=PLAIN, bias="mlp_bias")),
    "apertus": layered(
        norms("attention_layernorm", "feedforward_layernorm"),
        gqa(window=unwindowed, norm=True, **BOTH),
        ffn(form=PLAIN),
        xielu_parameters,
    ),
    "starcoder2": biased(
        gqa(window=windowed, qkv_bias="use_bias", output_bias="use_bias"),
        ffn(form=Form(("c_fc",), "c_proj"), bias="use_bias"),
    ),
    "cohere": layered(ONE_NORM, gqa(window=unwindowed, norm="use_qk_norm", **WIDE), ffn()),
    "cohere2": layered(ONE_NORM, alternating("sliding_window_pattern", **BOTH), ffn()),
    "phi3": block(gqa(window=windowed, fused="qkv_proj"), ffn(form=FUSED)),
    "hunyuan_v1_dense": block(_HUNYUAN, ffn()),
    "hunyuan_v1_moe": block(
        _HUNYUAN, moe(hunyuan_moe, Names(router="gate.wg", shared="shared_mlp"))
    ),
    "llada": layered(
        norms("attn_norm", "ff_norm"),
        gqa(module="", window=unwindowed, output="attn_out"),
        ffn(module="", form=Form(("ff_proj", "up_proj"), "ff_out")),
    )._replace(
        root="model.transformer",
        layers="blocks",
        embedding="wte",
        norm="ln_f",
        head="model.transformer.ff_out",
    ),
    "ernie4_5": block(gqa(**_ERNIE), ffn(bias="use_bias")),
    "ernie4_5_moe": block(
        gqa(**_ERNIE),
        moe(
            ernie_moe,
            Names(dense_bias="use_bias", router_vector="moe_statics.e_score_correction_bias"),
        ),
    )._replace(head_bias="use_bias"),
    "gemma2": layered(
        FOUR_NORMS,
        alternating("sliding_window_pattern", soft_cap="attn_logit_softcapping", **BOTH),
        ffn(),
    ),
    "gemma3_text": layered(
        FOUR_NORMS, alternating("sliding_window_pattern", norm=True, **BOTH), ffn()
    ),
    "gemma4_text": layered(
        FOUR_NORMS, gemma4_attention, Feed(gemma4_ffn, gemma4_moe), gemma4_experts, gemma4_inputs
    )._replace(layer_inputs="hidden_size_per_layer_input", outside=gemma4_tables),
    "mixtral": block(gqa(window=windowed), moe(all_experts, _BLOCK_SPARSE)),
    "phimoe": biased(gqa(window=windowed, **BOTH), moe(all_experts, _BLOCK_SPARSE))._replace(
        head_bias="lm_head_bias"
    ),
    "olmoe": block(gqa(window=unwindowed, norm=True, **WIDE), moe(all_experts)),
    "granitemoe": block(gqa(window=unwindowed, **BOTH), Feed(GRANITE.plan, all_experts)),
    "qwen2_moe": block(gqa(window=switched_off, qkv_bias="qkv_bias"), moe(qwen_moe, SHARED_EXPERT)),
    "glm4v_moe_text": block(gqa(window=unwindowed, qkv_bias="attention_bias"), moe(first_dense)),
    "glm4_moe": block(
        gqa(window=unwindowed, qkv_bias="attention_bias", norm="use_qk_norm"), moe(first_dense)
    ),
    "gpt_oss": block(
        alternating(2, sinks=True, **BOTH),
        moe(all_experts, Names(router="router", bias=True, experts="experts", form=FUSED)),
    ),
    "minimax_m2": block(
        gqa(window=unwindowed, norm="use_qk_norm", whole_norm=True), moe(all_experts, _BLOCK_SPARSE)
    ),
    "minimax_m3_vl_text": block(
        in_selected_blocks,
        moe(m3_moe, _BLOCK_SPARSE),
    ),
    "llama4_text": block(
        by_kind(
            "layer_types",
            {
                "chunked_attention": gqa(
                    window=window_of("attention_chunk_size"), chunked=True, **BOTH
                ),
                "full_attention": gqa(**BOTH),
            },
            chunked_layers,
            other_keys=("no_rope_layers",),
        ),
        moe(
            llama4_moe,
            Names(
                module="feed_forward",
                experts="experts",
                form=FUSED,
                router="router",
                shared="shared_expert",
                dense="feed_forward",
            ),
        ),
    ),
    "deepseek_v32": block(mla(selects=True, index=True), _DEEPSEEK),
    "glm_moe_dsa": block(
        by_kind(
            "indexer_types",
            {"full": mla(selects=True, index=True), "shared": mla(selects=True)},
            indexer_layers,
            other_keys=("index_topk_pattern", "index_topk_freq"),
        ),
        _DEEPSEEK,
    ),
    "mimo_v2_flash": block(
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
    "step3p5": block(
        STEP_3,
        moe(
            step3_moe,
            Names(module="", router="moe.gate", experts="moe", shared="share_expert"),
        ),
    ),
    "nemotron": biased(gqa(**BOTH), ffn(form=PLAIN, bias="mlp_bias"))._replace(window=unwindowed),
    "nemotron-nas": Layout(decilm, decilm_ffn, apart=True),
    "afmoe": layered(
        norms(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_mlp_layernorm",
            "post_mlp_layernorm",
        ),
        alternating(
            "global_attn_every_n_layers", norm=True, gate="gate_proj", wide_gate=True, **BOTH
        ),
        moe(afmoe_moe, Names(router="router.gate", router_vector="expert_bias")),
    ),
    "exaone_moe": block(exaone_moe_attention, moe(exaone_moe)),
    "hy_v3": block(
        hy_v3_attention, moe(hy_v3_moe, Names(router="router.gate", shared="shared_mlp"))
    ),
    "laguna": block(
        laguna_attention,
        moe(
            laguna_moe,
            Names(shared="shared_expert", router_vector="experts.e_score_correction_bias"),
        ),
    ),
    **ALIBI,
    **EARLY,
    **GEMMA_3N,
    **HYBRIDS,
    **LFM2,
    **LING_3,
    **LONGCAT,
    **MINICPM_3,
    **STEP3,
    **VARIANTS,
    **WINDOWED,
}
_SAY_HEAD_DIM = frozenset({
    "internlm3", "iquestcoder", "glm", "glm4", "glm_ocr_text", "ernie4_5", "seed_oss", "ministral3",
    "qwen3", "qwen3_vl_text", "wedlm", "minimax_m2", "qwen3_moe", "qwen3_vl_moe_text", "solar_open",
    "qwen3_next", "qwen3_5_moe_text", "qwen3_5_text", "cohere2", "cohere2_moe", "cwm", "ministral",
    "mellum", "spark2_5", "muse_glimmer_text", "beam", "gemma", "vaultgemma", "gemma2",
    "gemma3_text", "gemma4_text", "gpt_oss", "llama4_text", "mimo_v2_flash", "step3p5", "afmoe",
    "gemma3n_text", "hy_v3", "laguna", "sarvam_moe", "sdar", "sdar_moe", "kolibri1",
    "minimax_m3_vl_text",
})  # fmt: skip
LAYOUTS = {
    kind: layout._replace(says_head_dim=kind in _SAY_HEAD_DIM) for kind, layout in _LAYOUTS.items()
}
"""By model type of the text. In every layer all have grouped-query, latent or compressed attention,
a gated delta net, a Mamba-2 mixer (Granite 4) or a short convolution (LFM2); Falcon-H1 has a
Mamba-2 mixer beside attention. Sources: configuration and modeling files and checkpoint names
(conversion_mapping) of transformers 5.23; inclusionAI/Ling (bailing_moe), inclusionAI/Ling-V2 (its
second version, whose files say either model type), inclusionAI/dFactory (llada2_moe),
GSAI-ML/LLaDA-8B (llada, of Llama's shape), Tencent/WeDLM (wedlm, of Qwen3's), JetLM/SDAR (of
Qwen3's; sdar.py and sdar_moe.py of sglang 0.5.23, in sglang/srt/models), XiaomiMiMo/MiMo-7B (mimo,
of Qwen2's), nvidia/Llama-3_3-Nemotron-Super-49B-v1 (nemotron-nas); exaone, internlm2,
minicpm and deepseek vllm 0.33.0; deepseek_ref and kimi_k2 are names of deepseek_v4 and deepseek_v3.
Model types of the text parts of composite models end in `text`."""
