"""Small config files, one for each model type, with the keys that it requires."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from nearfree.backends.names import BackendRelease
from nearfree.core.precision import Precision
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.model_file import ModelFile
from nearfree.decoders.ranks.modules import ModuleUse, modules
from nearfree.decoders.weights import Stored
from nearfree.errors import ConfigError

CONFIG = Path(__file__).parents[2] / "config"
ALL_MODELS = sorted((CONFIG / "models").glob("*.json"))
SHIPPED = [path for path in ALL_MODELS if not path.stem.endswith(("_cpu", "_cut"))]
"""Files of published models; the others are scaled down."""
_ATTENTION = {
    "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 500,
    "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
_DENSE = {**_ATTENTION, "intermediate_size": 96}
_ONE_KEY_PER_HEAD = {key: value for key, value in _DENSE.items() if key != "num_key_value_heads"}
_GPT = {
    "torch_dtype": "bfloat16", "n_embd": 64, "n_layer": 6, "vocab_size": 500, "n_head": 8,
    "n_inner": 96,
}  # fmt: skip
_WINDOWED = {**_DENSE, "sliding_window": None}
_WIDE = {**_DENSE, "head_dim": 16}
_QWEN_MOE = {
    **_ATTENTION, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
    "decoder_sparse_step": 1,
}  # fmt: skip
_FIRST_DENSE = {
    **_DENSE, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
    "num_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip
_LATENT = {
    "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 500,
    "num_attention_heads": 8, "intermediate_size": 96, "kv_lora_rank": 12, "q_lora_rank": None,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 10, "n_routed_experts": 16,
    "num_experts_per_tok": 4, "moe_intermediate_size": 24, "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}  # fmt: skip
_SELECTED = {
    **_LATENT, "q_lora_rank": 20, "index_topk": 32, "index_n_heads": 3, "index_head_dim": 14,
}  # fmt: skip
_ALTERNATING = {**_WIDE, "sliding_window": 32}
_ENTRIES = {
    "torch_dtype": "bfloat16", "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 6,
    "num_attention_heads": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "head_dim": 128, "q_lora_rank": 20, "o_groups": 2,
    "o_lora_rank": 12, "index_n_heads": 3, "index_head_dim": 16, "index_topk": 32,
    "hc_mult": 3, "sliding_window": 32, "n_shared_experts": 1,
    "compress_ratios": [0, 4, 128, 4, 128, 0, 0],
}  # fmt: skip
_LINEAR = {
    "full_attention_interval": 3, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
_LINEAR_MOE = {
    **_ATTENTION, **_LINEAR, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "decoder_sparse_step": 1,
}  # fmt: skip
_MAMBA_BESIDE = {
    **_WIDE, "mamba_d_ssm": 96, "mamba_n_heads": 4, "mamba_d_head": 24, "mamba_d_state": 10,
    "mamba_n_groups": 2,
}  # fmt: skip
_APART = {
    **_ATTENTION, "head_dim": 16, "intermediate_size": 96, "mamba_num_heads": 4,
    "mamba_head_dim": 6, "ssm_state_size": 10, "n_groups": 2, "hybrid_override_pattern": "M-E*ME",
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40, "mamba_ssm_cache_dtype": "float32",
}  # fmt: skip
_FILES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "llama", "granite", "olmo2", "qwen2", "cohere", "hunyuan_v1_dense", "mimo", "smollm3",
            "qwen2_vl_text", "qwen2_5_vl_text",
        ),
        _DENSE,
    ),
    **dict.fromkeys(("mistral", "phi3"), _WINDOWED),
    **dict.fromkeys(
        ("qwen3", "wedlm", "seed_oss", "ernie4_5", "qwen3_vl_text", "gemma"), _WIDE
    ),
    "ministral3": {**_WIDE, "sliding_window": None},
    "llada": {
        "torch_dtype": "bfloat16", "d_model": 64, "n_layers": 6, "embedding_size": 500,
        "n_heads": 8, "n_kv_heads": 2, "mlp_hidden_size": 96,
    },
    "phimoe": {**_WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2},
    **dict.fromkeys(("telechat3", "solar", "PanguEmbedded"), _DENSE),
    "sarvam_moe": {**_FIRST_DENSE, "head_dim": 16},
    "sarvam_mla": {
        **{key: value for key, value in _LATENT.items() if not key.startswith("n_")},
        "num_experts": 16, "num_shared_experts": 2,
    },
    "bailing_hybrid": {
        **{key: value for key, value in _LATENT.items() if not key.startswith("n_")},
        "head_dim": 12, "num_experts": 16, "num_shared_experts": 2, "short_conv_kernel_size": 4,
        "layer_group_size": 3, "no_kda_lora": True,
        "gated_attention_proj_granularity_type": "head_wise",
    },
    "sdar": _WIDE,
    "sdar_moe": {**_QWEN_MOE, "head_dim": 16},
    "kolibri1": {
        **_ATTENTION, "head_dim": 16, "sliding_window": 32, "num_experts": 16,
        "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "longcat_flash": {
        "torch_dtype": "bfloat16", "hidden_size": 64, "num_layers": 6, "vocab_size": 500,
        "num_attention_heads": 8, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 24,
        "n_routed_experts": 16, "moe_topk": 6, "zero_expert_num": 8, "kv_lora_rank": 12,
        "q_lora_rank": 20, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 10,
    },
    "minimax_m2": {**_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "hunyuan_v1_moe": {**_DENSE, "num_experts": 4, "moe_topk": 2},
    "qwen3_vl_moe_text": {
        **_ATTENTION, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "head_dim": 16,
    },
    "mixtral": {**_WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {**_DENSE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {**_DENSE, "num_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**_QWEN_MOE, "shared_expert_intermediate_size": 80},
    "qwen3_moe": {**_QWEN_MOE, "head_dim": 16},
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe"), _FIRST_DENSE),
    "glm4_moe": {
        **_DENSE, "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "n_shared_experts": 2, "first_k_dense_replace": 1,
    },
    "ernie4_5_moe": {
        **_DENSE, "moe_num_experts": 16, "moe_k": 4, "moe_intermediate_size": 24,
        "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
    },
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), _LATENT),
    "mistral4": {
        key: value
        for key, value in _LATENT.items()
        if key not in ("first_k_dense_replace", "intermediate_size")
    },
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _SELECTED),
    **dict.fromkeys(("cohere2", "gemma2", "gemma3_text"), _ALTERNATING),
    "gemma4_text": {
        **_ALTERNATING, "hidden_size_per_layer_input": 0, "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "gemma3n_text": {
        **_ALTERNATING, "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2, "altup_num_inputs": 3, "laurel_rank": 8,
        "hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": 480,
    },
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), _ENTRIES),
    "qwen3_next": _LINEAR_MOE,
    "qwen3_5_moe_text": {**_LINEAR_MOE, "mamba_ssm_dtype": "float32"},
    "qwen3_5_text": {**_WIDE, **_LINEAR, "mamba_ssm_dtype": "float32"},
    "falcon_h1": _MAMBA_BESIDE,
    "nemotron_h": _APART,
    "kimi_linear": {
        **{key: value for key, value in _LATENT.items()
           if key not in ("n_routed_experts", "num_experts_per_tok", "n_shared_experts")},
        "num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 2,
        "linear_attn_config": {
            "head_dim": 6, "num_heads": 4, "short_conv_kernel_size": 4,
            "kda_layers": [1, 2, 4, 5], "full_attn_layers": [3, 6],
        },
    },
    "nemotron-nas": {
        "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 500,
        "num_attention_heads": 8,
        "block_configs": [
            {"attention": {"no_op": layer in (1, 4), "n_heads_in_group": 4},
             "ffn": {"no_op": layer == 5, "ffn_mult": 2.0 if layer < 3 else 8.0}}
            for layer in range(6)
        ],
    },
    "glm": _WIDE,
    "glm4": _WIDE,
    **dict.fromkeys(("glm4v_text", "arcee", "apertus", "nemotron"), _DENSE),
    "starcoder2": _WINDOWED,
    "olmo3": {**_DENSE, "sliding_window": 32},
    "exaone4": {**_DENSE, "sliding_window": 32, "sliding_window_pattern": 4},
    "glm4v_moe_text": {
        **_DENSE, "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "n_shared_experts": 2, "first_k_dense_replace": 1,
    },
    "granitemoehybrid": {
        **_DENSE, "shared_intermediate_size": 40, "num_local_experts": 4,
        "num_experts_per_tok": 2, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 10,
        "mamba_n_groups": 2,
        "layer_types": ["mamba", "mamba", "attention"] * 2,
    },
    "mimo_v2_flash": {
        **_WIDE, "v_head_dim": 12, "swa_num_attention_heads": 8, "swa_num_key_value_heads": 4,
        "swa_head_dim": 16, "swa_v_head_dim": 12, "sliding_window": 32,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0], "add_swa_attention_sink_bias": True,
        "moe_layer_freq": [0, 1, 1, 1, 1, 1], "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
    "step3p5": {
        "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 500,
        "num_attention_heads": 8, "num_attention_groups": 2, "head_dim": 16,
        "intermediate_size": 96, "sliding_window": 32, "num_sliding_attention_heads": 12,
        "layer_types": ["full_attention", *["sliding_attention"] * 2] * 2,
        "moe_num_experts": 4, "moe_top_k": 2,
        "moe_intermediate_size": 24, "share_expert_dims": 40,
    },
    "step3_text": {
        "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 500,
        "num_attention_heads": 8, "head_dim": 16, "share_q_dim": 24, "intermediate_size": 96,
        "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 20, "share_expert_dim": 40,
        "moe_layers_enum": "2,3,4,5",
    },
    "minimax_m3_vl_text": {
        **_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24,
        "dense_intermediate_size": 96, "shared_intermediate_size": 24,
        "moe_layer_freq": [0, 1, 1, 1, 1, 1],
        "sparse_attention_config": {
            "sparse_index_dim": 12, "sparse_num_index_heads": 2, "sparse_topk_blocks": 4,
            "sparse_block_size": 128, "sparse_attention_freq": [0, 1, 1, 1, 1, 1],
        },
    },
    "afmoe": {
        **_ALTERNATING, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "num_shared_experts": 2, "num_dense_layers": 1, "global_attn_every_n_layers": 3,
    },
    "exaone_moe": {**_FIRST_DENSE, "sliding_window": 32, "sliding_window_pattern": 3},
    "hy_v3": {**_FIRST_DENSE, "head_dim": 16, "qk_norm": True},
    "laguna": {
        **_ALTERNATING, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40, "mlp_layer_types": ["dense"] + ["sparse"] * 5,
        "layer_types": ["full_attention", *["sliding_attention"] * 2] * 2,
        "num_attention_heads_per_layer": [8, 16, 16] * 2,
    },
    "granite_swa": {**_DENSE, "sliding_window": 32},
    "granitemoe_swa": {
        **_DENSE, "sliding_window": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 96,
    },
    "granitemoeshared": {
        **_DENSE, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 96,
    },
    "cwm": _ALTERNATING,
    "ministral": _ALTERNATING,
    "mellum": {
        **_ATTENTION, "head_dim": 16, "sliding_window": 32, "num_experts": 16,
        "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "layer_types": ["full_attention", *["sliding_attention"] * 2] * 2,
    },
    "cohere2_moe": {
        **_ALTERNATING, "num_experts": 4, "num_experts_per_tok": 2,
        "mlp_layer_types": ["dense"] + ["sparse"] * 5,
    },
    **dict.fromkeys(("internlm3", "iquestcoder", "glm_ocr_text"), _WIDE),
    **dict.fromkeys(("internlm2", "minicpm", "stablelm", "jais2"), _DENSE),
    "minicpm3": {
        **_ONE_KEY_PER_HEAD, "kv_lora_rank": 12, "q_lora_rank": 20, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6, "v_head_dim": 8,
    },
    **dict.fromkeys(("phi", "gpt_neox", "olmo", "orion"), _ONE_KEY_PER_HEAD),
    "baichuan": {**_ONE_KEY_PER_HEAD, "hidden_size": 4096},
    "bloom": {
        "torch_dtype": "bfloat16", "n_embed": 64, "n_layer": 6, "n_head": 8, "vocab_size": 500,
    },
    "mpt": {
        "torch_dtype": "bfloat16", "d_model": 64, "n_layers": 6, "n_heads": 8, "vocab_size": 500,
        "attn_config": {"alibi": True, "qk_ln": False}, "no_bias": True,
    },
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj"), _GPT),
    "opt": {
        "ffn_dim" if key == "intermediate_size" else key: value
        for key, value in _ONE_KEY_PER_HEAD.items()
    },
    "falcon": {
        "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 500,
        "num_attention_heads": 8, "num_kv_heads": 2, "new_decoder_architecture": True,
    },
    "chatglm": {
        "torch_dtype": "bfloat16", "hidden_size": 64, "num_layers": 6, "padded_vocab_size": 500,
        "num_attention_heads": 8, "multi_query_attention": True, "multi_query_group_num": 2,
        "ffn_hidden_size": 96, "add_qkv_bias": True,
    },
    "dbrx": {
        "torch_dtype": "bfloat16", "d_model": 64, "n_layers": 6, "vocab_size": 500, "n_heads": 8,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5},
        "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 24},
    },
    "exaone": {
        "num_layers" if key == "num_hidden_layers" else key: value for key, value in _DENSE.items()
    },
    "vaultgemma": _ALTERNATING,
    "youtu": {
        key: value
        for key, value in _LATENT.items()
        if key in _DENSE or key.endswith(("_rank", "_dim"))
    },
    "deepseek": {
        **_DENSE, "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "n_shared_experts": 2, "first_k_dense_replace": 1,
    },
    "flex_olmo": {**_DENSE, "num_experts": 4, "num_experts_per_tok": 2},
    "olmo_hybrid": {
        **_DENSE, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
        "linear_value_head_dim": 10,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    },
    "hyperclovax": _DENSE,
    "axk1": {**_LATENT, "q_lora_rank": 20},
    **dict.fromkeys(("muse_glimmer_text", "spark2_5"), _ALTERNATING),
    "beam": {
        **_ALTERNATING, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4,
    },
    "dots1": {
        **_DENSE, "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "sliding_window": None,
    },
    "solar_open": {
        **_ATTENTION, "head_dim": 16, "n_routed_experts": 16, "num_experts_per_tok": 4,
        "moe_intermediate_size": 24, "n_shared_experts": 1,
    },
    "lfm2": {
        **_ATTENTION, "block_ff_dim": 144, "block_multiple_of": 16, "conv_L_cache": 3,
        "full_attn_idxs": [2, 5],
    },
    "lfm2_moe": {
        **_DENSE, "conv_L_cache": 3, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "num_dense_layers": 2,
        "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention"],
    },
    "gpt_oss": {**_ALTERNATING, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {
        **_WIDE, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 112,
        "interleave_moe_layer_step": 2,
    },
}  # fmt: skip
SMALL = {kind: {"model_type": kind, **values} for kind, values in _FILES.items()}
"""By model type."""
DEFAULTED = {
    *product(
        ("gemma3_text",), ("vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads")
    ),
    *product(
        ("llama", "granite", "granitemoe", "granitemoehybrid", "cohere", "cohere2", "olmo2",
         "olmo3", "olmoe", "arcee", "apertus", "phi3", "hunyuan_v1_dense", "hunyuan_v1_moe",
         "granite_swa", "granitemoe_swa", "granitemoeshared", "cohere2_moe", "hyperclovax",
         "exaone", "internlm2", "minicpm", "jais2", "deepseek", "flex_olmo", "olmo_hybrid",
         "telechat3", "solar", "PanguEmbedded"),
        ("num_key_value_heads",),
    ),
    *product(("gpt2", "gpt_bigcode", "gptj"), ("n_inner",)),
    *product(("sarvam_mla", "bailing_hybrid"), ("q_lora_rank",)), ("mpt", "no_bias"),
    *product(("falcon",), ("num_kv_heads", "new_decoder_architecture")),
    *product(("chatglm",), ("multi_query_attention", "add_qkv_bias", "multi_query_group_num")),
    ("exaone4", "sliding_window"),
    *product(("lfm2",), ("full_attn_idxs", "block_multiple_of")), ("lfm2_moe", "layer_types"),
    ("ministral", "sliding_window"),
    ("dots1", "sliding_window"),
    *product(("granitemoe_swa", "granitemoeshared"), ("shared_intermediate_size",)),
    *product(("mellum", "cohere2_moe", "beam"), ("layer_types", "mlp_layer_types")),
    ("exaone_moe", "sliding_window_pattern"),
    ("afmoe", "global_attn_every_n_layers"),
    *product(("laguna",), ("layer_types", "num_attention_heads_per_layer")),
    ("gemma4_text", "hidden_size_per_layer_input"),
    ("gemma3n_text", "layer_types"),
    ("gemma4_text", "global_head_dim"),
    *product(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        (*_LINEAR, "decoder_sparse_step", "mamba_ssm_dtype"),
    ),
    *product(
        ("falcon_h1", "nemotron_h"),
        ("head_dim", "num_key_value_heads", "n_groups", "mamba_d_ssm", "mamba_ssm_cache_dtype"),
    ),
    ("nemotron_h", "num_hidden_layers"), ("mimo_v2_flash", "add_swa_attention_sink_bias"),
    ("granitemoehybrid", "mamba_n_groups"),
    *product(
        ("step3p5",), ("head_dim", "num_sliding_attention_heads", "layer_types")
    ),
}  # fmt: skip
"""Keys that published files leave out because their class has a default."""
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
VALUES = st.one_of(
    SCALARS,
    st.sampled_from([0, -1, 10**7 + 1, 10**400, "1", 1.0, [], [1], {}, [[]], "\ud800"]),
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
)
"""Values of any type, most of them wrong for any key."""


def refusal(call: Callable[[], object]) -> ConfigError | None:
    """Return how a call is refused, None if it is not; any other exception is raised."""
    try:
        call()
    except ConfigError as error:
        return error
    return None


def parameters(source: ModelFile | Stored) -> int:
    """Return the elements of all weights; a tied LM head counts once, as the embedding."""
    return sum(weight.elements for weight in source.weights)


def weights_bytes(file: ModelFile, precision: Precision | None = None) -> float:
    """Return the bytes of all weights in a precision, or as the files say if None."""
    return sum(weight.size_bytes for weight in file.stored(precision))


def write(folder: Path, document: object, name: str = "small.json") -> Path:
    """Write a document as JSON and return the file's path."""
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def change(kind: str, **changes: Any) -> dict[str, Any]:
    """Return the small file of a model type with some keys changed, or removed if set to ...."""
    changed = SMALL[kind] | changes
    return {key: value for key, value in changed.items() if value is not ...}


def read(folder: Path, kind: str, **changes: Any) -> Decoder:
    """Return the decoder of a small file with some keys changed, or removed if set to ...."""
    return read_decoder(write(folder, change(kind, **changes)))


def modules_by_role(decoder: Decoder, **changes: Any) -> dict[str, ModuleUse]:
    """Return the modules of a forward by their role."""
    defaults: dict[str, Any] = {
        "batch": 2, "context": 1024, "moe": BackendRelease("vllm", "0.33.0"),
        "routing": "balanced", "attention": BackendRelease("flash_attn", "2.8.3"),
    }  # fmt: skip
    return {use.role: use for use in modules(decoder, **defaults | changes)}
