"""Which kernel decodes each question of attention over a cache, by its public curves."""

import numpy as np
import polars as pl

from nearfree.backends.decode_kernels import NAMES, WIDEST, backend_decoder, is_measured
from nearfree.derive.work_model.family import Array, Features, Flags

DECODE_TILE = 64.0
"""Query rows of a decode kernel's tile, which tables do not say."""


def measured_curves(rows: pl.DataFrame) -> Flags:
    """Return which rows are public curves that answers stand on, and no questions, [rows]."""
    asked = rows.select("kernel", "backend", "sm", pl.coalesce("kv_dtype", "dtype")).rows()
    known = {each: is_measured(*each) for each in dict.fromkeys(asked)}
    return np.array([known[each] for each in asked], dtype=bool)


def decoders(rows: pl.DataFrame) -> list[str | None]:
    """Return the kernel whose public curves speak of each question, None where there is none.

    It is that of the engine, where a question names it, else that of the backend.

    Parameters
    ----------
    rows
        Questions of attention over a cache with the facts of their platform, or public curves.
    """
    asked = rows.select(
        "kernel", "backend", "sm", pl.coalesce("kv_dtype", "dtype"), "head_dim"
    ).rows()
    return [
        None if width > WIDEST else kernel if kernel in NAMES else backend_decoder(*of)
        for kernel, *of, width in asked
    ]


def as_decoding(features: Features) -> Features:
    """Return features as those of one position in a tile of its own, keys split over SMs."""
    ones = np.ones_like(features["n"])
    return {**features, **decode_tiles(ones, features["heads"] / features["kv_heads"])}


def decode_tiles(ones: Array, group: Array) -> dict[str, Array]:
    """Return the tiles of a decode kernel, [rows, grid]: heads that share keys are its rows."""
    return {
        "tile_rows": DECODE_TILE * ones,
        "rows_per_position": group * ones,
        "unsplit": 0.0 * ones,
    }
