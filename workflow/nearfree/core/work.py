"""What a forward executes: FLOPs with and without padding, bytes, blocks, tiles and waves.

One fused multiply-add counts as two FLOPs (paper, sec. 2.2). Bytes are compulsory: each operand
moves once and each intermediate twice, written and read, whatever the caches do.
"""

import math

from msgspec import Struct

from nearfree.core.precision import ELEMENT_BYTES
from nearfree.core.setting import Setting


class ExecutedWork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What one forward is made of: what was asked for, and what the kernels do for it."""

    flop_logical: int
    """FLOPs of the module's definition: no padding, masked keys left out."""
    flop_executed: int
    """FLOPs that the kernels do, with the rows and keys that only fill a block or tile."""
    bytes_compulsory: int
    """Weights, keys, values, inputs and outputs, each moved once."""
    blocks: int | None = None
    """Row blocks: expert-token blocks, or query tiles times heads."""
    block_rows: int | None = None
    """Rows of a block: M_moe, or the query tile."""
    tiles: int | None = None
    """Thread blocks of the largest kernel."""
    waves: float | None = None
    """Those tiles over the GPU's SMs."""
    basis: str
    """What says so: the rule of a release, the setting, or how the adapter computes."""


def unpadded(
    setting: Setting, products: int, basis: str, *, weights: int, rest: int
) -> ExecutedWork:
    """Return the work of multiply-adds, and of elements moved: of weights, and all others."""
    return ExecutedWork(
        flop_logical=2 * products,
        flop_executed=2 * products,
        bytes_compulsory=moved_bytes(setting, weights=weights, rest=rest),
        basis=basis,
    )


def moved_bytes(setting: Setting, *, rest: int, weights: int = 0, cached: int = 0) -> int:
    """Return the bytes of elements: of weights, of keys and values, and of all others."""
    return math.ceil(
        weights * weight_bytes(setting)
        + cached * cache_bytes(setting)
        + rest * element_bytes(setting)
    )


def element_bytes(setting: Setting) -> float:
    """Return the bytes of an element of what enters a product, the paper's s."""
    return ELEMENT_BYTES[setting.dtype]


def weight_bytes(setting: Setting) -> float:
    """Return the bytes of an element of stored weights."""
    return ELEMENT_BYTES[setting.weights or setting.dtype]


def cache_bytes(setting: Setting) -> float:
    """Return the bytes of an element of stored keys and values."""
    return ELEMENT_BYTES[setting.kv_dtype or setting.dtype]
