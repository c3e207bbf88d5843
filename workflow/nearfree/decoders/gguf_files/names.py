"""Names in GGUF files of a model's weights.

Source: names of llama.cpp v0.5.0, src/llama-arch.cpp (LLM_TENSOR_NAMES), and of checkpoints in
gguf-py/gguf/tensor_mapping.py.
"""

_ROOTS = ("model.", "transformer.", "gpt_neox.", "backbone.")
_OUTSIDE = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    "word_embeddings": "token_embd", "embeddings": "token_embd", "norm_f": "output_norm",
    "embedding_norm": "token_embd_norm", "wte": "token_embd", "ln_f": "output_norm",
    "tok_embeddings": "token_embd", "output": "output", "embed_in": "token_embd",
    "final_layernorm": "output_norm", "final_layer_norm": "output_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm", "altup_projections.*": "altup_proj",
    "altup_unembed_projections.*": "altup_unembd_proj",
}  # fmt: skip
_HELD = {
    "attn_norm": ("input_layernorm", "ln_1", "attention_norm", "operator_norm", "norm"),
    "ffn_norm": ("post_attention_layernorm", "pre_feedforward_layernorm", "ln_2", "ffn_norm"),
    "post_attention_norm": ("post_self_attn_layernorm",),
    "post_ffw_norm": ("post_feedforward_layernorm", "post_mlp_layernorm"),
    "pre_ffw_norm_2": ("pre_feedforward_layernorm_2",),
    "post_ffw_norm_1": ("post_feedforward_layernorm_1",),
    "post_ffw_norm_2": ("post_feedforward_layernorm_2",),
    "attn_q": ("self_attn.q_proj", "attn.attention.q_proj", "mixer.q_proj"),
    "attn_k": ("self_attn.k_proj", "attn.attention.k_proj", "mixer.k_proj"),
    "attn_v": ("self_attn.v_proj", "attn.attention.v_proj", "mixer.v_proj"),
    "attn_qkv": (
        "self_attn.qkv_proj", "attention.query_key_value", "linear_attn.in_proj_qkv",
    ),
    "attn_gate": ("linear_attn.in_proj_z",),
    "attn_output": (
        "self_attn.o_proj", "attn.attention.out_proj", "attention.wo", "self_attn.out_proj",
        "self_attn.dense", "attention.dense", "mixer.o_proj",
    ),
    "attn_q_a": ("self_attn.q_a_proj",),
    "attn_q_b": ("self_attn.q_b_proj",),
    "attn_kv_a_mqa": ("self_attn.kv_a_proj_with_mqa",),
    "attn_kv_b": ("self_attn.kv_b_proj",),
    "attn_q_a_norm": ("self_attn.q_a_layernorm",),
    "attn_kv_a_norm": ("self_attn.kv_a_layernorm",),
    "attn_q_norm": ("self_attn.q_norm", "self_attn.q_layernorm", "attention.query_layernorm"),
    "attn_k_norm": ("self_attn.k_norm", "self_attn.k_layernorm", "attention.key_layernorm"),
    "attn_sinks": ("self_attn.sinks",),
    "ffn_gate": ("mlp.gate_proj", "mlp.c_fc_0", "feed_forward.w1"),
    "ffn_up": (
        "mlp.up_proj", "mlp.gate_up_proj", "mlp.c_fc_1", "feed_forward.w3", "mlp.fc1",
        "mlp.dense_h_to_4h", "mlp.c_fc", "mixer.up_proj",
    ),
    "ffn_down": (
        "mlp.down_proj", "mlp.c_proj", "feed_forward.w2", "mlp.fc2", "mlp.dense_4h_to_h",
        "mixer.down_proj",
    ),
    "ffn_gate_inp": (
        "mlp.gate", "mlp.router", "feed_forward.gate", "block_sparse_moe.gate", "router.proj",
        "mixer.gate",
    ),
    "ffn_gate_exps": (
        "mlp.experts.*.gate_proj", "feed_forward.experts.*.w1", "block_sparse_moe.experts.*.w1",
    ),
    "ffn_up_exps": (
        "mlp.experts.*.up_proj", "feed_forward.experts.*.w3", "block_sparse_moe.experts.*.w3",
        "mixer.experts.*.up_proj",
    ),
    "ffn_down_exps": (
        "mlp.experts.*.down_proj", "mlp.experts.down_proj", "feed_forward.experts.*.w2",
        "block_sparse_moe.experts.*.w2", "experts.down_proj", "mixer.experts.*.down_proj",
    ),
    "ffn_gate_up_exps": ("experts.gate_up_proj",),
    "ffn_gate_shexp": ("mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"),
    "ffn_up_shexp": (
        "mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj", "mixer.shared_experts.up_proj",
    ),
    "ffn_down_shexp": (
        "mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj",
        "mixer.shared_experts.down_proj",
    ),
    "ffn_gate_inp_shexp": ("mlp.shared_expert_gate",),
    "inp_gate": ("per_layer_input_gate",),
    "proj": ("per_layer_projection",),
    "post_norm": ("post_per_layer_input_norm",),
    "altup_correct_coef": ("altup.correction_coefs",),
    "altup_correct_scale": ("altup.correct_output_scale",),
    "altup_predict_coef": ("altup.prediction_coefs",),
    "altup_router": ("altup.modality_router",),
    "altup_router_norm": ("altup.router_norm",),
    "laurel_l": ("laurel.linear_left",),
    "laurel_r": ("laurel.linear_right",),
    "laurel_post_norm": ("laurel.post_laurel_norm",),
    "ffn_latent_down": ("mixer.fc1_latent_proj",),
    "ffn_latent_up": ("mixer.fc2_latent_proj",),
    "ssm_in": ("mixer.in_proj",),
    "ssm_conv1d": ("linear_attn.conv1d", "mixer.conv1d"),
    "ssm_norm": ("linear_attn.norm", "mixer.norm"),
    "ssm_alpha": ("linear_attn.in_proj_a",),
    "ssm_beta": ("linear_attn.in_proj_b",),
    "ssm_ba": ("linear_attn.in_proj_ba",),
    "ssm_out": ("linear_attn.out_proj", "mixer.out_proj"),
    "shortconv.in_proj": ("conv.in_proj",),
    "shortconv.conv": ("conv.conv",),
    "shortconv.out_proj": ("conv.out_proj",),
}  # fmt: skip
"""Names in GGUF files of a layer's tensors, with the checkpoints' names of the weight in each."""
INSIDE = {
    **{name: (tensor,) for tensor, names in _HELD.items() for name in names},
    "mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "attention.wqkv": ("attn_q", "attn_k", "attn_v"),
    "linear_attn.in_proj_qkvz": ("attn_qkv", "attn_gate"),
}
"""Names in GGUF files of a layer's weight: of one tensor, or of several that make up the weight."""
_OTHERWISE = {
    "self_attn.kv_b_proj": ("attn_k_b", "attn_v_b"),
    "linear_attn.in_proj_qkvz": ("ssm_in",),
    "experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
}
"""Names of the tensors that make up a layer's weight in files of other releases of converters."""
_WHOLE = {
    "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a",
    "mixer.dt_bias": "ssm_dt.bias", "mixer.A_log": "ssm_a", "mixer.D": "ssm_d",
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
}  # fmt: skip
"""Whole names in GGUF files of weights whose tensors have another ending, or none."""
_NORMED_AFTER_ATTENTION = (
    "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "seed_oss", "glm4_moe",
    "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "olmo2", "olmo3",
)  # fmt: skip
"""Model types whose norm after attention has that name, whether or not it is the FFN's."""


def other_names(name: str, layer: int | None = None) -> tuple[str, ...]:
    """Return the names of a weight's tensors in files of other releases, empty if there are none.

    Parameters
    ----------
    name
        As of `tensor_names`.
    """
    parts = _OTHERWISE.get(name.removeprefix("model.layers.*."), ())
    return tuple(f"blk.{layer}.{part}.weight" for part in parts)


def tensor_names(model_type: str, name: str, layer: int | None = None) -> tuple[str, ...]:
    """Return the names of a weight's tensors in GGUF files, empty if there are none.

    Parameters
    ----------
    name
        The name in `Matrix`, such as `model.layers.*.self_attn.q_proj`; a bias ends in `.bias`.
    """
    ending = "bias" if name.endswith(".bias") else "weight"
    inner = name.removesuffix(".bias")
    for root in _ROOTS:
        inner = inner.removeprefix(root)
    if layer is None:
        return (f"{_OUTSIDE[inner]}.{ending}",) if inner in _OUTSIDE else ()
    part = inner.removeprefix("layers.*.").removeprefix("h.*.")
    if part in _WHOLE:
        return (f"blk.{layer}.{_WHOLE[part]}",)
    parts = INSIDE.get(part, ())
    if part == "post_attention_layernorm" and model_type in _NORMED_AFTER_ATTENTION:
        parts = ("post_attention_norm",)
    return tuple(f"blk.{layer}.{part}.{ending}" for part in parts)
