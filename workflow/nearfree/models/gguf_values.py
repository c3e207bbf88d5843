"""Random weights by their names, and how GGUF files store them: types, and the order of rows.

A weight is reproducible: it depends only on its Hugging Face name, its shape and a seed. It is
rounded to the stored type before anything is computed with it.
"""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nearfree.decoders.rope import Llama3, Rope

StoredArray = NDArray[np.uint16] | NDArray[np.float16] | NDArray[np.float32]
Float32 = NDArray[np.float32]
SPREAD = 0.02
"""Standard deviation of random weights."""
_BLOCK = 1 << 22
"""Elements that are drawn at a time, so that no whole tensor is held in float32."""


def _to_bf16(values: Float32) -> NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


STORE: dict[str, tuple[type[np.generic], Callable[[Float32], StoredArray]]] = {
    "bf16": (np.uint16, _to_bf16),
    "f16": (np.float16, lambda values: values.astype(np.float16)),
    "f32": (np.float32, lambda values: values),
}
"""By ggml's name of a type: numpy's type of the stored values, and the conversion from float32."""
LOAD: dict[str, Callable[[StoredArray], Float32]] = {
    "bf16": lambda stored: (stored.astype(np.uint32) << np.uint32(16)).view(np.float32),
    "f16": lambda stored: stored.astype(np.float32),
    "f32": lambda stored: stored.astype(np.float32),
}
"""By ggml's name of a type: the conversion of stored values to float32."""


def random_weight(name: str, shape: tuple[int, ...], *, seed: int, type_: str) -> StoredArray:
    """Return a weight of normal random numbers in the stored form of a type.

    Parameters
    ----------
    name
        The name in the checkpoint, such as `model.layers.0.mlp.up_proj.weight`.
    shape
        Outputs and inputs of a matrix, or the size of a vector.
    """
    dtype, convert = STORE[type_]
    weight = np.empty(shape, dtype=dtype)
    generator = _generator(name, seed)
    rows = weight.reshape(shape[0], -1)
    step = max(1, _BLOCK // rows.shape[1])
    for first in range(0, len(rows), step):
        block = rows[first : first + step]
        values = generator.standard_normal(block.shape, dtype=np.float32)
        block[:] = convert(values * np.float32(SPREAD))
    return weight


def _generator(name: str, seed: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def to_neighbours(rows: StoredArray, heads: int) -> StoredArray:
    """Return the rows of a query or key in the order of engines that rotate neighbouring rows.

    In a Llama checkpoint the rotated pair i of a head is rows i and i + half a head; here it is
    rows 2 i and 2 i + 1.
    """
    pairs = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def rope_factors(rope: Rope, scaling: Llama3) -> Float32:
    """Return the divisor of each pair's frequency in Llama 3's scaling, [width / 2]."""
    powers = np.arange(0, rope.width, 2, dtype=np.float64) / rope.width
    turns = scaling.original_positions * rope.theta**-powers / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / (kept_share + (1.0 - kept_share) / scaling.factor)).astype(np.float32)
