"""What the host takes where it launches kernels one by one, without a CUDA graph.

Host and GPU go on at once, so that a forward takes the longer of both. A module that is timed so
from Python, as the paper's are, takes at least the launches of its kernels. Nothing here was
fitted: the number is read off published rows that no score holds.
"""

import numpy as np
import polars as pl

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.dense_ffn import DENSE_FFN, GEMM
from nearfree.core.modules.mla import MLA
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.core.protocols import EAGER
from nearfree.derive.work_model.family import Array

LAUNCH_US = 23.0
"""Host time of a kernel that is launched by eager code, in microseconds.
Source: sgl-project/sglang pull 1401, Llama 3 8B at b = 1 without graphs: 9.28 ms with Triton's
attention and 8.23 ms with FlashInfer's, both above what the same step takes in graphs, of 390 and
358 launches (12 and 11 a layer, 6 besides: sglang 0.3.1.post1, sglang/srt/models/llama.py,
mem_cache/memory_pool.py, layers/triton_attention/decode_attention.py): 23.8 and 23.0 us."""
KERNELS = {GEMM.name: 1, DENSE_FFN.name: 2, MOE_FFN.name: 6, ATTENTION.name: 1, MLA.name: 1}
"""Kernels of a module. Of experts: two that sort tokens by expert, two products, the activation
and the sum (vllm 0.20.2, vllm/model_executor/layers/fused_moe/fused_moe.py)."""


def eager_us(rows: pl.DataFrame) -> Array:
    """Return what the host takes at least of a forward of each question, [rows, 1], in us.

    Parameters
    ----------
    rows
        Questions of modules. A column `launch` says whose kernels are launched one by one; where it
        is not EAGER, or a module's kernels are not counted, it is 0.
    """
    if "launch" not in rows.columns:
        return np.zeros((rows.height, 1))
    kernels = pl.col("module").replace_strict(KERNELS, default=0, return_dtype=pl.Float64)
    least = pl.when(pl.col("launch") == EAGER).then(kernels * LAUNCH_US).otherwise(0.0)
    return rows.select(least.alias("us"))["us"].to_numpy()[:, None]
