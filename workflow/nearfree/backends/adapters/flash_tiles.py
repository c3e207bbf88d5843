"""How FlashAttention 2 and 3 tile a call: rows, keys, packed heads and splits of the keys."""

import math

from msgspec import Struct

from nearfree.core.setting import Setting

_MOST_SPLITS = 128
_SPLIT_ROWS = 64


class Tiling(Struct, frozen=True, kw_only=True):
    """The tile of one call."""

    rows: int
    keys: int
    group: int = 1
    """Query heads whose rows share a tile: a position takes as many rows."""
    splits: int = 1
    """Parts that the keys are cut into."""


def fewest_splits(tiles: int, slots: int, key_blocks: int, *, distinct: bool) -> int:
    """Return the fewest parts that fill a GPU's slots to 85 % of the best that any number does.

    Tiles that fill 80 % of the slots are not split. With `distinct`, a number of parts counts
    only if its parts are smaller than those of one part fewer. (`num_splits_heuristic` of
    flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp, and of hopper/heuristics.h.)
    """
    if tiles >= 0.8 * slots:
        return 1

    def filled(parts: int) -> float:
        waves = tiles * parts / slots
        return waves / math.ceil(waves)

    most = min(_MOST_SPLITS, slots, key_blocks)
    choices = [
        parts
        for parts in range(1, most + 1)
        if parts == 1 or not distinct or -(-key_blocks // parts) != -(-key_blocks // (parts - 1))
    ]
    enough = 0.85 * max(map(filled, choices))
    return next(parts for parts in choices if filled(parts) >= enough)


def flash_2_tiling(setting: Setting, n: int, capacity: int, sms: int | None, sm: int) -> Tiling:
    """Return the tile of FlashAttention 2.8 (flash_api.cpp, flash_fwd_launch_template.h).

    Parameters
    ----------
    capacity
        Keys that the cache has room for, in whole pages where it is paged.
    sms
        The GPU's SMs; None takes the keys as not split.
    sm
        The compute capability, 90 for 9.0.
    """
    head_dim = setting.head_dim or 0
    # The groups of a single query are swapped into the row axis; others are not packed.
    group = _group(setting) if n == 1 else 1
    keys = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    splits = 1
    if sms is not None and (setting.api != "varlen" or group > 1):
        tiles = setting.batch * (setting.heads or 0) // group * -(-n * group // _SPLIT_ROWS)
        splits = fewest_splits(tiles, 2 * sms, -(-capacity // keys), distinct=True)
    if splits > 1 or setting.page_size is not None:
        return Tiling(rows=_SPLIT_ROWS, keys=keys, group=group, splits=splits)
    rows, keys = _standard_tile(head_dim, sm, causal=n > 1 and setting.mask != "block")
    return Tiling(rows=rows, keys=keys, group=group)


def _standard_tile(head_dim: int, sm: int, *, causal: bool) -> tuple[int, int]:
    """Return rows and keys of the kernel that does not split."""
    small = sm // 10 == 8 and sm != 80  # 8.6 and 8.9 have less shared memory than 8.0
    if 64 < head_dim <= 128 and small:
        return (64, 64) if causal else (128, 32 if head_dim > 96 else 64)
    if head_dim > 192 and sm != 80:
        return 64, 64
    return 128, 128 if head_dim <= 64 else 64


def flash_3_tiling(setting: Setting, n: int, capacity: int, sms: int | None) -> Tiling:
    """Return the tile of FlashAttention 3 on compute capability 9.0 (hopper/tile_size.h).

    Splits are counted for dense calls alone: for the others the device settles them. The
    parameters are those of `flash_2_tiling`.
    """
    head_dim, group, page = setting.head_dim or 0, _group(setting), setting.page_size
    # One query sees all keys, so the mask is dropped, but not from pages at this head size.
    paged = page is not None and 64 < head_dim <= 128
    causal = setting.mask != "block" and (n > 1 or paged)
    rows, keys = _sm90_tile(head_dim, narrow=causal)
    copied = page is not None and (page % keys != 0 or n * group <= rows)  # pages without TMA
    if copied:
        rows, keys = _sm90_tile(head_dim, narrow=True, copied=True)
    splits, key_blocks = 1, -(-capacity // keys)
    if sms is not None and key_blocks > 4:
        requests = setting.batch if setting.api == "dense" else 1
        tiles = requests * (setting.kv_heads or 0) * -(-n * group // rows)
        splits = fewest_splits(tiles, sms, key_blocks, distinct=False)
    packed = copied or splits > 1 or setting.api == "varlen" or _worth_packing(n, group, rows)
    counted = splits if setting.api == "dense" else 1
    return Tiling(rows=rows, keys=keys, group=group if packed else 1, splits=counted)


def _sm90_tile(head_dim: int, *, narrow: bool, copied: bool = False) -> tuple[int, int]:
    """Return rows and keys; `narrow` where a mask or copied pages leave room for fewer keys."""
    if head_dim <= 64:
        return 192, 128 if narrow else 192
    if head_dim <= 96:
        return 192, 128 if copied else 144
    if head_dim <= 128:
        return 128, 128 if narrow else 176
    if head_dim <= 192:
        return 128, 96 if copied else 112
    return 128, 80


def _worth_packing(n: int, group: int, rows: int) -> bool:
    """Return whether heads in one tile fill its rows clearly better than each on its own."""
    alone = n / (-(-n // rows) * rows)
    together = n * group / (-(-n * group // rows) * rows)
    return alone < 0.9 * together


def _group(setting: Setting) -> int:
    return (setting.heads or 0) // (setting.kv_heads or 1)
