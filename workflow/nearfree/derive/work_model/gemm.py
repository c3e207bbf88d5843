"""T(N) of matrix products: one, or those of a Dense FFN one after the other.

A library picks its own tile of rows, which its source does not tell. Two hypotheses bound it: tiles
of 16 rows, so that hardly anything is padded, and tiles of 128 rows. Where an engine's rule says
the tile, it is that one under both, each with its own constants.
"""

import numpy as np

from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Values,
    power_mean_sum,
)

_TILES = {"tile_16": 16, "tile_128": 128}
_SIDE, _STEPS = 128.0, 1000.0
"""Rows and columns of a tile whose steps of K follow on each other; K counts in thousands."""


def latency_us(features: Features, values: Values, hypothesis: str) -> Array:
    """Return T(N) of the products of a module, [rows, grid], in microseconds.

    T = fixed + sum over products of
    ((2 pad(m) K N / (a phi))^p + (r K N s / (b beta))^p + (w K d)^p)^(1/p)
    + m (K s_in + N s_out) / (b beta),
    with m = b N rows of the input, padded to whole tiles, and r passes over the weights: one, or
    as many as a rule says. Tiles of 128 by 128 are spread over the SMs, w an SM and at least
    one, and each goes through K step by step, which takes d: where columns are few SMs stand still,
    and bytes are not what T waits for.

    Parameters
    ----------
    features
        `rows` (m) [rows, grid]; `phi` in FLOP/us, `beta` in bytes/us, `weight_bytes` (s),
        `element_bytes` (s_in) and `result_bytes` (s_out) and, for each product, `matrices` as
        (K, N) [rows, 1] with how often it is done. `padded_i` (pad(m)) and `passes_i` (r) of
        product i, [rows, grid], where a rule says them, and NaN where it does not.
    """
    m = features["rows"]
    # No library pads to a tile whose compute alone outlasts the weights' traffic.
    fits = features["phi"] / features["beta"] * features["weight_bytes"] / 2
    tile = np.minimum(_TILES[hypothesis], np.exp2(np.floor(np.log2(fits))))
    phi = values["compute_share"] * features["phi"]
    beta = values["bandwidth_share"] * features["beta"]
    padded = np.ceil(m / tile) * tile
    total = np.full(m.shape, values["fixed_us"])
    for number, (wide, narrow, times) in enumerate(features["matrices"]):
        elements = wide * narrow
        rows = _ruled(features, f"padded_{number}", padded)
        compute = 2.0 * rows * elements / phi
        passes = _ruled(features, f"passes_{number}", np.ones(m.shape))
        weights = passes * (elements * features["weight_bytes"] / beta)
        row = wide * features["element_bytes"] + narrow * features["result_bytes"]
        moved = m * row / beta
        parts = [compute, weights]
        depth = values.get("depth_us", 0.0)
        if depth > 0:
            tiles = np.ceil(m / _SIDE) * np.ceil(narrow / _SIDE)
            waves = np.maximum(tiles / features["sms"], 1.0)
            parts.append(waves * (depth * wide / _STEPS))
        core = power_mean_sum(values["sharpness"], *parts)
        total = total + times * (core + moved)
    return np.asarray(total)


def _ruled(features: Features, name: str, otherwise: Array) -> Array:
    """Return what a rule says, and something else where none does."""
    said = features.get(name)
    return otherwise if said is None else np.where(np.isnan(said), otherwise, said)


GEMM = Family(
    name="gemm",
    meaning="matrix products of a library that picks its own tile",
    modules=("gemm", "dense_ffn"),
    needs=("d_model", "d_ff"),
    constants=(
        Constant(name="compute_share", unit="1", start=0.85, low=0.2, high=1.3,
                 meaning="share of phi that padded products reach"),
        Constant(name="bandwidth_share", unit="1", start=0.85, low=0.2, high=1.3,
                 meaning="share of beta that weights reach"),
        Constant(name="sharpness", unit="1", start=3.0, low=1.0, high=8.0,
                 meaning="p: how well compute and memory overlap"),
        Constant(name="fixed_us", unit="us", start=4.0, low=0.0, high=60.0,
                 meaning="what a call costs besides"),
        Constant(name="depth_us", unit="us", start=1.0, low=0.0, high=10.0, neutral=0.0,
                 dtypes=("nvfp4",),
                 meaning="what a tile takes for a thousand of K, however many SMs stand still"),
    ),
    hypotheses=tuple(_TILES),
    latency_us=latency_us,
)  # fmt: skip
