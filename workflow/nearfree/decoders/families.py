"""The rules by which the config.json of each model type describes its decoder."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from msgspec import structs

from nearfree.decoders.attention_kinds import Kind, Latent
from nearfree.decoders.decoder import (
    Ffn,
    all_experts,
    dense,
    ernie_moe,
    first_dense,
    hunyuan_moe,
    qwen_moe,
    switched,
    switched_off,
    ungated,
    unwindowed,
    windowed,
)
from nearfree.decoders.feeds import (
    afmoe_moe,
    deepseek_moe,
    deepseek_v4_moe,
    exaone_moe,
    gemma4_moe,
    hy_v3_moe,
    laguna_moe,
    llama4_moe,
    m3_moe,
    mimo_v2_moe,
    step3_moe,
)
from nearfree.decoders.granite import granite_hybrid_moe, granite_moe
from nearfree.decoders.keys import Keys
from nearfree.decoders.kimi import STATES, kimi_moe
from nearfree.decoders.layers import layers_of, layout_of
from nearfree.decoders.lfm2 import lfm2_ffn, lfm2_moe
from nearfree.decoders.nemotron import BLOCKS, PATTERN, nemotron_ffn
from nearfree.decoders.special import decilm_ffn, hunyuan_window
from nearfree.decoders.variants import (
    beam_moe,
    one_after_another,
    one_bias,
    unclipped,
    without_bias,
    without_experts,
)
from nearfree.decoders.windowed import (
    cohere2_moe,
    dots_window,
    mellum_moe,
    solar_moe,
)


class Family(NamedTuple):
    """The rules of a model type.

    Without a `window` rule its layers may differ and are read one by one. `says_head_dim` requires
    `head_dim`: the width of a head does not follow from d_model. Three fields are keys, empty if
    there is none: `layer_inputs` of the width of each layer's own input, `streams` of the number of
    residual states, and `residual_block` of the number of layers whose joint output later layers
    attend to. `states` are the keys by which some layers have a state mixer instead of attention,
    or beside it. With `apart` each layer is one piece, and FFN layers have no attention.
    """

    ffn: Callable[[Keys, int], Ffn]
    window: Callable[[Keys, int], int | None] | None = None
    says_head_dim: bool = False
    layer_inputs: str = ""
    streams: str = ""
    residual_block: str = ""
    states: tuple[str, ...] = ()
    apart: bool = False


def _delta_net(ffn: Callable[[Keys, int], Ffn]) -> Family:
    """Return the rules of Qwen's models in which most layers have a gated delta net."""
    return Family(ffn, says_head_dim=True, states=("full_attention_interval",))


FAMILIES = {
    "llama": Family(dense, unwindowed),
    "llada": Family(dense, unwindowed),
    "cohere": Family(dense, unwindowed),
    "granite": Family(dense, unwindowed),
    "hyperclovax": Family(dense, unwindowed),
    "exaone": Family(dense, unwindowed),
    "internlm2": Family(dense, without_bias),
    "minicpm": Family(dense, without_experts),
    "stablelm": Family(dense, one_after_another),
    "internlm3": Family(dense, one_bias, says_head_dim=True),
    "iquestcoder": Family(dense, unclipped, says_head_dim=True),
    "hunyuan_v1_dense": Family(dense, hunyuan_window),
    "olmo2": Family(dense, unwindowed),
    "glm": Family(dense, unwindowed, says_head_dim=True),
    "glm4": Family(dense, unwindowed, says_head_dim=True),
    "glm4v_text": Family(dense, unwindowed),
    "glm_ocr_text": Family(dense, unwindowed, says_head_dim=True),
    "olmo3": Family(dense),
    "exaone4": Family(dense),
    "arcee": Family(ungated, unwindowed),
    "jais2": Family(ungated, unwindowed),
    "apertus": Family(ungated, unwindowed),
    "nemotron": Family(ungated, unwindowed),
    "starcoder2": Family(ungated, windowed),
    "nemotron-nas": Family(decilm_ffn, apart=True),
    "ernie4_5": Family(dense, unwindowed, says_head_dim=True),
    "seed_oss": Family(dense, unwindowed, says_head_dim=True),
    "mistral": Family(dense, windowed),
    "ministral3": Family(dense, windowed, says_head_dim=True),
    "phi3": Family(dense, windowed),
    "mimo": Family(dense, switched),
    "qwen2": Family(dense, switched),
    "qwen2_vl_text": Family(dense, switched),
    "qwen2_5_vl_text": Family(dense, switched),
    "qwen3": Family(dense, switched, says_head_dim=True),
    "qwen3_vl_text": Family(dense, unwindowed, says_head_dim=True),
    "smollm3": Family(dense, switched_off),
    "wedlm": Family(dense, switched_off, says_head_dim=True),
    "mixtral": Family(all_experts, windowed),
    "phimoe": Family(all_experts, windowed),
    "minimax_m2": Family(all_experts, unwindowed, says_head_dim=True),
    "olmoe": Family(all_experts, unwindowed),
    "flex_olmo": Family(all_experts, unwindowed),
    "deepseek": Family(deepseek_moe, unwindowed),
    "granitemoe": Family(all_experts, unwindowed),
    "granitemoeshared": Family(granite_moe, unwindowed),
    "hunyuan_v1_moe": Family(hunyuan_moe, hunyuan_window),
    "qwen2_moe": Family(qwen_moe, switched_off),
    "qwen3_moe": Family(qwen_moe, switched_off, says_head_dim=True),
    "qwen3_vl_moe_text": Family(qwen_moe, unwindowed, says_head_dim=True),
    "bailing_moe": Family(first_dense, switched_off),
    "bailing_moe_v2": Family(first_dense, switched_off),
    "llada2_moe": Family(first_dense, switched_off),
    "glm4_moe": Family(first_dense, unwindowed),
    "dots1": Family(first_dense, dots_window),
    "solar_open": Family(solar_moe, unwindowed, says_head_dim=True),
    "glm4v_moe_text": Family(first_dense, unwindowed),
    "ernie4_5_moe": Family(ernie_moe, unwindowed),
    **dict.fromkeys(
        (
            "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
            "glm_moe_dsa", "kimi_k2", "mistral4",
        ),
        Family(deepseek_moe),
    ),
    **dict.fromkeys(
        ("deepseek_v4", "deepseek_ref"), Family(deepseek_v4_moe, streams="hc_mult")
    ),
    "youtu": Family(dense),
    "qwen3_next": _delta_net(qwen_moe),
    "qwen3_5_moe_text": _delta_net(qwen_moe),
    "qwen3_5_text": _delta_net(dense),
    "olmo_hybrid": Family(dense),
    "kimi_linear": Family(kimi_moe, states=(STATES,), residual_block="attn_res_block_size"),
    "granitemoehybrid": Family(granite_hybrid_moe, states=("mamba_d_state",)),
    "falcon_h1": Family(dense, states=("mamba_d_state", BLOCKS)),
    "nemotron_h": Family(nemotron_ffn, states=(PATTERN, BLOCKS), apart=True),
    "lfm2": Family(lfm2_ffn),
    "lfm2_moe": Family(lfm2_moe),
    "cohere2": Family(dense, says_head_dim=True),
    "cohere2_moe": Family(cohere2_moe, says_head_dim=True),
    "granite_swa": Family(dense),
    "granitemoe_swa": Family(granite_moe),
    "cwm": Family(dense, says_head_dim=True),
    "ministral": Family(dense, says_head_dim=True),
    "mellum": Family(mellum_moe, says_head_dim=True),
    "spark2_5": Family(dense, says_head_dim=True),
    "muse_glimmer_text": Family(dense, says_head_dim=True),
    "beam": Family(beam_moe, says_head_dim=True),
    "gemma": Family(dense, unwindowed, says_head_dim=True),
    "vaultgemma": Family(dense, says_head_dim=True),
    "gemma2": Family(dense, says_head_dim=True),
    "gemma3_text": Family(dense, says_head_dim=True),
    "gemma4_text": Family(
        gemma4_moe, says_head_dim=True, layer_inputs="hidden_size_per_layer_input"
    ),
    "gpt_oss": Family(all_experts, says_head_dim=True),
    "llama4_text": Family(llama4_moe, says_head_dim=True),
    "mimo_v2_flash": Family(mimo_v2_moe, says_head_dim=True),
    "step3p5": Family(step3_moe, says_head_dim=True),
    "afmoe": Family(afmoe_moe, says_head_dim=True),
    "exaone_moe": Family(exaone_moe),
    "hy_v3": Family(hy_v3_moe, says_head_dim=True),
    "laguna": Family(laguna_moe, says_head_dim=True),
    "minimax_m3_vl_text": Family(m3_moe, says_head_dim=True),
}  # fmt: skip
"""By `model_type`. All have gated FFNs, except Nemotron-H and the model types with `ungated`. In
every layer all have grouped-query, latent or compressed attention, a gated delta net, a Mamba-2
mixer (Granite 4) or a short convolution (LFM2); Falcon-H1 has a Mamba-2 mixer beside attention.
Source: configuration and modeling files of transformers 5.23; inclusionAI/Ling (bailing_moe),
inclusionAI/Ling-V2 (its second version, whose files say either model type), inclusionAI/dFactory
(llada2_moe); Tencent/WeDLM (wedlm, of Qwen3's shape); GSAI-ML/LLaDA-8B (llada, of Llama's);
XiaomiMiMo/MiMo-7B (mimo, of Qwen2's); exaone, internlm2, minicpm and deepseek
vllm 0.33.0. Model types of the text parts of composite models end in `text`."""

ONE_POSITION = ("jamba",)
"""Model types for which no engine runs several positions of a request in one forward."""
_DELTA = "delta attention in most layers stands beside"
_AGAIN = "several times over, each time with a cache of its own"
UNREAD = {
    "bailing_hybrid": f"{_DELTA} latents with gates",
    "deepseek_v41_text": "layers attend to entries that other layers made and chose",
    "dots3_note_text": "its latents have windows in some layers, and gates of heads",
    "ernie4_5_vl_moe_text": "words and images have experts apart, of two widths",
    "flint": "its attention with sinks and its experts run by kernels of its own",
    "gemma3n_text": "its layers mix several streams (AltUp) and have narrow branches (LAuReL)",
    "gigachat3_5": "delta nets stand beside latents with gates, and norms have products",
    "glm5_next_text": f"{_DELTA} selected positions, and layers mix several streams",
    "hrm_text": f"two stacks of layers run {_AGAIN}",
    "hy_v4": "layers that attend to selected positions with sinks mix several streams",
    "inkling_text": "its attention has relative positions and short convolutions",
    "iquest_q1": "a kernel of its own applies sinks that depend on the query",
    "iquestloopcoder": f"its layers run {_AGAIN}",
    "k2_horizon": "values of some layers are made by experts that a router chooses",
    "longcat_flash": "a layer has two attentions, two Dense FFNs and experts beside them",
    "minicpm3": "unlike SGLang, vLLM expands its latents and caches whole keys and values",
    "mistral_large4_text": "layers attend to selected positions of latents that others cached",
    "muse_spark_text": "what experts give is normalised one by one, and residuals have gates",
    "nanbeige": f"its layers run {_AGAIN}",
    "qwen4_exp_text": f"{_DELTA} selected positions, and layers mix streams and tables of n-grams",
    "step5": "an indexer selects what its layers see by summaries of eight positions each",
    "zamba2": "all its attentions share their weights, each with adapters of its own",
    "zaya": "queries and keys pass convolutions, and routers are several products",
}
"""Model types that are known but not read, and the feature for which there is no module here.
Source: modeling files of transformers 5.23. In vllm 0.33.0: Step 5, vllm/models/step5/nvidia/
sparse_summary_cache.py; DeepSeek V4.1, vllm/models/deepseek_v41/attention.py:314-361; Flint,
vllm/models/flint/model.py (`_run_decode_attention`, `use_flint_kernel`); iquest_loopcoder.py,
k2_horizon.py and minicpm3.py:126-180 in vllm/model_executor/models. In sglang 0.5.23,
sglang/srt/models: gigachat35.py, iquest_q1.py (_apply_learned_sink), nanbeige.py."""


def family(keys: Keys) -> Family:
    """Return the rules of a file's model type; if it is not read, ConfigError names the nearest."""
    model_type = keys.text("model_type")
    if model_type in ONE_POSITION:
        raise keys.wrong(
            "model_type",
            "has layers of Mamba's first version, which engines advance by one position of a "
            "request per forward: vllm 0.33.0, vllm/model_executor/layers/mamba/"
            "mamba_mixer.py:356-391; sglang 0.5.23 does not run it",
            "Draft for a model of Mamba's second version, such as nemotron_h; decode this one "
            "without drafts",
        )
    if model_type in UNREAD:
        why = f"is not read: {UNREAD[model_type]}, for which there is no module here"
        raise keys.wrong("model_type", why, "Give another model: no other type stands for it")
    if model_type not in FAMILIES:
        near = get_close_matches(model_type[:80], FAMILIES, n=3)
        known = (
            f"Nearest are {', '.join(near)}" if near else f"Read are {', '.join(sorted(FAMILIES))}"
        )
        raise keys.wrong("model_type", "is not read", f"{known}; others may work differently")
    return FAMILIES[model_type]


def kinds_of(keys: Keys, layers: int) -> tuple[Kind, ...]:
    """Return the kinds of attention of a model whose layers are read one by one.

    They are in the order in which they first occur, each with its layers.

    Raises
    ------
    ConfigError
        Keys are missing or contradict one another, or a layer is of a kind that is not read.
    """
    rules, types_key = family(keys), "layer_types"
    mtp_layers = keys.whole("num_nextn_predict_layers", least=0, default=0)
    if keys.has(types_key) and not layers <= len(keys.each(types_key)) <= layers + mtp_layers:
        raise keys.wrong(types_key, f"has {len(keys.each(types_key))} entries for {layers} layers")
    layers_by_kind: dict[Kind, list[int]] = {}
    for layer, piece in enumerate(layers_of(keys, layout_of(keys))):
        if not piece.attention and not rules.apart:
            raise keys.wrong("model_type", f"has no attention that is read in layer {layer}")
        for kind in piece.attention:
            layers_by_kind.setdefault(kind, []).append(layer)
    first = next(iter(layers_by_kind), None)
    if first is None:
        raise keys.wrong("model_type", "has neither attention nor a state in any layer")
    if isinstance(first, Latent) and first.selected and not first.index_heads:
        index_keys = ("indexer_types", "index_topk_pattern")
        index_key = next(filter(keys.has, index_keys), "index_topk_freq")
        why = "gives the first layer a selection that no earlier layer makes"
        raise keys.wrong(index_key, why)
    return tuple(
        structs.replace(kind, layers=tuple(numbers)) for kind, numbers in layers_by_kind.items()
    )
