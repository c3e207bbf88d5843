"""Host time where kernels are launched one by one, without a CUDA graph.

Host and GPU work in parallel, so that a forward takes the longer of both. Nothing here was fitted:
the numbers are read off published rows that no score uses.

An engine's fused experts are Python code that launches Triton's and other kernels. Between two
launches the GPU finishes the small kernels, sorting, activation and sum, so that only products
show. A product or attention of a library is one call of compiled code, which takes the GPU longer
than the host.
"""

import numpy as np
import polars as pl
from packaging.version import Version

from nearfree.core.modules.dense_ffn import DENSE_FFN
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.core.protocols import EAGER
from nearfree.derive.granularity.releases import is_moe_package, moe_release
from nearfree.derive.work_model.family import Array

LAUNCH_US = 23.0
"""Host time per kernel launch of eager code, in microseconds.
Source: sgl-project/sglang pull 1401, Llama 3 8B at b = 1 without graphs: 9.28 ms with Triton's
attention and 8.23 ms with FlashInfer's, both above what the same step takes in graphs, of 390 and
358 launches (12 and 11 per layer, and 6 more: sglang 0.3.1.post1, sglang/srt/models/llama.py,
mem_cache/memory_pool.py, layers/triton_attention/decode_attention.py): 23.8 and 23.0 us."""
KERNELS = {DENSE_FFN.name: 2, MOE_FFN.name: 6}
"""Kernels per module; other modules have one. Experts have two that sort tokens by expert, two
products, the activation and the sum (vllm 0.20.2,
vllm/model_executor/layers/fused_moe/fused_moe.py)."""
CALL_US = 26.0
"""Host time per launching call of the Python code of fused experts, in microseconds.
Source: such layers called from Python on three machines. vllm-project/vllm pull 13972, FP8 on an
H100: 25 of one token in 3.6 ms, where graphs take 2.6: 16.0 us for each of nine launching calls.
sgl-project/sglang pull 5680, FP8 on an H200: 25 of one token in 6311.1 us, where graphs take
1255.1, and of 8 to 256 tokens in 6.1 to 6.3 ms: 31.6 for each of eight. sgl-project/sglang pull
7876, FP8 in blocks and with the choice of experts, 1 to 11 tokens: .350 ms of nine calls in SGLang
and .365 of twelve in vLLM, 38.9 and 30.4. The geometric mean over the machines is 25.9."""
_CALLS = {"vllm": (("0", 7), ("0.10.0", 5)), "sglang": (("0", 5),)}
"""Launching calls per 16-bit layer, from a release on: the sorting of tokens, two products, the
activation and the sum; older vLLM also fills two buffers. Read from vllm 0.9.1, 0.9.2, 0.10.0,
0.14.0 and 0.33.0, vllm/model_executor/layers/fused_moe/fused_moe.py and moe_align_block_size.py,
and from sglang 0.5.9, sglang/srt/layers/moe/fused_moe_triton/fused_moe.py and
moe_align_block_size.py; SGLang up to 0.5.4 also fills a long buffer."""


def eager_us(rows: pl.DataFrame) -> Array:
    """Return the host time of launching experts one by one from Python, [rows, 1], in us.

    Parameters
    ----------
    rows
        Questions of modules. The column `launch` says where kernels are launched one by one. The
        time is 0 in a graph, and for experts without an engine's own Python code.
    """
    if "launch" not in rows.columns:
        return np.zeros((rows.height, 1))
    launches = rows.select("module", "launch", "backend", "backend_version").rows()
    return np.array([[CALL_US * _calls(*row)] for row in launches]).reshape(rows.height, 1)


def _calls(module: str, launch: str | None, backend: str, version: str | None) -> int:
    if module != MOE_FFN.name or launch != EAGER or not is_moe_package(backend):
        return 0
    release = moe_release(backend, version, None)
    calls_since = _CALLS[release.package]
    applicable = [
        calls for first, calls in calls_since if Version(release.version) >= Version(first)
    ]
    return applicable[-1]
