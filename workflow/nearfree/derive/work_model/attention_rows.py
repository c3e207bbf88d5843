"""The decode kernel of questions of attention over a cache, by its public curves."""

import numpy as np
import polars as pl

from nearfree.backends.decode_kernels import NAMES, WIDEST, backend_decoder, is_measured
from nearfree.derive.work_model.family import Array, Features, Flags

DECODE_TILE = 64.0
"""Assumed query rows of a decode kernel's tile, which tables do not give."""


def measured_curves(rows: pl.DataFrame) -> Flags:
    """Return which rows are public curves behind answers, not questions, [rows]."""
    kernels = rows.select("kernel", "backend", "sm", pl.coalesce("kv_dtype", "dtype")).rows()
    is_curve = {kernel: is_measured(*kernel) for kernel in dict.fromkeys(kernels)}
    return np.array([is_curve[kernel] for kernel in kernels], dtype=bool)


def decoders(rows: pl.DataFrame) -> list[str | None]:
    """Return the kernel whose public curves answer each question, None where there is none.

    It is the kernel that a question names, else that of its backend.

    Parameters
    ----------
    rows
        Questions of attention over a cache with the facts of their platform, or public curves.
    """
    kernels = rows.select(
        "kernel", "backend", "sm", pl.coalesce("kv_dtype", "dtype"), "head_dim"
    ).rows()
    return [
        None if head_dim > WIDEST else kernel if kernel in NAMES else backend_decoder(*backend_key)
        for kernel, *backend_key, head_dim in kernels
    ]


def as_decoding(features: Features) -> Features:
    """Return features with one position per tile, and keys split over SMs."""
    ones = np.ones_like(features["n"])
    return {**features, **decode_tiles(ones, features["heads"] / features["kv_heads"])}


def decode_tiles(ones: Array, group: Array) -> dict[str, Array]:
    """Return the tiles of a decode kernel, [rows, grid]: heads that share keys are rows."""
    return {
        "tile_rows": DECODE_TILE * ones,
        "rows_per_position": group * ones,
        "unsplit": 0.0 * ones,
    }
