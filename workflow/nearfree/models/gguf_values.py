"""Random weights by their names, and how GGUF files store them: types, and the order of rows.

A weight is the same wherever it is made: it follows from its Hugging Face name, its shape and a
seed alone, and is rounded to the type before anything is computed with it.
"""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nearfree.decoders.rope import Llama3, Rope

Stored = NDArray[np.uint16] | NDArray[np.float16] | NDArray[np.float32]
Float32 = NDArray[np.float32]
SPREAD = 0.02
"""Standard deviation of what is random."""
_BLOCK = 1 << 22
"""Elements that are drawn at once, so that no tensor is held in float32 whole."""


def _to_bf16(values: Float32) -> NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _from_bf16(stored: Stored) -> Float32:
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


TO: dict[str, tuple[type[np.generic], Callable[[Float32], Stored]]] = {
    "bf16": (np.uint16, _to_bf16),
    "f16": (np.float16, lambda values: values.astype(np.float16)),
    "f32": (np.float32, lambda values: values),
}
"""By ggml's name of a type: numpy's type of what is stored, and how float32 becomes it."""
FROM: dict[str, Callable[[Stored], Float32]] = {
    "bf16": _from_bf16,
    "f16": lambda stored: stored.astype(np.float32),
    "f32": lambda stored: stored.astype(np.float32),
}
"""The other way round."""


def random_weight(name: str, shape: tuple[int, ...], *, seed: int, type_: str) -> Stored:
    """Return a weight of normal random numbers as a type stores it.

    Parameters
    ----------
    name
        In the checkpoint, such as `model.layers.0.mlp.up_proj.weight`.
    shape
        Outputs and inputs of a matrix, or the size of a vector.
    seed
        Of all weights of a model.
    """
    kind, stored = TO[type_]
    made = np.empty(shape, dtype=kind)
    drawn = _generator(name, seed)
    rows = made.reshape(shape[0], -1)
    step = max(1, _BLOCK // rows.shape[1])
    for first in range(0, len(rows), step):
        block = rows[first : first + step]
        values = drawn.standard_normal(block.shape, dtype=np.float32)
        block[:] = stored(values * np.float32(SPREAD))
    return made


def _generator(name: str, seed: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def to_neighbours(rows: Stored, heads: int) -> Stored:
    """Return the rows of a query or key in the order of engines that turn neighbours.

    A checkpoint of Llama's has the first halves of all pairs of a head before the second ones:
    pair i is rows i and i + half a head; here it is rows 2 i and 2 i + 1.
    """
    parted = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return parted.swapaxes(1, 2).reshape(rows.shape)


def to_halves(rows: Stored, heads: int) -> Stored:
    """Return rows in a checkpoint's order, given that of `to_neighbours`."""
    parted = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return parted.swapaxes(1, 2).reshape(rows.shape)


def rope_factors(rope: Rope, scaling: Llama3) -> Float32:
    """Return what each pair's frequency is divided by in Llama 3's scaling, [width / 2]."""
    powers = np.arange(0, rope.width, 2, dtype=np.float64) / rope.width
    turns = scaling.original_positions * rope.theta**-powers / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / (kept + (1.0 - kept) / scaling.factor)).astype(np.float32)
