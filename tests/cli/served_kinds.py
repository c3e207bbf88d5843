"""Shapes of published models whose layers differ, as their publishers state them."""

from typing import Any

from derive.test_memory import SHAPES

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
INT4 = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
                    "symmetric": True, "dynamic": False},
    }},
}  # fmt: skip
_PLAIN = {"torch_dtype": "bfloat16"}
_GEMMA = {**_PLAIN, "num_attention_heads": 32, "num_key_value_heads": 16}
_LLAMA_4 = {
    **_PLAIN, "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
_SELECTED = {"index_topk": 2048, "index_head_dim": 128}
MODELS: dict[str, dict[str, Any]] = {
    "gemma_2_27b": {
        **_GEMMA, "model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864,
        "num_hidden_layers": 46, "head_dim": 128, "sliding_window": 4096, "vocab_size": 256000,
    },
    "gemma_3_27b": {
        **_GEMMA, "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 62, "head_dim": 128, "sliding_window": 1024,
    },
    "gemma_4_31b": {
        **_GEMMA, "model_type": "gemma4_text", "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 60, "head_dim": 256, "global_head_dim": 512, "vocab_size": 262144,
        "sliding_window": 1024, "attention_k_eq_v": True, "num_global_key_value_heads": 4,
        "hidden_size_per_layer_input": 0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    },
    "gpt_oss_20b": {
        **SHAPES["gpt_oss_120b"], "num_hidden_layers": 24, "num_local_experts": 32,
    },
    "gpt_oss_120b": SHAPES["gpt_oss_120b"],
    "llama_4_scout": {
        **_LLAMA_4, "num_local_experts": 16, "interleave_moe_layer_step": 1,
    },
    "llama_4_maverick": {
        **_LLAMA_4, "num_local_experts": 128, "interleave_moe_layer_step": 2,
    },
    "deepseek_v2_lite": {
        **_PLAIN, "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
        "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "first_k_dense_replace": 1, "vocab_size": 102400,
        "tie_word_embeddings": False,
    },
    "deepseek_r1": {**SHAPES["deepseek_r1"], "quantization_config": FP8},
    "deepseek_v3_2": {
        **SHAPES["deepseek_r1"], **_SELECTED, "model_type": "deepseek_v32", "index_n_heads": 64,
        "quantization_config": FP8,
    },
    "kimi_k2": {**SHAPES["kimi_k2"], "quantization_config": FP8},
    "mistral_small_4": {
        **_PLAIN, "model_type": "mistral4", "vocab_size": 131072, "hidden_size": 4096,
        "moe_intermediate_size": 2048, "num_hidden_layers": 36,
        "num_attention_heads": 32, "n_shared_experts": 1, "n_routed_experts": 128,
        "num_experts_per_tok": 4, "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False,
        "quantization_config": FP8,
    },
    "glm_5_1": {
        **_PLAIN, **_SELECTED, "model_type": "glm_moe_dsa", "vocab_size": 154880,
        "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
        "num_hidden_layers": 78, "num_attention_heads": 64, "n_shared_experts": 1,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "kv_lora_rank": 512,
        "q_lora_rank": 2048, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
        "first_k_dense_replace": 3, "index_n_heads": 32, "tie_word_embeddings": False,
        "quantization_config": FP8,
    },
    "minimax_m3": {
        **_PLAIN, "model_type": "minimax_m3", "hidden_size": 6144, "num_hidden_layers": 60,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 200064, "intermediate_size": 3072, "dense_intermediate_size": 12288,
        "shared_intermediate_size": 3072, "n_shared_experts": 1, "num_local_experts": 128,
        "num_experts_per_tok": 4, "moe_layer_freq": [0] * 3 + [1] * 57,
        "sparse_attention_config": {
            "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_topk_blocks": 16,
            "sparse_block_size": 128, "sparse_attention_freq": [0] * 3 + [1] * 57,
        },
        "tie_word_embeddings": False,
    },
    "kimi_k3": {
        "model_type": "kimi_k3",
        "text_config": {
            **_PLAIN, "model_type": "kimi_linear", "hidden_size": 7168, "num_hidden_layers": 93,
            "num_attention_heads": 96, "num_key_value_heads": 96, "vocab_size": 163840,
            "intermediate_size": 33792, "moe_intermediate_size": 3072, "num_experts": 896,
            "num_experts_per_token": 16, "num_shared_experts": 2, "first_k_dense_replace": 1,
            "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True,
            "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_output_gate": True,
            "attn_res_block_size": 12, "tie_word_embeddings": False,
            "linear_attn_config": {
                "head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4,
                "use_full_rank_gate": True, "full_attn_layers": [*range(4, 93, 4), 93],
                "kda_layers": [at for at in range(1, 93) if at % 4],
            },
            "quantization_config": {
                "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
                "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*lm_head.*",
                           "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
                "config_groups": {"group_0": {
                    "format": "mxfp4-pack-quantized", "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "float", "strategy": "group",
                                "group_size": 32, "symmetric": True, "dynamic": False,
                                "scale_dtype": "torch.uint8"},
                }},
            },
        },
    },
}  # fmt: skip
