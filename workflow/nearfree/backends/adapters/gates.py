"""Gated activations of FFNs: from gate and up, [..., 2 d_ff], to the rows of down, [..., d_ff]."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

Gate = Callable[[Tensor], Tensor]


def silu(hidden: Tensor) -> Tensor:
    """Return SiLU(gate) * up."""
    gate, up = hidden.chunk(2, -1)
    return functional.silu(gate) * up


def gelu_tanh(hidden: Tensor) -> Tensor:
    """Return GELU(gate) * up, GELU by its tanh approximation."""
    gate, up = hidden.chunk(2, -1)
    return functional.gelu(gate, approximate="tanh") * up


def clamped(hidden: Tensor, slope: float, limit: float) -> Tensor:
    """Return gpt-oss's activation: g sigmoid(slope g) (up + 1).

    `g` is clamped to at most `limit`, `up` to [-limit, limit].
    Source: GptOssExperts of transformers 5.23.
    """
    gate, up = hidden.chunk(2, -1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1.0) * gate * (gate * slope).sigmoid()
