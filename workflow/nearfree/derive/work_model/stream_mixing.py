"""T(N) of mixing residual streams: the time of two calls, and its bytes over a share of beta.

No constant is fitted to scored data. They are read off AIConfigurator 0.12.0's mhc_module_perf
tables (the calls before and after a block, vLLM 0.24.0, SGLang 0.5.14 and TensorRT-LLM 1.3.0rc20 on
H100, H200, B200, B300, GB200 and GB300; d of 4096 and 7168, m = 4), halved, since a table's row has
both mixings of a layer. Times are flat up to 128 tokens, then grow with the bytes. On their 671
sums of up to 1024 tokens the form's error is 12 % in the median, and below 28 % for nine in ten.
"""

from typing import Any

import numpy as np
import polars as pl

from nearfree.core.modules.stream_mixing import STREAM_MIXING as KIND
from nearfree.core.modules.stream_mixing import WEIGHT_BYTES, mixed_elements, mixing_weights
from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Limit,
    Values,
    common,
    power_mean_sum,
)


def mixing_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with bytes of the matrix and elements moved per position, [rows, 1]."""
    sizes = rows.select("d_model", "streams").rows()
    return {
        **common(rows, n),
        "matrix_bytes": np.array([[WEIGHT_BYTES * mixing_weights(*size)] for size in sizes]),
        "moved": np.array([[float(mixed_elements(*size))] for size in sizes]),
    }


def mixing_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of the mixing before and after one block, [rows, grid], in microseconds.

    Features are those of `mixing_features`.
    """
    traffic = features["tokens"] * features["moved"] * features["element_bytes"]
    memory_us = (traffic + features["matrix_bytes"]) / (
        values["bandwidth_share"] * features["beta"]
    )
    return power_mean_sum(values["overlap"], values["call_us"] + 0.0 * memory_us, memory_us)


STREAM_MIXING = Family(
    name="stream_mixing",
    meaning="the bytes of residual streams over beta, beside two calls",
    limit=Limit("residual streams that are read and written",
                "each position reads and writes several residual streams"),
    modules=(KIND.name,),
    constants=(
        Constant("call_us", "us", 13.5, 0.0, 120.0,
                 "what the calls before and behind a block take at least"),
        Constant("bandwidth_share", "1", 0.55, 0.02, 1.5, "share of beta that streams reach"),
        Constant("overlap", "1", 1.25, 1.0, 8.0, "p: how well calls and memory overlap"),
    ),
    hypotheses=("two_passes",),
    latency_us=mixing_us,
    features=mixing_features,
    stated_band=0.25,
)  # fmt: skip
