"""The keys of each model type under their usual names, with the defaults of its class."""

from pathlib import Path
from typing import Any

from nearfree.decoders.keys import Keys

_GPT = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
}  # fmt: skip
_MOSAIC = {
    "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
}  # fmt: skip
_NAMES = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj"), _GPT),
    "bloom": {**_GPT, "n_embed": "hidden_size"},
    "opt": {"ffn_dim": "intermediate_size"},
    "falcon": {"ffn_hidden_size": "intermediate_size"},
    "chatglm": {
        "num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size",
        "padded_vocab_size": "vocab_size",
    },
    **dict.fromkeys(("dbrx", "mpt"), _MOSAIC),
    **{key: {"num_layers": "num_hidden_layers"} for key in ("exaone", "longcat_flash")},
    "llada": {
        "d_model": "hidden_size", "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads", "n_layers": "num_hidden_layers",
        "mlp_hidden_size": "intermediate_size", "embedding_size": "vocab_size",
        "weight_tying": "tie_word_embeddings",
    },
    "step3p5": {
        "num_attention_groups": "num_key_value_heads", "moe_num_experts": "num_experts",
        "moe_top_k": "num_experts_per_tok", "share_expert_dims": "share_expert_dim",
    },
    "step3_text": {"moe_num_experts": "num_experts", "moe_top_k": "num_experts_per_tok"},
    "nemotron_h": {"attention_head_dim": "head_dim", "layer_types": "layers_block_type"},
    "kimi_linear": {
        "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
    },
    "hunyuan_v1_moe": {"moe_topk": "num_experts_per_tok"},
    "hunyuan_vl_text": {"attention_head_dim": "head_dim"},
    "PanguEmbedded": {"bias": "attention_bias"},
    "internlm3": {"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    "lfm2": {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
    "lfm2_moe": {"tie_embedding": "tie_word_embeddings"},
}  # fmt: skip
"""By model type, its own names of keys, with the usual names. Source: attribute_map of its
configuration."""
_UNIFORM = {
    "hunyuan_v1_moe": (
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_shared_expert",
    ),
}  # fmt: skip
"""Keys that may be a list with one number per layer, which is read if all numbers are equal."""
_TIED = {"tie_word_embeddings": True}
_QKV_BIAS = {"qkv_bias": True}
_BIAS = {"attention_bias": True}
_GEMMA = {**_TIED, "sliding_window_pattern": 6}
_GEMMA_4 = {**_GEMMA, "global_head_dim": 512, "hidden_size_per_layer_input": 256}
_HYBRID = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "decoder_sparse_step": 1,
}  # fmt: skip
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {**_TIED, "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0},
    "vaultgemma": {**_TIED, "attn_logit_softcapping": 50.0},
    **dict.fromkeys(
        ("exaone", "minicpm", "youtu", "cohere", "gemma", "granite_swa", "smollm3", "bloom",
         "hunyuan_vl_text", "lfm2", "lfm2_moe", "ernie4_5", "ernie4_5_moe", "gemma3n_text", "mpt",
         "minicpm3"),
        _TIED,
    ),
    "jais2": {"attention_bias": True, "mlp_bias": True},
    "phi": {"lm_head_bias": True},
    "gpt_neox": _BIAS,
    "gpt2": {**_TIED, "n_positions": 1024},
    "gpt_bigcode": {**_TIED, "n_positions": 1024, "multi_query": True},
    "gptj": {"lm_head_bias": True},
    "opt": {**_TIED, "max_position_embeddings": 2048},
    "falcon": {**_TIED, "multi_query": True},
    "olmo_hybrid": {"linear_conv_kernel_dim": 4},
    "gemma3_text": {
        **_GEMMA, "vocab_size": 262208, "head_dim": 256, "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "gemma4_text": _GEMMA_4,
    "gemma4_unified_text": {**_GEMMA_4, "hidden_size_per_layer_input": 0},
    "cohere2": {**_TIED, "sliding_window_pattern": 4},
    "cohere2_moe": {
        **_TIED, "sliding_window_pattern": 4, "prefix_dense_sliding_window_pattern": 1,
        "num_shared_experts": 0,
    },
    **dict.fromkeys(("qwen2", "qwen2_5_vl_text", "qwen2_vl_text", "qwen2_moe"), _QKV_BIAS),
    "sarvam_mla": {"q_lora_rank": None},
    "mistral4": {"first_k_dense_replace": 0},
    "qwen3_next": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "qwen3_vl_moe_text": {"decoder_sparse_step": 1},
    "llama4_text": {"attention_chunk_size": 8192, "no_rope_layer_interval": 4},
    **dict.fromkeys(("gpt_oss", "seed_oss", "glm", "glm4", "glm4v_moe_text"), _BIAS),
    "starcoder2": {**_TIED, "use_bias": True},
    "granitemoehybrid": {"mamba_conv_bias": True, "mamba_n_groups": 1, "mamba_d_conv": 4},
    "jamba": {
        "mamba_dt_rank": "auto", "mamba_conv_bias": True, "mamba_d_state": 16, "mamba_d_conv": 4,
        "mamba_expand": 2, "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2,
        "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
        "num_key_value_heads": 8,
    },
    "falcon_h1": {
        "mamba_d_conv": 4, "mamba_conv_bias": True, "mamba_d_ssm": 1024, "num_key_value_heads": 8,
    },
    "nemotron_h": {
        "head_dim": 128, "conv_kernel": 4, "n_groups": 8, "use_conv_bias": True,
        "num_key_value_heads": 8, "mamba_ssm_cache_dtype": "float32",
    },
    "deepseek_v4": {"num_key_value_heads": 1},
    "afmoe": {"global_attn_every_n_layers": 4},
    "exaone_moe": {"sliding_window_pattern": 4},
    "step3p5": {"head_dim": 128, "first_k_dense_replace": 3},
    "hunyuan_v1_moe": {"num_shared_expert": 1},
}  # fmt: skip
"""Defaults of a model type's class for keys that published files leave out.
Source: configurations of transformers 5.23."""
_ONE_KEY_PER_HEAD = (
    "llama", "granite", "granitemoe", "granitemoehybrid", "cohere", "cohere2", "olmo2", "olmo3",
    "olmoe", "arcee", "apertus", "phi3", "hunyuan_v1_dense", "hunyuan_v1_moe", "granite_swa",
    "granitemoe_swa", "granitemoeshared", "cohere2_moe", "hyperclovax",
    "hunyuan_vl_text", "exaone", "internlm2", "minicpm", "jais2", "olmo_hybrid", "flex_olmo",
    "deepseek", "phi", "gpt_neox", "gpt2", "gptj", "opt", "olmo", "baichuan", "orion", "telechat3",
    "solar", "PanguEmbedded",
)  # fmt: skip
"""Model types with as many key heads as query heads if the file does not give their number.
Source: as above."""


def _layers(values: dict[str, Any]) -> dict[str, int]:
    """Return the number of layers, as a key, that Nemotron-H's list of their kinds has."""
    names = ("hybrid_override_pattern", "layers_block_type", "layer_types")
    kinds = next((values[name] for name in names if values.get(name)), None)
    return {"num_hidden_layers": len(kinds)} if isinstance(kinds, str | list) else {}


def with_usual_names(file: Path, values: dict[str, Any], kind: str, within: str = "") -> Keys:
    """Return the keys of a model type under their usual names, with the defaults of its class."""
    names = {
        old: new
        for old, new in _NAMES.get(kind, {}).items()
        if new not in values or values.get(old) is not None
    }
    own = {new: old for old, new in names.items() if old in values or new not in values}
    renamed = {names.get(key, key): value for key, value in values.items() if key not in own}
    for key in _UNIFORM.get(kind, ()):
        value = renamed.get(key)
        if isinstance(value, list) and value and all(number == value[0] for number in value):
            renamed[key] = value[0]
    heads = renamed.get("num_attention_heads")
    if kind in _ONE_KEY_PER_HEAD and heads and renamed.get("num_key_value_heads") is None:
        renamed["num_key_value_heads"] = heads
    if kind == "nemotron_h":
        given, renamed = Keys(file, values, within), _layers(values) | renamed
        for old, new in names.items():
            if given.has(old) and given.has(new):
                given.one_of(old, new)
    return Keys(file, _DEFAULTS.get(kind, {}) | renamed, within, own)
