"""The tile of FlashAttention 2 and 3 for a call: rows, keys, packed heads and KV splits."""

import math

from msgspec import Struct

from nearfree.core.setting import Setting

_MAX_SPLITS = 128
_SPLIT_ROWS = 64


class Tiling(Struct, frozen=True, kw_only=True):
    """The tile of one call."""

    rows: int
    keys: int
    group: int = 1
    """Query heads packed into one tile, so rows per position."""
    splits: int = 1
    """Splits of the keys."""


def fewest_splits(tiles: int, slots: int, key_blocks: int, *, shrinking: bool) -> int:
    """Return the fewest splits whose wave efficiency is at least 85 % of the best one's.

    Tiles that fill 80 % of the GPU's slots are not split. With `shrinking`, a number of splits is a
    candidate only if it needs fewer key blocks per split than one split fewer.
    (`num_splits_heuristic` of flash-attn 2.8.3, csrc/flash_attn/flash_api.cpp, and of
    hopper/heuristics.h.)
    """
    if tiles >= 0.8 * slots:
        return 1

    def efficiency(splits: int) -> float:
        waves = tiles * splits / slots
        return waves / math.ceil(waves)

    max_splits = min(_MAX_SPLITS, slots, key_blocks)
    candidates = [
        splits
        for splits in range(1, max_splits + 1)
        if splits == 1
        or not shrinking
        or -(-key_blocks // splits) != -(-key_blocks // (splits - 1))
    ]
    threshold = 0.85 * max(map(efficiency, candidates))
    return next(splits for splits in candidates if efficiency(splits) >= threshold)


def flash_2_tiling(setting: Setting, n: int, capacity: int, sms: int | None, sm: int) -> Tiling:
    """Return the tile of FlashAttention 2.8 (flash_api.cpp, flash_fwd_launch_template.h).

    Parameters
    ----------
    capacity
        Keys that the cache has room for, in whole pages if it is paged.
    sms
        The GPU's SMs; None assumes no splits.
    sm
        The compute capability, 90 for 9.0.
    """
    head_dim = setting.head_dim or 0
    # With a single query the group's heads become rows; otherwise heads are not packed.
    group = _group(setting) if n == 1 else 1
    keys = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    splits = 1
    if sms is not None and (setting.api != "varlen" or group > 1):
        tiles = setting.batch * (setting.heads or 0) // group * -(-n * group // _SPLIT_ROWS)
        splits = fewest_splits(tiles, 2 * sms, -(-capacity // keys), shrinking=True)
    if splits > 1 or setting.page_size is not None:
        return Tiling(rows=_SPLIT_ROWS, keys=keys, group=group, splits=splits)
    rows, keys = _standard_tile(head_dim, sm, causal=n > 1 and setting.mask != "block")
    return Tiling(rows=rows, keys=keys, group=group)


def _standard_tile(head_dim: int, sm: int, *, causal: bool) -> tuple[int, int]:
    """Return rows and keys of the kernel without splits."""
    small = sm // 10 == 8 and sm != 80  # 8.6 and 8.9 have less shared memory than 8.0
    if 64 < head_dim <= 128 and small:
        return (64, 64) if causal else (128, 32 if head_dim > 96 else 64)
    if head_dim > 192 and sm != 80:
        return 64, 64
    return 128, 128 if head_dim <= 64 else 64


def flash_3_tiling(setting: Setting, n: int, capacity: int, sms: int | None) -> Tiling:
    """Return the tile of FlashAttention 3 on compute capability 9.0 (hopper/tile_size.h).

    Splits are counted for dense calls alone: in other calls the device chooses them. Parameters
    are those of `flash_2_tiling`.
    """
    head_dim, group, page = setting.head_dim or 0, _group(setting), setting.page_size
    # A single query sees all keys, so the mask is dropped, except over pages at this head size.
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
        splits = fewest_splits(tiles, sms, key_blocks, shrinking=False)
    packed = copied or splits > 1 or setting.api == "varlen" or _worth_packing(n, group, rows)
    reported_splits = splits if setting.api == "dense" else 1
    return Tiling(rows=rows, keys=keys, group=group if packed else 1, splits=reported_splits)


def _sm90_tile(head_dim: int, *, narrow: bool, copied: bool = False) -> tuple[int, int]:
    """Return rows and keys; `narrow` if a mask or copied pages leave room for fewer keys."""
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
    """Return whether packing the heads fills tile rows clearly better than one tile per head."""
    alone = n / (-(-n // rows) * rows)
    together = n * group / (-(-n * group // rows) * rows)
    return alone < 0.9 * together


def _group(setting: Setting) -> int:
    return (setting.heads or 0) // (setting.kv_heads or 1)
