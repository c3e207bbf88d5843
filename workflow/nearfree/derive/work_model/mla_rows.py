"""Kernels and tiles of latent attention for questions, as arrays."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.core.modules.mla import NAIVE
from nearfree.derive.work_model.family import Array
from nearfree.errors import NearfreeError
from nearfree.sources.answers.latent import WIDE, LatentCall
from nearfree.sources.mla_tiles import NAIVE_TILE

SIZES = ("tile_rows", "rows_per_position", "row_axes", "splits", "naive")
"""What a tile gives a form: its rows, those of a position, row axes, whether keys are split,
and whether latents are first widened to keys and values of each head."""
_SAID = ("backend", "backend_version", "kernel", "heads", "sm")


def _calls(rows: pl.DataFrame) -> list[LatentCall]:
    asked = rows.select(
        *_SAID,
        (pl.col("api").fill_null("") != NAIVE).alias("absorbed"),
        (pl.col("context") > 0).alias("cached"),
        pl.col("selected").is_not_null(),
        (~pl.coalesce("kv_dtype", "dtype").is_in(WIDE)).alias("few_bits"),
    )
    return [LatentCall(**row) for row in asked.iter_rows(named=True)]


def mla_tiles(rows: pl.DataFrame, n: Array) -> tuple[dict[str, Array], list[str | None]]:
    """Return SIZES by name, [rows, grid], and of each row None or what is not known.

    Parameters
    ----------
    rows
        Questions of latent attention with the facts of their platform.
    n
        Their grids, [rows, grid].
    """
    sizes = np.ones((len(SIZES), *n.shape))
    refused: list[str | None] = []
    known: dict[tuple[object, ...], Array | str] = {}
    for place, (call, grid) in enumerate(zip(_calls(rows), n.astype(int).tolist(), strict=True)):
        key = (call, tuple(grid))
        if key not in known:
            known[key] = _sizes(call, grid)
        found = known[key]
        refused.append(found if isinstance(found, str) else None)
        if not isinstance(found, str):
            sizes[:, place] = found
    return dict(zip(SIZES, sizes, strict=True)), refused


def _sizes(call: LatentCall, grid: Sequence[int]) -> Array | str:
    """Return SIZES of a call, [sizes, grid], or what is not known."""
    try:
        tiles = call.tiles(grid)
    except NearfreeError as error:
        return error.what
    return np.array(
        [(each.rows, each.rows_per_position, 1 if each.shared else call.heads,
          each.splits, each is NAIVE_TILE) for each in tiles], dtype=np.float64,
    ).T  # fmt: skip


def mla_kernels(rows: pl.DataFrame) -> list[str]:
    """Return the kernel that decodes one position of each question, by the name of its tile."""
    return [call.tiles([1])[0].path for call in _calls(rows)]


def mla_places(rows: pl.DataFrame, positions: Sequence[int]) -> list[str]:
    """Return where the kernel and the tile of questions stand, at so many positions each."""
    return [call.place(n) for call, n in zip(_calls(rows), positions, strict=True)]
