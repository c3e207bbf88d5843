"""T(N) of the mixing of residual streams: its bytes over a share of beta, and what two calls take.

No constant is fitted to what is scored. They are read off AIConfigurator 0.12.0's mhc_module_perf
tables (the calls before and behind a block, vLLM 0.24.0, SGLang 0.5.14 and TensorRT-LLM 1.3.0rc20
on H100, H200, B200, B300, GB200 and GB300; d of 4096 and 7168, m = 4), halved, as a row holds both
places of a layer: flat up to 128 tokens, then as their bytes grow. Of their 671 sums of up to 1024
tokens the form is off by 12 % in the median and nine in ten by less than 28 %.
"""

import numpy as np
import polars as pl

from nearfree.core.modules.stream_mixing import STREAM_MIXING as KIND
from nearfree.core.modules.stream_mixing import WEIGHT_BYTES, mixed_elements, mixing_weights
from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Values,
    power_mean_sum,
)


def mixing_features(rows: pl.DataFrame) -> dict[str, Array]:
    """Return the bytes of the matrix and the elements that a position moves, [rows, 1]."""
    sizes = rows.select("d_model", "streams").rows()
    return {
        "matrix_bytes": np.array([[WEIGHT_BYTES * mixing_weights(*of)] for of in sizes]),
        "moved": np.array([[float(mixed_elements(*of))] for of in sizes]),
    }


def mixing_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) before and behind one block, [rows, grid], in microseconds.

    Parameters
    ----------
    features
        Those of `mixing_features`; `tokens` [rows, grid]; `element_bytes` and `beta` (bytes/us),
        [rows, 1].
    """
    moved = features["tokens"] * features["moved"] * features["element_bytes"]
    memory = (moved + features["matrix_bytes"]) / (values["bandwidth_share"] * features["beta"])
    return power_mean_sum(values["overlap"], values["call_us"] + 0.0 * memory, memory)


STREAM_MIXING = Family(
    name="stream_mixing",
    meaning="the bytes of residual streams over beta, beside two calls",
    modules=(KIND.name,),
    constants=(
        Constant(name="call_us", unit="us", start=13.5, low=0.0, high=120.0,
                 meaning="what the calls before and behind a block take at least"),
        Constant(name="bandwidth_share", unit="1", start=0.55, low=0.02, high=1.5,
                 meaning="share of beta that streams reach"),
        Constant(name="overlap", unit="1", start=1.25, low=1.0, high=8.0,
                 meaning="p: how well calls and memory overlap"),
    ),
    hypotheses=("two_passes",),
    latency_us=mixing_us,
    stated_band=0.25,
)  # fmt: skip
