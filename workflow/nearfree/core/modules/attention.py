"""Attention over a KV cache: idle compute, and the slack of a query tile.

Batch cancels: b requests read b caches. With g = heads / kv_heads query heads per key-value head,
the cache's width cancels too, but the FLOPs of the query heads do not (paper, sec. 3.4, 4.1,
app. B.2 and C.4).
"""

import math

from msgspec import Struct

from nearfree.core.modules.kind import Equation, Granularity, Laws, ModuleKind
from nearfree.core.modules.study import Axis, StudyBase
from nearfree.core.names import Name
from nearfree.core.protocols import Positive
from nearfree.core.setting import Setting
from nearfree.core.setting_check import required
from nearfree.core.work import ExecutedWork, cache_bytes, moved_bytes
from nearfree.errors import EvidenceError

M_ATTN = "M_attn"
_SPLIT_KV = Granularity(rows=64, place="paper sec. 4.1, M_attn of tab:fa2-kblockm, split-KV")
_FA2 = Granularity(rows=16, place="paper sec. 4.1, M_attn of tab:flashinfer-cta-tile-q, x <= 16")
_PRINTED = {"flash_attn_2": _SPLIT_KV, "flashinfer": _FA2, "flashinfer_fa2": _FA2}
_TILED = ("bfloat16", "float16")
SHORTER = "context (the shorter, the smaller attention's share of T(N))"
"""What moves the boundary of a call over a cache."""


class AttentionShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query heads, key and value heads, and their width in elements."""

    heads: Positive
    kv_heads: Positive
    head_dim: Positive


class AttentionStudy(StudyBase, frozen=True, kw_only=True, tag="attention"):
    """Attention over context lengths L (paper, app. C.4)."""

    axes = ("batch", "context")
    shape: AttentionShape
    context: Axis
    api: Name | None = None
    page_size: Positive | None = None
    cuda_graph: bool = False


class AttentionQuestion(Struct, frozen=True, kw_only=True):
    """One attention call on one platform; `most` is the largest N of its grid.

    A position attends to the last `window` positions up to its own, of which `context` are cached.
    """

    backend: str
    backend_version: str | None
    dtype: str
    kv_dtype: str | None = None
    batch: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    api: str | None
    page_size: int | None
    cuda_graph: bool
    most: int
    sm: int | None
    sm_count: int | None
    window: int | None = None


def is_causal(setting: Setting) -> bool:
    """Return whether an attention setting has the causal mask."""
    return setting.mask != "block"


def visible_pairs(n: int, context: int, *, causal: bool) -> int:
    """Return the number of pairs of a new position and a visible key, per request.

    Causal, aligned bottom-right: position i sees L cached and i + 1 new keys, which makes
    N L + N (N + 1) / 2 pairs. In a block each position sees all L + N keys.
    """
    return n * context + n * (n + 1) // 2 if causal else n * (context + n)


def tiled_pairs(
    n: int,
    context: int,
    *,
    tile_rows: int,
    tile_keys: int = 1,
    group: int = 1,
    padded: bool = True,
    skips: bool = True,
) -> tuple[int, int]:
    """Return the number of query tiles of a row axis, and of pairs of rows and keys they compute.

    Parameters
    ----------
    tile_rows, tile_keys
        Query rows and keys per tile.
    group
        Number of query heads that share the row axis, which has N * group rows.
    padded
        Whether padding rows of a tile are computed.
    skips
        Whether a tile stops after the last key that is visible to any of its rows.
    """
    rows_all = n * group
    tiles = -(-rows_all // tile_rows)
    computed = 0
    for tile in range(tiles):
        first_row = tile * tile_rows
        last_row = min(first_row + tile_rows, rows_all)
        visible = context + math.ceil(last_row / group) if skips else context + n
        keys = -(-visible // tile_keys) * tile_keys
        computed += (tile_rows if padded else last_row - first_row) * keys
    return tiles, computed


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

    Tiles are those of `tiled_pairs`; `group` is heads / kv_heads if the kernel packs them, and
    `causal_skip` has no effect in a block.

    Parameters
    ----------
    splits
        Number of parts that the keys are split into, each a tile of its own.
    """
    context, heads = setting.context or 0, setting.heads or 0
    kv_heads, head_dim = setting.kv_heads or 0, setting.head_dim or 0
    keys = context + n
    causal = is_causal(setting)
    tiles, computed = tiled_pairs(
        n, context, tile_rows=tile_rows, tile_keys=tile_keys, group=group, padded=padded,
        skips=causal and causal_skip,
    )  # fmt: skip
    per_pair = 4 * setting.batch * head_dim
    rows_of_heads = heads // group
    cached, rest = (
        2 * setting.batch * elements * head_dim for elements in (kv_heads * keys, heads * n)
    )
    grid = tiles * rows_of_heads * setting.batch * splits
    return ExecutedWork(
        flop_logical=per_pair * heads * visible_pairs(n, context, causal=causal),
        flop_executed=per_pair * rows_of_heads * computed,
        bytes_compulsory=moved_bytes(setting, cached=cached, rest=rest),
        blocks=tiles * rows_of_heads * setting.batch,
        block_rows=tile_rows,
        tiles=grid if sms else None,
        waves=grid / sms if sms else None,
        basis=basis,
    )


def _work(
    setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
) -> ExecutedWork:
    padded = rows is not None
    return attention_work(setting, n, basis, tile_rows=rows or 1, group=group, padded=padded)


def idle_compute(setting: Setting, balance: float, *, extended: bool = True) -> float:
    """Return N_idle = rho s L / (2 g L - rho s), +inf if 2 g L <= rho s (paper, app. B.2).

    The paper's form has g = 1; extended, g = heads / kv_heads query heads share a key-value head.
    Causal masking is not counted, as in the paper. L is at least 1, and s is that of the cache.
    """
    group = (setting.heads or 1) / (setting.kv_heads or 1) if extended else 1
    return idle_by_reuse(setting, balance, group)


def idle_by_reuse(setting: Setting, balance: float, reuse: float) -> float:
    """Return N_idle = rho s L / (2 w L - rho s) for w = `reuse` multiplications an element read."""
    context, moved = setting.context or 0, balance * cache_bytes(setting)
    room = 2 * reuse * context - moved
    return moved * context / room if room > 0 else float("inf")


def principle_terms(
    setting: Setting, balance: float, granularity: Granularity | None, *, extended: bool = True
) -> dict[str, float]:
    """Return the term of the law of attention: positions per query tile (paper, sec. 4.1)."""
    del setting, balance, extended
    if granularity is None:
        raise EvidenceError("no M_attn is known", remedy="Give the positions of a query tile")
    return {M_ATTN: granularity.rows}


def printed_granularity(setting: Setting, kernel: str | None = None) -> Granularity:
    """Return M_attn as the paper's tables print it: the query tile at N = 1.

    It is that of FlashAttention-2's split-KV kernel, or of FlashInfer's fa2 scheduler (paper,
    sec. 4 and app. D).

    Raises
    ------
    EvidenceError
        The paper prints no M_attn for this backend or element type.
    """
    del kernel
    paged = setting.api == "varlen" and setting.page_size is not None  # forces the same kernel
    split = setting.backend == "flash_attn" and (setting.api == "kvcache" or paged)
    granularity = _SPLIT_KV if split else _PRINTED.get(setting.backend)
    cache = setting.kv_dtype or setting.dtype
    if granularity is None or {setting.dtype, cache} - {*_TILED}:
        cache_note = "" if cache == setting.dtype else f" over a {cache} cache"
        raise EvidenceError(
            f"the paper prints no M_attn of {setting.backend} for {setting.dtype}{cache_note}",
            remedy="Choose a backend and element type of the paper's tables",
        )
    return granularity


ATTENTION = ModuleKind(
    name="attention",
    title="attention",
    several="attention",
    knobs=(
        "backend and its version (another query tile)",
        "tile (rows of it that a position takes: heads / kv_heads where heads are packed)",
        SHORTER,
    ),
    own="context",
    main=True,
    has_cache=True,
    study=AttentionStudy,
    padded_work=_work,
    laws=Laws(
        needs=required("attention"),
        idle_fields=("kv_dtype", "context", "heads", "kv_heads"),
        idle_compute=idle_compute,
        idle_term="rho s L / (2 L - rho s)",
        idle_place="paper sec. 3.4, app. B.2",
        idle=Equation(
            "N_idle = rho s L / (2 L - rho s), unbounded where 2 L <= rho s",
            "sec. 3.4.1 and app. B.2",
        ),
        term_fields=("kv_dtype", "api", "page_size"),
        terms=principle_terms,
        principle_place="paper sec. 4.1",
        principle=Equation("N_max = M_attn", "sec. 4.1"),
        letter=M_ATTN,
        printed=printed_granularity,
    ),
    question=AttentionQuestion,
)
