"""From questions to arrays: what the forms of T(N) ask of each row and each N of its grid."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from nearfree.derive.work_model.family import Array, Flags
from nearfree.units import BYTES_PER_ELEMENT, US_PER_S

_FLOP_PER_TFLOP = 1e12
_BYTES_PER_GB = 1e9
_GATED, _PLAIN = 3.0, 2.0


def grids(rows: pl.DataFrame) -> tuple[Array, Flags]:
    """Return N [rows, grid] and which of it is a row's own; shorter grids repeat their last N."""
    lists = rows["grid"].to_list()
    width = max((len(each) for each in lists), default=0)
    n = np.array([[*each, *[each[-1]] * (width - len(each))] for each in lists], dtype=np.float64)
    lengths = np.array([len(each) for each in lists])
    return n.reshape(len(lists), width), np.arange(width)[None, :] < lengths[:, None]


def common(rows: pl.DataFrame, n: Array) -> dict[str, Array]:
    """Return what every form asks for: phi in FLOP/us, beta in bytes/us, SMs, s, b N."""
    return {
        "phi": column(rows, "peak_tflops") * (_FLOP_PER_TFLOP / US_PER_S),
        "beta": column(rows, "bandwidth_gb_s") * (_BYTES_PER_GB / US_PER_S),
        "sms": column(rows, "sm_count"),
        "element_bytes": _mapped(rows, "dtype", BYTES_PER_ELEMENT.__getitem__),
        "n": n,
        "grid": n,
        "tokens": column(rows, "batch") * n,
    }


def gemm_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of rows of `gemm`, or of rows of `dense_ffn`: one module at a time."""
    shared = common(rows, n)
    d_model, d_ff = column(rows, "d_model"), column(rows, "d_ff")
    matrices: Sequence[tuple[Array, Array, Array | float]] = [(d_model, d_ff, 1.0)]
    if rows["module"][0] == "dense_ffn":
        gated = rows["gated"].fill_null(value=False).to_numpy()[:, None]
        matrices = [(d_model, d_ff, np.where(gated, 2.0, 1.0)), (d_ff, d_model, 1.0)]
    return {**shared, "rows": shared["tokens"], "matrices": matrices}


def moe_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of MoE layers without their blocks."""
    gated = rows["gated"].fill_null(value=True).to_numpy()[:, None]
    return {
        **common(rows, n),
        **{name: column(rows, name) for name in ("experts", "top_k", "d_model", "d_ff")},
        "skewed": (rows["routing"] == "skewed").to_numpy().astype(np.float64)[:, None],
        "matrices": np.where(gated, _GATED, _PLAIN),
    }


def attention_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of attention without its tiles."""
    names = ("batch", "context", "heads", "kv_heads", "head_dim")
    return {**common(rows, n), **{name: column(rows, name) for name in names}}


def column(rows: pl.DataFrame, name: str) -> Array:
    """Return a column as [rows, 1], null as NaN."""
    return rows[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()[:, None]


def _mapped(rows: pl.DataFrame, name: str, value: Callable[[str], int]) -> Array:
    return np.array([value(each) for each in rows[name]], dtype=np.float64)[:, None]
