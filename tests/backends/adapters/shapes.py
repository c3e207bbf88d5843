"""Small MoE and attention settings for torch, and what a forward gives and costs."""

from typing import Any

import torch
from nearfree.backends.adapters.kernel import Kernel
from nearfree.core.setting import Setting
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode


def make_moe(**changes: Any) -> Setting:
    """Return a small setting of gated experts with some of its fields changed."""
    fields: dict[str, Any] = {
        "module": "moe_ffn",
        "backend": "torch_padded",
        "dtype": "float32",
        "d_model": 32,
        "d_ff": 24,
        "experts": 6,
        "top_k": 2,
        "routing": "balanced",
    }
    return Setting(**(fields | changes))


def make_sdpa(**changes: Any) -> Setting:
    """Return a small setting of grouped-query attention with some of its fields changed."""
    fields: dict[str, Any] = {
        "module": "attention",
        "backend": "torch_sdpa",
        "dtype": "float32",
        "batch": 2,
        "context": 40,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
    }
    return Setting(**(fields | changes))


def make_mla(**changes: Any) -> Setting:
    """Return a small setting of latent attention with some of its fields changed."""
    fields: dict[str, Any] = {
        "module": "mla", "backend": "torch_sdpa", "dtype": "float32", "batch": 2, "context": 40,
        "heads": 4, "latent": 24, "rope_dim": 8, "nope_dim": 12, "value_dim": 10,
    }  # fmt: skip
    return Setting(**(fields | changes))


def make_indexer(**changes: Any) -> Setting:
    """Return a small setting of an indexer with some of its fields changed."""
    fields: dict[str, Any] = {
        "module": "indexer", "backend": "torch_sdpa", "dtype": "float32", "batch": 2,
        "context": 40, "heads": 5, "head_dim": 7,
    }  # fmt: skip
    return Setting(**(fields | changes))


def is_nearly(out: Tensor, expected: Tensor) -> bool:
    """Return whether an output in float32 is, but for rounding, that of a reference in float64."""
    return torch.allclose(out.double(), expected.double(), rtol=1e-4, atol=1e-5)


def counted_flop(kernel: Kernel, n: int) -> int:
    """Return the FLOPs of a forward's matrix products, as torch's own counter sees them."""
    with FlopCounterMode(display=False) as counter:
        kernel.forward(n)
    return int(counter.get_total_flops())
