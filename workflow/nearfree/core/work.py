"""The executed work of a forward: FLOPs with and without padding, bytes, blocks, tiles, waves.

One fused multiply-add counts as two FLOPs (paper, sec. 2.2). Bytes are compulsory: each operand
moves once and each intermediate twice, written and read, independent of caches.
"""

import math

from msgspec import Struct

from nearfree.core.bounds import AtLeastZero, Text
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.core.protocols import Natural
from nearfree.core.setting import Setting


class ExecutedWork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The work of one forward: by the module's definition, and as its kernels execute it."""

    flop_logical: Natural
    """FLOPs of the module's definition: no padding, masked keys left out."""
    flop_executed: Natural
    """FLOPs that the kernels execute, including padding rows and keys of blocks and tiles."""
    bytes_compulsory: Natural
    """Weights, keys, values, inputs and outputs, each moved once."""
    blocks: Natural | None = None
    """Number of row blocks: blocks of an expert's tokens, or query tiles times heads."""
    block_rows: Natural | None = None
    """Rows per block: M_moe, or the query tile."""
    tiles: Natural | None = None
    """Number of thread blocks of the largest kernel."""
    waves: AtLeastZero | None = None
    """`tiles` divided by the GPU's SMs."""
    basis: Text
    """The source of these numbers: a release's rule, the setting, or the adapter's algorithm."""


def unpadded_work(flop: float, moved: float, basis: str) -> ExecutedWork:
    """Return the work of a forward without padding: its FLOPs and bytes moved, rounded up."""
    needed = math.ceil(flop)
    return ExecutedWork(
        flop_logical=needed,
        flop_executed=needed,
        bytes_compulsory=math.ceil(moved),
        basis=basis,
    )


def moved_bytes(setting: Setting, *, rest: int, weights: int = 0, cached: int = 0) -> int:
    """Return the bytes moved, given numbers of elements: weights, cached ones, and the rest."""
    return math.ceil(
        weights * weight_bytes(setting)
        + cached * cache_bytes(setting)
        + rest * element_bytes(setting)
    )


def element_bytes(setting: Setting) -> float:
    """Return the bytes per element of a product's inputs, the paper's s."""
    return ELEMENT_BYTES[setting.dtype]


def weight_bytes(setting: Setting) -> float:
    """Return the bytes per element of stored weights."""
    return ELEMENT_BYTES[setting.weights or setting.dtype]


def cache_bytes(setting: Setting) -> float:
    """Return the bytes per element of stored keys and values."""
    return ELEMENT_BYTES[setting.kv_dtype or setting.dtype]
