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
_OWN: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "mixtral": {}, "qwen2": {}, "qwen3": {},
    "qwen2_moe": {"intermediate_size": 96, "mlp_only_layers": [1], "norm_topk_prob": False},
    "qwen3_moe": {"norm_topk_prob": True},
    "wedlm": {"qk_norm": True, "attention_bias": False},
    "bailing_moe": _LING, "bailing_moe_v2": _LING, "llada2_moe": _LING,
}  # fmt: skip
KINDS = sorted(_OWN)
"""Model types with a forward."""


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
        most=MOST,
        dtype=dtype,
        **options,
    )


def tokens(n: int, seed: int = 1) -> Tensor:
    """Return random tokens [b, N]."""
    return torch.randint(97, (BATCH, n), generator=torch.Generator().manual_seed(seed))


def error(out: Tensor, expected: Tensor) -> float:
    """Return the norm of a difference by the norm of what is expected."""
    return float((out.double() - expected.double()).norm() / expected.double().norm())
