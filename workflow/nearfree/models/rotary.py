"""Rotary positions as tensors: cosines and sines of positions, and states turned by them."""

import math

import torch
from torch import Tensor

from nearfree.decoders.rope import Llama3, Rope

Turn = tuple[Tensor, Tensor]
"""Cosines and sines, [positions, width] each."""


def frequencies(rope: Rope) -> Tensor:
    """Return the angle that each pair of elements turns by a position, [width / 2], float32."""
    powers = torch.arange(0, rope.width, 2, dtype=torch.int64).float() / rope.width
    plain = 1.0 / rope.theta**powers
    return plain if rope.llama3 is None else _scaled(plain, rope.llama3)


def _scaled(plain: Tensor, scaling: Llama3) -> Tensor:
    """Return Llama 3's frequencies: divided where slow, kept where fast, mixed between."""
    turns = scaling.original_positions * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (kept + (1.0 - kept) / scaling.factor)


def turn(rope: Rope, first: int, count: int, dtype: torch.dtype, device: str) -> Turn:
    """Return cosines and sines of `count` positions from `first` on, in a model's dtype."""
    positions = torch.arange(first, first + count, dtype=torch.float32)
    angles = torch.outer(positions, frequencies(rope)).repeat(1, 2)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def turned(states: Tensor, by: Turn) -> Tensor:
    """Return states [b, heads, N, head_dim] turned in their first `width` elements.

    Element i and the one half a width later are a pair.
    """
    cosines, sines = by
    width = cosines.shape[-1]
    part, rest = states[..., :width], states[..., width:]
    first, second = part.chunk(2, -1)
    out = part * cosines + torch.cat((-second, first), -1) * sines
    return out if width == states.shape[-1] else torch.cat((out, rest), -1)
