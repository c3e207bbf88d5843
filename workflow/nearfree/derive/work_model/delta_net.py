"""T(N) of layers with a state: a call's fixed time, plus its bytes over a share of beta.

No constant is fitted here. A gated delta net's are read off AIConfigurator 0.12.0's gdn_perf tables
of one position (fused_recurrent_gated_delta_rule_packed_decode of vLLM 0.24.0 and SGLang 0.5.14, 2
to 64 heads of values, b of 1 to 1024, on 8 GPUs). With states of 4 bytes per element, calls that
move 512 MB and more reach 0.77 to 0.91 of beta in the median, and those of one request take 3.7 to
5.6 us; causal_conv1d_update takes 1.5 us at least. For several positions per request the tables
only have the chunked kernel of a prefill, which verifies nothing. The growth of T with N is that of
the bytes in the source; no curve confirms it.

A Mamba-2 mixer has the same form and constants, stated before any of its times was seen, since its
kernels do the same: a convolution's update, and a kernel that reads a state and stores it at each
position (vllm 0.33.0, vllm/model_executor/layers/mamba/mamba_mixer2.py:949-1106), move S and rows
of the same widths.

A short convolution has no curve as a layer. Its fixed time is that of causal_conv1d_update, the
same kernel, in these tables, and its share of beta that of states. The band is wide: a call that
takes twice as long is within it.
"""

from typing import Any

import numpy as np
import polars as pl
from msgspec import structs

from nearfree.core.modules.delta_net import DELTA_NET as KIND
from nearfree.core.modules.mamba2 import MAMBA2 as MIXER
from nearfree.core.modules.short_conv import SHORT_CONV as CONVOLUTION
from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Limit,
    Values,
    column,
    common,
)

FLOOR, SHARE = "call_us", "bandwidth_share"


def state_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with elements of a request's states and of a position's rows, [rows, 1]."""
    values, width = column(rows, "heads") * column(rows, "value_dim"), column(rows, "head_dim")
    return {
        **common(rows, n),
        "conv": column(rows, "conv"),
        "matrices": values * width,
        "mixed": 2.0 * column(rows, "kv_heads") * width + values,
        "values": values,
    }


def state_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) of a convolution and a pass over states, [rows, grid], in microseconds.

    Features are those of `state_features`; an element of a state has `cache_bytes`.
    """
    n = features["n"]
    states = (n + 1.0) * features["matrices"] * features["cache_bytes"]
    windows = 2.0 * (features["conv"] - 1.0) + n - 1.0
    traffic = features["mixed"] * (windows + 3.0 * n) + n * features["values"]
    traffic = features["batch"] * (states + traffic * features["element_bytes"])
    return np.asarray(values[FLOOR] + traffic / (values[SHARE] * features["beta"]))


DELTA_NET = Family(
    name="delta_net",
    meaning="the bytes of a gated delta net's states and rows over beta, over two calls",
    limit=Limit("states that are written, one for each position",
                "each position writes its own state for every request"),
    only_bytes=True,
    modules=(KIND.name,),
    constants=(
        Constant(FLOOR, "us", 5.2, 0.0, 60.0,
                 "what the convolution's and the state's kernels take at least"),
        Constant(SHARE, "1", 0.83, 0.02, 1.5, "share of beta that states reach"),
    ),
    hypotheses=("a_state_a_position",),
    latency_us=state_us,
    features=state_features,
    stated_band=0.3,
)  # fmt: skip
MAMBA2 = structs.replace(
    DELTA_NET,
    name="mamba2",
    meaning="the bytes of a Mamba-2 mixer's states and rows over beta, over two calls",
    modules=(MIXER.name,),
)


def conv_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with a position's channels and the convolution's width, [rows, 1]."""
    sizes = {"channels": column(rows, "d_model"), "conv": column(rows, "conv")}
    return common(rows, n) | sizes


def conv_us(features: Features, values: Values, _hypothesis: str) -> Array:
    """Return T(N) by the features of `conv_features`, [rows, grid], in microseconds."""
    width = features["conv"]
    traffic = features["batch"] * (2.0 * (width - 1.0) + 3.0 * features["n"] - 1.0) + width
    traffic = features["channels"] * traffic * features["element_bytes"]
    return np.asarray(values[FLOOR] + traffic / (values[SHARE] * features["beta"]))


SHORT_CONV = Family(
    name="short_conv",
    meaning="the bytes of a short convolution's rows over beta, over a call",
    limit=Limit("rows that enter and leave a convolution",
                "each position adds a row to convolve, to store and to pass on"),
    only_bytes=True,
    modules=(CONVOLUTION.name,),
    constants=(
        Constant(FLOOR, "us", 1.5, 0.0, 60.0, "what the convolution's kernel takes at least"),
        Constant(SHARE, "1", 0.83, 0.02, 1.5, "share of beta that rows reach"),
    ),
    hypotheses=("a_row_a_position",),
    latency_us=conv_us,
    features=conv_features,
    stated_band=0.7,
)  # fmt: skip
STATES = (DELTA_NET, MAMBA2, SHORT_CONV)
"""The forms of mixers that keep a state."""
