"""Rotary positions: the tables of a rotation, and how states are turned by them."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nearfree.decoders.rope import Llama3, Rope, Yarn


class Rotation(NamedTuple):
    """Cosines and sines, [positions, width] each; neighbours are pairs where `interleaved`."""

    cosines: Tensor
    sines: Tensor
    interleaved: bool = False

    def upto(self, n: int) -> "Rotation":
        """Return that of the first N positions."""
        return self._replace(cosines=self.cosines[:n], sines=self.sines[:n])


def frequencies(rope: Rope) -> Tensor:
    """Return the angle that each pair of elements turns by a position, [width / 2], float32."""
    powers = torch.arange(0, rope.width, 2, dtype=torch.int64).float() / rope.width
    plain = 1.0 / rope.theta**powers
    if rope.llama3:
        return _llama3(plain, rope.llama3)
    if rope.yarn:
        return _yarn(plain, rope.yarn)
    if rope.turned:
        plain[rope.turned :] = 0.0
    return plain / rope.divisor if rope.divisor else plain


def _llama3(plain: Tensor, scaling: Llama3) -> Tensor:
    """Return Llama 3's frequencies: divided where slow, kept where fast, mixed between."""
    turns = scaling.original_positions * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (kept + (1.0 - kept) / scaling.factor)


def _yarn(plain: Tensor, scaling: Yarn) -> Tensor:
    """Return YaRN's frequencies: kept up to the first pair, divided from the last on."""
    span = scaling.last - scaling.first or 0.001  # of no width, as transformers has it
    pairs = torch.arange(len(plain), dtype=torch.float32)
    divided = ((pairs - scaling.first) / span).clamp(0.0, 1.0)
    return plain * (1.0 - divided) + plain / scaling.factor * divided


def rotation(rope: Rope, first: int, count: int, dtype: torch.dtype, device: str) -> Rotation:
    """Return cosines and sines of `count` positions from `first` on, in a model's dtype."""
    positions = torch.arange(first, first + count, dtype=torch.float32)
    angles = torch.outer(positions, frequencies(rope)).repeat(1, 2)
    stretch = rope.yarn.stretch if rope.yarn else 1.0
    cosines, sines = (part * stretch for part in (angles.cos(), angles.sin()))
    return Rotation(cosines.to(device, dtype), sines.to(device, dtype), bool(rope.interleaved))


def rotate(states: Tensor, by: Rotation | None) -> Tensor:
    """Return states [b, heads, N, head_dim] turned in their first `width` elements.

    Element i and the one half a width later are a pair. Of neighbours that are pairs the first ones
    come out before the second ones: queries and keys alike, so their products are the same.
    """
    if by is None:
        return states
    width = by.cosines.shape[-1]
    part, rest = states[..., :width], states[..., width:]
    if by.interleaved:
        part = part.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    first, second = part.chunk(2, -1)
    out = part * by.cosines + torch.cat((-second, first), -1) * by.sines
    return out if width == states.shape[-1] else torch.cat((out, rest), -1)


class Turns:
    """The tables of `count` positions from `first` on: layers that turn alike have one."""

    def __init__(self, first: int, count: int, dtype: torch.dtype, device: str) -> None:
        self._positions, self._dtype, self._device = (first, count), dtype, device
        self._made: dict[Rope, Rotation] = {}

    def of(self, rope: Rope | None) -> Rotation | None:
        """Return the table of a rotation, None without one."""
        if rope is None:
            return None
        if rope not in self._made:
            self._made[rope] = rotation(rope, *self._positions, self._dtype, self._device)
        return self._made[rope]
