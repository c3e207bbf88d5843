"""The keys of a config.json that a GGUF file's metadata imply, by architecture.

Source: llama.cpp v0.5.0, src/models/NAME.cpp (load_arch_hparams): the keys that each reads, and
their defaults.
"""

from collections.abc import Callable
from typing import Any

from nearfree.decoders.gguf_files.gemma import gemma2, gemma3, gemma3n, gemma4
from nearfree.decoders.gguf_files.latent import SIGMOID, deepseek2, minicpm3
from nearfree.decoders.gguf_files.metadata import (
    adds_bias,
    alternating,
    experts_of,
    qwen_moe,
    uniform_number,
    weights_of_experts,
)
from nearfree.decoders.gguf_files.states import (
    lfm2,
    lfm2_moe,
    nemotron_h,
    qwen3_next,
    qwen35,
    qwen35_moe,
)
from nearfree.decoders.keys import Keys
from nearfree.gguf.header import GgufHeader


def _llama(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Llama, or of Mixtral if there are experts.

    Mistral without a window counts as Llama.
    """
    has_bias = adds_bias(header)
    values: dict[str, Any] = {
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": has_bias,
    }
    if keys.whole("expert_count", least=0, default=0):
        values |= experts_of(keys, "num_local_experts")
        width = "expert_feed_forward_length"
        width = width if keys.has(width) else "feed_forward_length"
        values |= {"model_type": "mixtral", "sliding_window": None}
        values["intermediate_size"] = uniform_number(keys, width)
    return values


_QWEN2 = {"model_type": "qwen2", "hidden_act": "silu", "use_sliding_window": False}


def _qwen3(keys: Keys, header: GgufHeader) -> dict[str, Any]:  # noqa: ARG001 (one signature)
    has_bias = adds_bias(header)
    return {**_QWEN2, "model_type": "qwen3", "attention_bias": has_bias}


def _qwen2_moe(keys: Keys, header: GgufHeader) -> dict[str, Any]:  # noqa: ARG001
    shared = keys.whole("expert_shared_feed_forward_length", least=0, default=0)
    return {
        **_QWEN2,
        **qwen_moe(keys),
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": shared,
        "norm_topk_prob": False,
    }


def _qwen3_moe(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    own = {"model_type": "qwen3_moe", "norm_topk_prob": True}
    return {**_qwen3(keys, header), **qwen_moe(keys), **own}


def _fixed(**values: Any) -> Callable[[Keys, GgufHeader], dict[str, Any]]:
    """Return the function for an architecture whose keys do not depend on the file."""
    return lambda keys, header: values  # noqa: ARG005


def _gpt_oss(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of gpt-oss; its clamp of 7 is in the engine's code, src/llama-graph.cpp."""
    return {
        **alternating(keys, header, 2),
        **experts_of(keys, "num_local_experts"),
        "model_type": "gpt_oss",
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "intermediate_size": uniform_number(keys, "expert_feed_forward_length"),
    }


def _stablelm(keys: Keys, header: GgufHeader) -> dict[str, Any]:  # noqa: ARG001
    """Return the keys of StableLM; what its class reads from keys is said by a file's tensors."""
    names = header.by_name
    return {
        "model_type": "stablelm",
        "use_qkv_bias": adds_bias(header),
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in names,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in names,
    }


def _minicpm(keys: Keys, header: GgufHeader) -> dict[str, Any]:  # noqa: ARG001
    experts = keys.whole("expert_count", least=0, default=0)
    return {"model_type": "minicpm", "num_experts": experts}


def _jais2(keys: Keys, header: GgufHeader) -> dict[str, Any]:  # noqa: ARG001
    return {
        "model_type": "jais2",
        "attention_bias": adds_bias(header),
        "mlp_bias": "blk.0.ffn_up.bias" in header.by_name,
    }


def _deepseek(keys: Keys, header: GgufHeader) -> dict[str, Any]:  # noqa: ARG001
    """Return the keys of DeepSeek's first MoE, whose layers attend as Llama's."""
    return {
        **experts_of(keys, "n_routed_experts"),
        "model_type": "deepseek",
        "intermediate_size": uniform_number(keys, "feed_forward_length"),
        "moe_intermediate_size": uniform_number(keys, "expert_feed_forward_length"),
        "n_shared_experts": keys.whole("expert_shared_count", least=0, default=0),
        "first_k_dense_replace": keys.whole("leading_dense_block_count", least=0, default=0),
    }


def _glm4_moe(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of GLM-4.5 and 4.6, whose experts stand as DeepSeek's."""
    return {
        **_deepseek(keys, header),
        "model_type": "glm4_moe",
        "attention_bias": adds_bias(header),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.by_name,
    }


def _glm4(keys: Keys, header: GgufHeader) -> dict[str, Any]:  # noqa: ARG001
    return {"model_type": "glm4", "hidden_act": "silu", "attention_bias": adds_bias(header)}


def _minimax_m2(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of MiniMax M2, all of whose FFNs are experts."""
    return {
        **experts_of(keys, "num_local_experts"),
        "model_type": "minimax_m2",
        "hidden_act": "silu",
        "intermediate_size": uniform_number(keys, "expert_feed_forward_length"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.by_name,
    }


def _olmo2(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Olmo 2, or of Olmo 3 where there is a window."""
    if not keys.whole("attention.sliding_window", least=0, default=0):
        return {"model_type": "olmo2", "hidden_act": "silu"}
    return {**alternating(keys, header, 4), "model_type": "olmo3", "hidden_act": "silu"}


def _bailing_moe2(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Ling's second version, whose first layers alone are dense."""
    scores, first = keys.whole("expert_gating_func"), "leading_dense_block_count"
    dense = keys.whole(first, least=0, default=0)
    return {
        **experts_of(keys, "num_experts"),
        **weights_of_experts(keys),
        "model_type": "bailing_moe_v2",
        "hidden_act": "silu",
        "intermediate_size": uniform_number(keys, "feed_forward_length"),
        "moe_intermediate_size": uniform_number(keys, "expert_feed_forward_length"),
        "num_shared_experts": keys.whole("expert_shared_count", least=0),
        "first_k_dense_replace": dense,
        "moe_router_enable_expert_bias": f"blk.{dense}.exp_probs_b.bias" in header.by_name,
        "use_qkv_bias": adds_bias(header),
        "use_bias": False,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.by_name,
        "score_function": "sigmoid" if scores == SIGMOID else "softmax",
    }


def _granite(keys: Keys, header: GgufHeader) -> dict[str, Any]:
    """Return the keys of Granite without experts; files with them have another architecture."""
    if keys.whole("expert_count", least=0, default=0):
        raise keys.wrong("expert_count", "gives layers experts, which this architecture has not")
    mlp_bias = "blk.0.ffn_up.bias" in header.by_name
    return {"model_type": "granite", "attention_bias": adds_bias(header), "mlp_bias": mlp_bias}


def _seed_oss(keys: Keys, header: GgufHeader) -> dict[str, Any]:  # noqa: ARG001
    return {
        "model_type": "seed_oss",
        "attention_bias": adds_bias(header),
        "attention_out_bias": "blk.0.attn_output.bias" in header.by_name,
    }


LAYER_NORMED = ("gptneox", "jais2", "phi2", "stablelm", "starcoder2")
"""Architectures whose norms subtract the mean, and name their epsilon by another key."""
ARCHITECTURES: dict[str, Callable[[Keys, GgufHeader], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _fixed(**_QWEN2),
    "qwen2moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "qwen3next": qwen3_next,
    "qwen35": qwen35,
    "qwen35moe": qwen35_moe,
    "gemma": _fixed(model_type="gemma"),
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "phi3": _fixed(model_type="phi3", hidden_act="silu", sliding_window=None),
    "exaone": _fixed(model_type="exaone"),
    "internlm2": _fixed(model_type="internlm2"),
    "gpt-oss": _gpt_oss,
    "lfm2": lfm2,
    "lfm2moe": lfm2_moe,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h,
    "phi2": _fixed(model_type="phi"),
    "gptneox": _fixed(model_type="gpt_neox"),
    "stablelm": _stablelm,
    "minicpm": _minicpm,
    "minicpm3": minicpm3,
    "jais2": _jais2,
    "deepseek": _deepseek,
    "deepseek2": deepseek2,
    "glm4": _glm4,
    "glm4moe": _glm4_moe,
    "bailingmoe2": _bailing_moe2,
    "minimax-m2": _minimax_m2,
    "olmo2": _olmo2,
    "granite": _granite,
    "seed_oss": _seed_oss,
    "smollm3": _fixed(model_type="smollm3"),
    "starcoder2": _fixed(model_type="starcoder2", sliding_window=None),
}
"""By the architecture's name in files: the function that returns the keys of that architecture
beyond those that all have. Engines that read GGUF files give Phi 3 and StarCoder 2 no window."""
