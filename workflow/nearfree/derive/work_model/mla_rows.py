"""Kernels and tiles of questions of latent attention, as arrays."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.core.modules.mla import NAIVE
from nearfree.derive.work_model.family import Array
from nearfree.errors import NearfreeError
from nearfree.sources.answers.latent import WIDE, LatentCall
from nearfree.sources.mla_tiles import NAIVE_TILE

SIZES = ("tile_rows", "rows_per_position", "row_axes", "splits", "naive")
"""Sizes of a tile for a form: its rows, rows per position, row axes, whether keys are split, and
whether latents are first expanded to keys and values of each head."""
_CALL_COLUMNS = ("backend", "backend_version", "kernel", "heads", "sm")


def _calls(rows: pl.DataFrame) -> list[LatentCall]:
    calls = rows.select(
        *_CALL_COLUMNS,
        (pl.col("api").fill_null("") != NAIVE).alias("absorbed"),
        (pl.col("context") > 0).alias("cached"),
        pl.col("selected").is_not_null(),
        (~pl.coalesce("kv_dtype", "dtype").is_in(WIDE)).alias("few_bits"),
    )
    return [LatentCall(**row) for row in calls.iter_rows(named=True)]


def mla_tiles(rows: pl.DataFrame, n: Array) -> tuple[dict[str, Array], list[str | None]]:
    """Return SIZES by name, [rows, grid], and per row None or the reason of a refusal.

    Parameters
    ----------
    rows
        Questions of latent attention with the facts of their platform.
    n
        Their grids, [rows, grid].
    """
    sizes = np.ones((len(SIZES), *n.shape))
    refusals: list[str | None] = []
    results: dict[tuple[object, ...], Array | str] = {}
    for row, (call, grid) in enumerate(zip(_calls(rows), n.astype(int).tolist(), strict=True)):
        key = (call, tuple(grid))
        if key not in results:
            results[key] = _sizes(call, grid)
        result = results[key]
        refusals.append(result if isinstance(result, str) else None)
        if not isinstance(result, str):
            sizes[:, row] = result
    return dict(zip(SIZES, sizes, strict=True)), refusals


def _sizes(call: LatentCall, grid: Sequence[int]) -> Array | str:
    """Return SIZES of a call, [sizes, grid], or the reason of a refusal."""
    try:
        tiles = call.tiles(grid)
    except NearfreeError as error:
        return error.what
    return np.array(
        [(tile.rows, tile.rows_per_position, 1 if tile.shared else call.heads,
          tile.splits, tile is NAIVE_TILE) for tile in tiles], dtype=np.float64,
    ).T  # fmt: skip


def mla_kernels(rows: pl.DataFrame) -> list[str]:
    """Return the kernel that decodes one position of each question, by its tile's path."""
    return [call.tiles([1])[0].path for call in _calls(rows)]


def mla_places(rows: pl.DataFrame, positions: Sequence[int]) -> list[str]:
    """Return the source of each question's kernel and tile at its number of positions."""
    return [call.place(n) for call, n in zip(_calls(rows), positions, strict=True)]
