"""Config files of small decoders that a forward runs, and forwards of them."""

from pathlib import Path
from typing import Any

import torch
from decoders.files import change, write
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import RandomWeights
from torch import Tensor

from models.given_weights import GivenWeights

CONTEXT, BATCH, MOST = 23, 2, 33
POSITIONS = (1, 2, 7, 33)
_COMMON: dict[str, Any] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_hidden_layers": 3,
    "vocab_size": 97, "max_position_embeddings": 128,
}  # fmt: skip
_LING: dict[str, Any] = {
    "head_dim": 16, "partial_rotary_factor": 0.5, "use_qk_norm": True, "use_qkv_bias": False,
    "use_bias": False, "score_function": "sigmoid", "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2,
}  # fmt: skip
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
_GEMMA: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "sliding_window": 12,
    "tie_word_embeddings": True,
}  # fmt: skip
_YARN: dict[str, Any] = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 8.0,
    "beta_slow": 1.0,
}  # fmt: skip
_MSCALED = _YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}
_SCORED: dict[str, Any] = {
    "num_key_value_heads": 8, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
_RANKED: dict[str, Any] = {**_SCORED, "q_lora_rank": 20, "rope_scaling": _MSCALED}
# As many heads that positions are no tie: a score is zero where no head's product is positive.
_SELECTING: dict[str, Any] = {**_SCORED, "index_topk": 8, "index_n_heads": 24}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "mixtral": {}, "qwen2": {}, "qwen3": {},
    "qwen2_moe": {"intermediate_size": 96, "mlp_only_layers": [1], "norm_topk_prob": False},
    "qwen3_moe": {"norm_topk_prob": True},
    "wedlm": {"qk_norm": True, "attention_bias": False},
    "bailing_moe": _LING, "bailing_moe_v2": _LING, "llada2_moe": _LING,
    "gemma2": {
        **_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        "layer_types": _ALTERNATING,
    },
    "gemma3_text": {**_GEMMA, "rope_local_base_freq": 100.0, "layer_types": _ALTERNATING},
    "gemma4_text": {
        **_GEMMA, "rope_theta": ..., "layer_types": sorted(_ALTERNATING, reverse=True),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e4,
            },
        },
    },
    "gpt_oss": {
        "sliding_window": 12, "swiglu_limit": 0.5, "rope_scaling": _YARN | {"truncate": False},
        "layer_types": _ALTERNATING,
    },
    "llama4_text": {
        "attention_chunk_size": 8, "no_rope_layers": [1, 0, 1], "use_qk_norm": True,
        "attn_scale": 0.5, "floor_scale": 16, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
        },
    },
    "deepseek_v2": {
        **_SCORED, "topk_method": "group_limited_greedy", "norm_topk_prob": False,
        "rope_scaling": _MSCALED, "attention_bias": False,
    },
    **dict.fromkeys(("deepseek_v3", "kimi_k2", "glm4_moe_lite"), _RANKED),
    "deepseek_v32": _SELECTING,
    "glm_moe_dsa": {**_SELECTING, "index_topk_pattern": "FSF"},
    "mistral4": {
        **_SCORED, "q_lora_rank": 20, "first_k_dense_replace": 0, "rope_theta": ...,
        "intermediate_size": 96, "rope_parameters": {
            **_MSCALED, "rope_theta": 1e4, "llama_4_scaling_beta": 0.5,
        },
    },
}  # fmt: skip
KINDS = sorted(_OWN)
"""Model types with a forward."""
SHARED: dict[str, Any] = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 97,
}  # fmt: skip
"""What gives Gemma 4 layers that share caches, and inputs of layers' own."""


def document(kind: str, **changes: Any) -> dict[str, Any]:
    """Return the config file of a small decoder; keys set to ... are gone."""
    return change(kind, **(_COMMON | _OWN[kind] | changes))


def make_forward(
    folder: Path,
    config: dict[str, Any],
    *,
    weights: RandomWeights | GivenWeights | None = None,
    dtype: torch.dtype = torch.float32,
    context: int = CONTEXT,
    **options: Any,
) -> DecoderForward:
    """Return the forward of a config file, with random weights where none are given."""
    path = write(folder, config, "config.json")
    return DecoderForward(
        read_decoder(path),
        read_details(path),
        weights or RandomWeights(dtype),
        batch=BATCH,
        context=context,
        max_positions=MOST,
        dtype=dtype,
        **options,
    )


def tokens(n: int, seed: int = 1) -> Tensor:
    """Return random tokens [b, N]."""
    return torch.randint(97, (BATCH, n), generator=torch.Generator().manual_seed(seed))


def error(out: Tensor, expected: Tensor) -> float:
    """Return the norm of a difference by the norm of what is expected."""
    return float((out.double() - expected.double()).norm() / expected.double().norm())
