"""What the host takes where it launches kernels one by one, without a CUDA graph.

Host and GPU go on at once, so that a forward takes the longer of both. Nothing here was fitted: the
number is read off published rows that no score holds.

It is the time of an engine's own code in Python, whose fused experts are such: between two launches
the GPU ends what is small, sorting, activation and sum, and only products can last beyond the next.
A product or attention of a library is one call of compiled code, which the GPU outlasts.
"""

import numpy as np
import polars as pl

from nearfree.core.modules.dense_ffn import DENSE_FFN
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.core.protocols import EAGER
from nearfree.derive.work_model.family import Array

LAUNCH_US = 23.0
"""Host time of a kernel that is launched by eager code, in microseconds.
Source: sgl-project/sglang pull 1401, Llama 3 8B at b = 1 without graphs: 9.28 ms with Triton's
attention and 8.23 ms with FlashInfer's, both above what the same step takes in graphs, of 390 and
358 launches (12 and 11 a layer, 6 besides: sglang 0.3.1.post1, sglang/srt/models/llama.py,
mem_cache/memory_pool.py, layers/triton_attention/decode_attention.py): 23.8 and 23.0 us."""
KERNELS = {DENSE_FFN.name: 2, MOE_FFN.name: 6}
"""Kernels of a module, one of all others. Of experts: two that sort tokens by expert, two
products, the activation and the sum (vllm 0.20.2,
vllm/model_executor/layers/fused_moe/fused_moe.py). Published calls of the same functions from
Python, in formats that launch two kernels and more besides, take 144 us where a graph takes 104
(vllm-project/vllm pull 13972, 25 calls of vLLM's, one token on an H100), 252 where it takes 50
(sgl-project/sglang pull 5680, 25 of SGLang's on an H200), and 330 to 380 from 1 to 11 tokens with
the choice of experts (pull 7876, both)."""


def eager(rows: pl.DataFrame) -> Array:
    """Return 1 where an engine's code launches the kernels of a question one by one, [rows, 1].

    Parameters
    ----------
    rows
        Questions of modules. Those that say no `launch` ask about CUDA graphs.
    """
    if "launch" not in rows.columns:
        return np.zeros((rows.height, 1))
    of_engine = pl.col("module") == MOE_FFN.name
    found = (of_engine & (pl.col("launch") == EAGER)).fill_null(value=False)
    return rows.select(found.alias("eager"))["eager"].to_numpy().astype(np.float64)[:, None]


def eager_us(rows: pl.DataFrame) -> Array:
    """Return what launching a question's kernels one by one takes, [rows, 1], 0 in a CUDA graph."""
    return eager(rows) * KERNELS[MOE_FFN.name] * LAUNCH_US
