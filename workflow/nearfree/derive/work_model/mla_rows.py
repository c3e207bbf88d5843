"""Tiles of latent attention for questions, by the kernel that runs them."""

import numpy as np
import polars as pl

from nearfree.core.modules.mla import NAIVE
from nearfree.derive.work_model.family import Array
from nearfree.errors import NearfreeError
from nearfree.sources.mla_tiles import MlaTile, measured_tile

_ASKED = ("backend", "kernel", "heads", "sm", "api", "context")


def mla_tiles(rows: pl.DataFrame, n: Array) -> tuple[dict[str, Array], list[str | None]]:
    """Return `tile_rows`, `rows_per_position` and `row_axes`, and why where they are not known.

    Parameters
    ----------
    rows
        Questions of latent attention with the facts of their platform.
    n
        Their grids, [rows, grid].

    Returns
    -------
    Sizes [rows, grid] by name, and of each row None or what is not known.
    """
    known: dict[tuple[object, ...], MlaTile | str] = {}
    sizes = np.ones((3, rows.height))
    refused: list[str | None] = []
    for place, (backend, kernel, heads, sm, api, context) in enumerate(
        rows.select(_ASKED).iter_rows()
    ):
        key = backend, kernel, heads, sm, api, context > 0
        if key not in known:
            try:
                known[key] = measured_tile(
                    backend, kernel, heads=heads, sm=sm, cached=context > 0, absorbed=api != NAIVE
                )
            except NearfreeError as error:
                known[key] = error.what
        tile = known[key]
        if isinstance(tile, str):
            refused.append(tile)
            continue
        refused.append(None)
        axes = 1 if tile.shared else heads
        sizes[:, place] = tile.rows, tile.rows_per_position, axes
    wide = np.ones_like(n)
    names = ("tile_rows", "rows_per_position", "row_axes")
    return {name: each[:, None] * wide for name, each in zip(names, sizes, strict=True)}, refused
