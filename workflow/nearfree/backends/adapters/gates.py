"""Gates of FFNs: what is made of gate and up, [..., 2 d_ff], for the product down, [..., d_ff]."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

Gate = Callable[[Tensor], Tensor]


def silu(hidden: Tensor) -> Tensor:
    """Return SiLU of the gate times up."""
    gate, up = hidden.chunk(2, -1)
    return functional.silu(gate) * up


def gelu_tanh(hidden: Tensor) -> Tensor:
    """Return GELU of the gate, by tanh, times up."""
    gate, up = hidden.chunk(2, -1)
    return functional.gelu(gate, approximate="tanh") * up


def clamped(hidden: Tensor, slope: float, limit: float) -> Tensor:
    """Return the gate of gpt-oss: g sigmoid(slope g) (up + 1), up to `limit`, up also from below.

    Source: GptOssExperts of transformers 5.23.
    """
    gate, up = hidden.chunk(2, -1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1.0) * gate * (gate * slope).sigmoid()
