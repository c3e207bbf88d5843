"""Rotary position embeddings: tables of cosines and sines, and the rotation of states."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nearfree.decoders.rope import Llama3, Rope, Yarn


class Rotation(NamedTuple):
    """Cosines and sines, [positions, width] each; if `interleaved`, pairs are neighbours."""

    cosines: Tensor
    sines: Tensor
    interleaved: bool = False

    def truncated(self, n: int) -> "Rotation":
        """Return the rotation of the first N positions."""
        return self._replace(cosines=self.cosines[:n], sines=self.sines[:n])


def frequencies(rope: Rope) -> Tensor:
    """Return the angle by which a pair of elements rotates per position, [width / 2], float32."""
    powers = torch.arange(0, rope.width, 2, dtype=torch.int64).float() / rope.width
    unscaled = 1.0 / rope.theta**powers
    if rope.llama3:
        return _llama3(unscaled, rope.llama3)
    if rope.yarn:
        return _yarn(unscaled, rope.yarn)
    if rope.turned:
        unscaled[rope.turned :] = 0.0
    return unscaled / rope.divisor if rope.divisor else unscaled


def _llama3(unscaled: Tensor, scaling: Llama3) -> Tensor:
    """Return Llama 3's frequencies: low ones divided, high ones kept, interpolated between."""
    turns = scaling.original_positions * unscaled / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return unscaled * (kept_share + (1.0 - kept_share) / scaling.factor)


def _yarn(unscaled: Tensor, scaling: Yarn) -> Tensor:
    """Return YaRN's frequencies: kept up to the first pair, divided from the last on."""
    span = scaling.last - scaling.first or 0.001  # avoids 0 / 0, as in transformers
    pairs = torch.arange(len(unscaled), dtype=torch.float32)
    divided_share = ((pairs - scaling.first) / span).clamp(0.0, 1.0)
    return unscaled * (1.0 - divided_share) + unscaled / scaling.factor * divided_share


def rotation(rope: Rope, first: int, count: int, dtype: torch.dtype, device: str) -> Rotation:
    """Return cosines and sines of `count` positions from `first` on, in a model's dtype."""
    positions = torch.arange(first, first + count, dtype=torch.float32)
    angles = torch.outer(positions, frequencies(rope)).repeat(1, 2)
    stretch = rope.yarn.stretch if rope.yarn else 1.0
    cosines, sines = (part * stretch for part in (angles.cos(), angles.sin()))
    return Rotation(cosines.to(device, dtype), sines.to(device, dtype), bool(rope.interleaved))


def rotate(states: Tensor, rotation_: Rotation | None) -> Tensor:
    """Return states [b, heads, N, head_dim] with their first `width` elements rotated.

    Element i and the one half a width later are a pair. If pairs are neighbours, the result has the
    first elements of all pairs before the second ones; this holds for queries and keys, so their
    products do not change.
    """
    if rotation_ is None:
        return states
    width = rotation_.cosines.shape[-1]
    part, rest = states[..., :width], states[..., width:]
    if rotation_.interleaved:
        part = part.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    first, second = part.chunk(2, -1)
    out = part * rotation_.cosines + torch.cat((-second, first), -1) * rotation_.sines
    return out if width == states.shape[-1] else torch.cat((out, rest), -1)


class RotationTables:
    """The rotation tables of `count` positions from `first` on; layers with equal ones share."""

    def __init__(self, first: int, count: int, dtype: torch.dtype, device: str) -> None:
        self._positions, self._dtype, self._device = (first, count), dtype, device
        self._tables: dict[Rope, Rotation] = {}

    def table(self, rope: Rope | None) -> Rotation | None:
        """Return the table of a rotation, None if there is no rotation."""
        if rope is None:
            return None
        if rope not in self._tables:
            self._tables[rope] = rotation(rope, *self._positions, self._dtype, self._device)
        return self._tables[rope]
