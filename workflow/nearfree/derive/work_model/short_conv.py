"""T(N) of a short convolution: a call's fixed time, plus its bytes over a share of beta.

No constant is fitted here, and no curve has such a call as a layer. The fixed time is that of
causal_conv1d_update, the same kernel, before gated delta nets in AIConfigurator 0.12.0's gdn_perf
tables; the share of beta is that of their states (`delta_net`). The band is wide: a call that takes
twice as long is within it.
"""

from typing import Any

import numpy as np
import polars as pl

from nearfree.core.modules.short_conv import SHORT_CONV as KIND
from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Values,
    column,
    common,
)

FLOOR, SHARE = "call_us", "bandwidth_share"


def conv_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with a position's channels and the convolution's width, [rows, 1]."""
    sizes = {"channels": column(rows, "d_model"), "conv": column(rows, "conv")}
    return common(rows, n) | sizes


def conv_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N), [rows, grid], in microseconds.

    Parameters
    ----------
    features
        Those of `conv_features`; `n` [rows, grid]; `batch`, `element_bytes` and `beta` (bytes/us),
        [rows, 1].
    """
    width = features["conv"]
    traffic = features["batch"] * (2.0 * (width - 1.0) + 3.0 * features["n"] - 1.0) + width
    traffic = features["channels"] * traffic * features["element_bytes"]
    return np.asarray(values[FLOOR] + traffic / (values[SHARE] * features["beta"]))


SHORT_CONV = Family(
    name="short_conv",
    meaning="the bytes of a short convolution's rows over beta, over a call",
    modules=(KIND.name,),
    constants=(
        Constant(FLOOR, "us", 1.5, 0.0, 60.0, "what the convolution's kernel takes at least"),
        Constant(SHARE, "1", 0.83, 0.02, 1.5, "share of beta that rows reach"),
    ),
    hypotheses=("a_row_a_position",),
    latency_us=conv_us,
    features=conv_features,
    stated_band=0.7,
)  # fmt: skip
