"""Small config files of all model types whose weights are read, each with the keys that count."""

from typing import Any

from decoders.files import SMALL

_SHAPE = {
    "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 96,
}  # fmt: skip
_WIDE = {**_SHAPE, "head_dim": 16}
_TOP = {"num_experts_per_tok": 2}
_MOE = {**_WIDE, **_TOP, "num_experts": 4, "moe_intermediate_size": 24}
_LATENT = {
    **_SHAPE, **_TOP, "num_key_value_heads": 8, "kv_lora_rank": 12, "q_lora_rank": 20,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 10, "n_routed_experts": 4,
    "n_shared_experts": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
_INDEXED = {**_LATENT, "index_topk": 32, "index_n_heads": 3, "index_head_dim": 14}
_HYBRID = {
    **_WIDE, "full_attention_interval": 3, "linear_conv_kernel_dim": 3, "linear_key_head_dim": 6,
    "linear_value_head_dim": 10, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
_HYBRID_MOE = {**_HYBRID, **_MOE, "shared_expert_intermediate_size": 40}
_NEMOTRON = {
    **_WIDE, "mamba_num_heads": 4, "mamba_head_dim": 6, "ssm_state_size": 10, "n_groups": 2,
    "conv_kernel": 3, "hybrid_override_pattern": "M-E*ME", "n_routed_experts": 4, **_TOP,
    "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40,
    "moe_latent_size": 32,
}  # fmt: skip
NO_CLASS = {
    "bailing_moe", "bailing_moe_v2", "deepseek_ref", "kimi_k2", "llada2_moe", "wedlm", "llada",
    "mimo", "nemotron-nas", "spark2_5", "exaone", "internlm2", "minicpm", "deepseek",
    "chatglm", "baichuan", "orion", "step3_text", "telechat3", "solar", "PanguEmbedded",
    "sarvam_moe", "sarvam_mla", "sdar", "sdar_moe",
}  # fmt: skip
"""Model types that transformers has no class of."""
STORED: dict[str, dict[str, Any]] = {
    **{
        kind: values
        for kind, values in SMALL.items()
        if kind not in NO_CLASS and kind != "step3p5" and not kind.endswith("_text")
    },
    "llama_each": {**_SHAPE, "model_type": "llama", "num_key_value_heads": None},
    "llama_biased": {**_SHAPE, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "ministral3": {**_WIDE, "sliding_window": None},
    "smollm3": _SHAPE,
    "glm4v_text": {**_SHAPE, "tie_word_embeddings": False},
    "glm_ocr_text": {**_WIDE, "tie_word_embeddings": False},
    "muse_glimmer_text": {**_WIDE, "sliding_window": 32, "tie_word_embeddings": False},
    "hyperclovax_plain": {**SMALL["hyperclovax"], "use_post_norm": False},
    "internlm3_biased": {
        **_WIDE, "model_type": "internlm3", "qkv_bias": True, "bias": True,
    },
    "gpt2_tall": {**SMALL["gpt2"], "n_inner": None, "tie_word_embeddings": False},
    "gpt_bigcode_keys": {**SMALL["gpt_bigcode"], "multi_query": False},
    "opt_long": {**SMALL["opt"], "max_position_embeddings": 512},
    "falcon_one_key": {**SMALL["falcon"], "new_decoder_architecture": False},
    "falcon_biased": {
        **SMALL["falcon"], "new_decoder_architecture": False, "multi_query": False, "bias": True,
    },
    "falcon_one_norm": {**SMALL["falcon"], "num_ln_in_parallel_attn": 1},
    "olmo_biased": {**SMALL["olmo"], "attention_bias": True, "num_key_value_heads": 2},
    "stablelm_biased": {**SMALL["stablelm"], "use_qkv_bias": True},
    "jais2_unbiased": {**SMALL["jais2"], "attention_bias": False, "mlp_bias": False},
    "youtu_plain": {**SMALL["youtu"], "q_lora_rank": None},
    "vaultgemma_far": {**SMALL["vaultgemma"], "layer_types": ["full_attention"] * 6},
    "olmo_hybrid": {**SMALL["olmo_hybrid"], "rope_parameters": None},
    "axk1_dense": {**SMALL["axk1"], "first_k_dense_replace": 3},
    "glm4v_moe_text": {**SMALL["glm4v_moe_text"], "attention_bias": False},
    "granite_dense": {
        **SMALL["granitemoehybrid"], "num_local_experts": 0, "mamba_n_groups": 1,
    },
    "exaone4_letters": {**SMALL["exaone4"], "layer_types": ["full_attention"] * 6},
    "ernie4_5": {**_WIDE, "use_bias": True},
    "cohere": {**_SHAPE, "use_qk_norm": True},
    "cohere2": {**_SHAPE, "head_dim": 8, "sliding_window": 32},
    "gemma2": {**_WIDE, "sliding_window": 32},
    "gemma3_text": {**_WIDE, "sliding_window": 32},
    "gemma3_4b": {
        "model_type": "gemma3_text", "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 6,
        "intermediate_size": 96, "sliding_window": 32,
    },
    "gemma4_text": {
        **_MOE, "sliding_window": 32, "top_k_experts": 2, "enable_moe_block": True,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 32,
        "hidden_size_per_layer_input": 0,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "gemma4_e2b": {
        **SMALL["gemma4_text"], "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    },
    "gemma3n_text": {**SMALL["gemma3n_text"], "intermediate_size": [96, 96, 80, 96, 64, 64]},
    "gpt_oss": {**_WIDE, **_TOP, "num_local_experts": 4, "sliding_window": 32},
    "phimoe": {**_SHAPE, **_TOP, "num_local_experts": 4, "sliding_window": None,
               "attention_bias": True, "lm_head_bias": True},
    "hunyuan_v1_dense": _WIDE,
    "hunyuan_v1_moe": {**_WIDE, "num_experts": 4, "moe_topk": [2] * 6},
    "nemotron": {**_WIDE, "mlp_bias": True},
    "qwen3_next": {**_HYBRID_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID_MOE,
    "deepseek_v2": {**_LATENT, "q_lora_rank": None},
    "deepseek_v3": {**_LATENT, "attention_bias": True},
    "deepseek_v32": _INDEXED,
    "glm_moe_dsa": {**_INDEXED, "index_topk_freq": 3, "index_skip_topk_offset": 2},
    "mistral4": {**_LATENT, "first_k_dense_replace": 2},
    "deepseek_v4": {
        "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8,
        "n_routed_experts": 4, **_TOP, "moe_intermediate_size": 24, "head_dim": 128,
        "q_lora_rank": 20, "o_groups": 2, "o_lora_rank": 12, "index_n_heads": 3,
        "index_head_dim": 16, "hc_mult": 3, "sliding_window": 32, "n_shared_experts": 1,
        "compress_ratios": [0, 4, 128, 4, 128, 0, 0], "qk_rope_head_dim": 64, "index_topk": 32,
    },
    "minimax_m2": {**_WIDE, **_TOP, "num_local_experts": 4, "use_qk_norm": True},
    "minimax_m3_vl_text": {
        **_WIDE, **_TOP, "num_local_experts": 4, "dense_intermediate_size": 80,
        "shared_intermediate_size": 40, "moe_layer_freq": [0, 0, 1, 1, 1, 1],
        "sparse_attention_config": {
            "sparse_index_dim": 12, "sparse_num_index_heads": 2, "sparse_topk_blocks": 4,
            "sparse_attention_freq": [0, 1, 1, 1, 1, 1],
        },
    },
    "llama4_text": {
        **_WIDE, **_TOP, "num_local_experts": 4, "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
    },
    "jamba": {**_SHAPE, **_TOP, "num_hidden_layers": 8, "num_experts": 4},
    "falcon_h1": {
        **_WIDE, "mamba_d_ssm": 48, "mamba_n_heads": 4, "mamba_d_head": 12, "mamba_d_state": 10,
        "mamba_n_groups": 2, "mamba_rms_norm": True,
    },
    "nemotron_h": _NEMOTRON,
}  # fmt: skip
"""By model type, or a name with `model_type` in it; those that transformers has a class of."""
