"""Any model: public ones that nothing here names are run and predicted, or refused by feature.

The documents are the publishers' config.json, without token ids, dropout and the like.
"""

from pathlib import Path
from typing import Any

import nearfree
import pytest
import torch
from cli.conftest import Call, call, recorded
from decoders.files import CONFIG, refusal, write
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import RandomWeights

__all__ = ["call", "recorded"]

_PLAIN: dict[str, Any] = {
    "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
RUN: dict[str, dict[str, Any]] = {
    "TinyLlama-1.1B": {
        **_PLAIN, "model_type": "llama", "attention_bias": False, "hidden_size": 2048,
        "intermediate_size": 5632, "max_position_embeddings": 2048, "num_attention_heads": 32,
        "num_hidden_layers": 22, "num_key_value_heads": 4, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0, "vocab_size": 32000,
    },
    "Qwen1.5-MoE-A2.7B": {
        **_PLAIN, "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
        "max_position_embeddings": 8192, "max_window_layers": 21, "num_attention_heads": 16,
        "num_hidden_layers": 24, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False,
        "vocab_size": 151936, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60,
        "norm_topk_prob": False,
    },
    "Mistral-7B-v0.1": {
        **_PLAIN, "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "vocab_size": 32000,
    },
    "gemma-2-2b": {
        "model_type": "gemma2", "attn_logit_softcapping": 50.0, "head_dim": 256,
        "final_logit_softcapping": 30.0, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
        "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26,
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32",
        "vocab_size": 256000,
    },
    "Moonlight-16B-A3B": {
        **_PLAIN, "model_type": "deepseek_v3", "attention_bias": False,
        "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 11264,
        "kv_lora_rank": 512, "max_position_embeddings": 8192, "moe_intermediate_size": 1408,
        "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
        "norm_topk_prob": True, "num_attention_heads": 16, "num_experts_per_tok": 6,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "num_nextn_predict_layers": 0,
        "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05, "rope_theta": 50000.0, "routed_scaling_factor": 2.446,
        "scoring_func": "sigmoid", "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128,
        "vocab_size": 163840,
    },
}  # fmt: skip
"""Dense with grouped queries; with experts and a shared one; with a window in every layer; with
windows in every other and capped logits; with latents."""
PREDICTED = ("TinyLlama-1.1B", "Qwen1.5-MoE-A2.7B", "Mistral-7B-v0.1")
"""Those whose kernels have constants in the log that the tests record."""
PREDICTED_ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Next-80B-A3B": (
        "36 of 48 layers (gated delta net)",
        {
            **_PLAIN, "model_type": "qwen3_next", "decoder_sparse_step": 1,
            "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048,
            "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
            "max_position_embeddings": 262144, "mlp_only_layers": [], "moe_intermediate_size": 512,
            "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 512,
            "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
            "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_theta": 10000000,
            "shared_expert_intermediate_size": 512, "vocab_size": 151936,
        },
    ),
    "Nemotron-Nano-9B-v2": (
        "27 of 56 layers (Mamba-2 mixer)",
        {
            **_PLAIN, "model_type": "nemotron_h", "chunk_size": 128, "conv_kernel": 4, "expand": 2,
            "head_dim": 128, "hidden_size": 4480,
            "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
            "intermediate_size": 15680, "mamba_head_dim": 80, "mamba_hidden_act": "silu",
            "mamba_num_heads": 128, "mamba_proj_bias": False, "max_position_embeddings": 131072,
            "mlp_bias": False, "mlp_hidden_act": "relu2", "n_groups": 8, "num_attention_heads": 40,
            "num_hidden_layers": 56, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
            "ssm_state_size": 128, "use_bias": False, "use_conv_bias": True, "vocab_size": 131072,
        },
    ),
    "Falcon-H1-7B": (
        "44 of 44 layers (Mamba-2 mixer)",
        {
            **_PLAIN, "model_type": "falcon_h1", "head_dim": 128, "hidden_size": 3072,
            "intermediate_size": 12288, "mamba_conv_bias": True, "mamba_d_conv": 4,
            "mamba_d_head": 128, "mamba_d_ssm": 3072, "mamba_d_state": 256, "mamba_n_groups": 1,
            "mamba_n_heads": 24, "mamba_proj_bias": False, "mamba_rms_norm": False,
            "max_position_embeddings": 262144, "num_attention_heads": 12, "num_hidden_layers": 44,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 100000000000.0,
            "vocab_size": 130048,
        },
    ),
    "LFM2-1.2B": (
        "10 of 16 layers (short convolution)",
        {
            **_PLAIN, "model_type": "lfm2", "block_auto_adjust_ff_dim": True, "block_dim": 2048,
            "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
            "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
            "max_position_embeddings": 128000, "norm_eps": 1e-05, "num_attention_heads": 32,
            "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
            "rope_theta": 1000000.0, "tie_word_embeddings": True, "vocab_size": 65536,
        },
    ),
}  # fmt: skip
"""With layers that keep a state of their own, in the place of attention or beside it, which are
predicted and have no forward."""
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "Jamba-v0.1": (
        "model_type 'jamba' has layers of Mamba's first version",
        {
            **_PLAIN, "model_type": "jamba", "attn_layer_offset": 4, "attn_layer_period": 8,
            "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_size": 4096,
            "intermediate_size": 14336, "mamba_conv_bias": True, "mamba_d_conv": 4,
            "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_proj_bias": False,
            "max_position_embeddings": 262144, "num_attention_heads": 32, "num_experts": 16,
            "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06, "sliding_window": None, "vocab_size": 65536,
        },
    ),
}  # fmt: skip
"""With layers of Mamba's first version, whose state is another."""
H100 = ("--platform", "h100", "--largest", "8")


def test_nothing_knows_these_models() -> None:
    """No file of the package or the config names one of these models."""
    for root in (Path(nearfree.__file__).parent, CONFIG):
        for path in root.rglob("*"):
            if path.suffix in (".py", ".json", ".yaml", ".csv"):
                text = path.read_text(encoding="utf-8").lower()
                names = [n for n in (*RUN, *PREDICTED_ALONE, *REFUSED) if n.lower() in text]
                assert not names, path


@pytest.mark.parametrize("name", RUN)
def test_a_public_model_runs(tmp_path: Path, name: str) -> None:
    """A layer of the model's own width gives finite logits, over a cache longer than a window."""
    path = write(tmp_path, RUN[name] | {"num_hidden_layers": 1, "vocab_size": 1000}, "config.json")
    decoder = read_decoder(path)
    with torch.inference_mode():
        forward = DecoderForward(
            decoder,
            read_details(path),
            RandomWeights(torch.bfloat16),
            batch=1,
            context=4200,
            max_positions=3,
            dtype=torch.bfloat16,
        )
        for n in (1, 3):
            out = forward.forward(torch.arange(n)[None])
            assert out.shape == (1, n, 1000)
            assert torch.isfinite(out).all()
            assert 0.5 < float(out.float().std()) < 3.0


@pytest.mark.parametrize("name", REFUSED)
def test_a_public_model_is_refused_by_what_is_not_understood(tmp_path: Path, name: str) -> None:
    """A model is refused by the missing feature, with its value."""
    message, document = REFUSED[name]
    path = write(tmp_path, document, "config.json")
    for read in (read_decoder, read_details):
        error = refusal(lambda read=read: read(path))
        assert error is not None
        assert error.what.startswith(f"{path}: ")
        assert message in error.what


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("name", PREDICTED_ALONE)
def test_what_has_no_forward_is_predicted_and_not_measured(
    tmp_path: Path, call: Call, name: str
) -> None:
    """What an answer leaves out is named beside T(1); the forward is refused by name."""
    message, document = PREDICTED_ALONE[name]
    path = write(tmp_path, document, f"{name}.json")
    code, out, err = call("predict", "--model", str(path), "--ignore-memory", *H100)
    assert (code, err) == (0, "")
    by = "two products" if "convolution" in message else "the bytes of their states"
    assert f"{message} are timed by {by}" in out
    error = refusal(lambda: read_details(path))
    assert error is not None
    assert "predicted, not measured" in error.what


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("name", PREDICTED)
def test_a_public_model_is_predicted(tmp_path: Path, call: Call, name: str) -> None:
    """The whole model is predicted under its file's name."""
    path = write(tmp_path, RUN[name], f"{name}.json")
    code, out, err = call("predict", "--model", str(path), *H100)
    assert (code, err) == (0, "")
    assert out.startswith(f"{name} on h100, bfloat16")
    assert "\nN_max " in out
    assert "take at most 1.2 times as long as one" in out


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("name", REFUSED)
def test_a_prediction_is_refused_alike(tmp_path: Path, call: Call, name: str) -> None:
    """A model that cannot run is not predicted either, for the same reason; its memory is."""
    message, document = REFUSED[name]
    path = write(tmp_path, document, f"{name}.json")
    code, out, err = call("predict", "--model", str(path), *H100)
    assert code == 2
    assert not out or "\nmemory: " in out or out.startswith("DOES NOT FIT: ")
    assert err.startswith(f"nearfree: error: {path}: ")
    assert message in err
