"""What a forward executes: FLOPs with and without padding, bytes, blocks, tiles and waves.

One fused multiply-add counts as two FLOPs (paper, sec. 2.2). Bytes are compulsory: each operand
moves once and each intermediate twice, written and read, whatever the caches do.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from nearfree.core.setting import Setting
from nearfree.units import BYTES_PER_ELEMENT

_GATED_MATRICES = 3
"""An expert's gate, up and down projections."""


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


def gemm_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of one product: 2 b N d_model d_ff FLOPs, none of them padding."""
    rows, d_model, d_ff = setting.batch * n, setting.d_model or 0, setting.d_ff or 0
    elements = d_model * d_ff + rows * (d_model + d_ff)
    return _unpadded(setting, rows * d_model * d_ff, elements, basis)


def dense_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of an up and a down projection (paper, sec. 3.2): 4 b N d_model d_ff FLOPs.

    A gated FFN has a third projection, whose output joins that of the first. Nothing is padded
    that torch tells of, so executed and logical FLOPs are the same.
    """
    rows, d_model, d_ff = setting.batch * n, setting.d_model or 0, setting.d_ff or 0
    matrices, between = (_GATED_MATRICES, 6) if setting.gated else (2, 2)
    elements = matrices * d_model * d_ff + rows * (2 * d_model + between * d_ff)
    return _unpadded(setting, matrices * rows * d_model * d_ff, elements, basis)


def _unpadded(setting: Setting, products: int, elements: int, basis: str) -> ExecutedWork:
    """Return the work of multiply-adds and of elements moved."""
    return ExecutedWork(
        flop_logical=2 * products,
        flop_executed=2 * products,
        bytes_compulsory=elements * _element_bytes(setting),
        basis=basis,
    )


def routed_pairs(setting: Setting, n: int) -> list[int]:
    """Return how many token-expert pairs each expert gets under the setting's routing.

    Balanced: token i goes to experts (i k + j) mod E, j = 0..k-1; skewed: every token to the
    first k (paper, app. C.3).
    """
    experts, top_k = setting.experts or 0, setting.top_k or 0
    tokens = setting.batch * n
    if setting.routing == "skewed":
        return [tokens if expert < top_k else 0 for expert in range(experts)]
    whole, rest = divmod(tokens * top_k, experts)
    return [whole + (expert < rest) for expert in range(experts)]


def moe_work(
    setting: Setting,
    pairs: Sequence[int],
    basis: str,
    *,
    block_rows: int | None = None,
    blocks: int | None = None,
    columns: int | None = None,
    sms: int | None = None,
) -> ExecutedWork:
    """Return the work of gated experts over token-expert pairs in row blocks.

    Parameters
    ----------
    pairs
        Token-expert pairs of each of the E experts.
    block_rows
        M_moe: each expert's pairs are padded to its multiple; None where nothing is padded.
    blocks
        How many blocks run, where that is not each expert's pairs padded.
    columns
        Columns of a tile of the first projection, [pairs, 2 d_ff], if it runs on a GPU.
    sms
        The GPU's SMs.
    """
    d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
    rows = sum(pairs)
    if block_rows and blocks is None:
        blocks = sum(-(-count // block_rows) for count in pairs)
    padded = (blocks or 0) * block_rows if block_rows else rows
    weights = _GATED_MATRICES * sum(count > 0 for count in pairs) * d_model * d_ff
    tokens = rows // (setting.top_k or 1)
    moved = 2 * tokens * d_model + rows * (2 * d_model + 6 * d_ff)
    tiles = blocks * -(-2 * d_ff // columns) if blocks and columns else None
    return ExecutedWork(
        flop_logical=2 * _GATED_MATRICES * rows * d_model * d_ff,
        flop_executed=2 * _GATED_MATRICES * padded * d_model * d_ff,
        bytes_compulsory=(weights + moved) * _element_bytes(setting),
        blocks=blocks,
        block_rows=block_rows,
        tiles=tiles,
        waves=tiles / sms if tiles and sms else None,
        basis=basis,
    )


def is_causal(setting: Setting) -> bool:
    """Return whether a new position of an attention setting sees no later one."""
    return setting.mask != "block"


def attention_work(
    setting: Setting,
    n: int,
    basis: str,
    *,
    tile_rows: int,
    tile_keys: int = 1,
    group: int = 1,
    padded: bool = True,
    causal_skip: bool = True,
    splits: int = 1,
    sms: int | None = None,
) -> ExecutedWork:
    """Return the work of N new queries over L cached and N new keys.

    Under the causal mask, aligned bottom-right, query i sees the L cached and i + 1 new keys;
    in a block it sees all L + N.

    Parameters
    ----------
    tile_rows, tile_keys
        Query rows and keys of a tile.
    group
        Query heads that share a row axis: heads / kv_heads where the kernel packs them, else 1.
    padded
        Whether rows that only fill a tile are computed.
    causal_skip
        Whether a tile stops after the last key that any of its rows sees; in a block all see all.
    splits
        Parts that the keys are cut into, each a tile of its own.
    """
    context, heads = setting.context or 0, setting.heads or 0
    kv_heads, head_dim = setting.kv_heads or 0, setting.head_dim or 0
    keys = context + n
    causal = is_causal(setting)
    seen = n * context + n * (n + 1) // 2 if causal else n * keys
    rows_all = n * group
    computed = 0
    tiles = -(-rows_all // tile_rows)
    for tile in range(tiles):
        first = tile * tile_rows
        last = min(first + tile_rows, rows_all)
        visible = context + math.ceil(last / group) if causal and causal_skip else keys
        wide = -(-visible // tile_keys) * tile_keys
        computed += (tile_rows if padded else last - first) * wide
    per_pair = 4 * setting.batch * head_dim
    rows_of_heads = heads // group
    elements = 2 * setting.batch * (kv_heads * keys + heads * n) * head_dim
    grid = tiles * rows_of_heads * setting.batch * splits
    return ExecutedWork(
        flop_logical=per_pair * heads * seen,
        flop_executed=per_pair * rows_of_heads * computed,
        bytes_compulsory=elements * _element_bytes(setting),
        blocks=tiles * rows_of_heads * setting.batch,
        block_rows=tile_rows,
        tiles=grid if sms else None,
        waves=grid / sms if sms else None,
        basis=basis,
    )


def _element_bytes(setting: Setting) -> int:
    return int(BYTES_PER_ELEMENT[setting.dtype])
