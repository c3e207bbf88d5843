"""Additional work of an MoE layer whose activations have fewer than 16 bits.

It is read from the kernels' sources; nothing is fitted. At 16 bits it is zero.
"""

from typing import Any

import numpy as np

from nearfree.derive.work_model.family import Array, Flags

TRTLLM_CUTLASS = r"(?i)torch_flow_cutlass"
"""Names of TensorRT-LLM's own kernel, including its block-scaled one on Hopper."""
HOPPER = 90


def pass_bytes(layer: dict[str, Any], *, triton: bool, routed: Flags) -> Array:
    """Return the additional bytes that quantising activations moves, [rows, grid].

    A separate kernel reads 16 bits and writes s bytes, which the product reads: 2 s more bytes per
    element. Triton's layer quantises tokens before routing, and the input of the second product;
    TensorRT-LLM's block-scaled layer on Hopper quantises routed rows both times. Others quantise
    where they write.

    Source: TritonExperts.apply of vllm 0.24.0, fused_experts_impl and invoke_fused_moe_kernel of
    sglang 0.5.14; CutlassFp8BlockScaleGemmRunner::moeGemm, whose internal_quantize_a is true, in
    fp8_blockscale_gemm.cu of TensorRT-LLM 1.3.

    Parameters
    ----------
    triton
        Whether the rows of features are Triton's fused layers.
    routed
        Which rows are that layer of TensorRT-LLM, [rows, 1].
    """
    tokens, size = layer["tokens"], layer["element_bytes"]
    pairs = tokens * layer["top_k"]
    rows = tokens if triton else pairs
    quantised = (size < layer["result_bytes"]) & (triton | routed)
    elements = rows * layer["d_model"] + pairs * layer["d_ff"]
    return np.where(quantised, 2.0 * size * elements, 0.0)


_H20_SMS = 78


def token_tiles(tokens: Array, sms: Array, routed: Flags) -> Array:
    """Return the rows of a tile of TensorRT-LLM's block-scaled MoE on Hopper, NaN elsewhere.

    The tile depends on the tokens of the forward, not on the rows of an expert. Below 32 tokens (64
    on a GPU with 78 SMs) operands are swapped, and the tile is the least multiple of 8 that holds
    all tokens, at least 16. Above, it has 64 rows up to 64 tokens, then 128.

    Source: grouped_gemm_dispatch in fp8_blockscale_gemm_kernel.cuh and get_best_gemm_config in
    deep_gemm/jit_utils.cuh of TensorRT-LLM 1.3; its expected rows are the tokens, as
    CutlassFp8BlockScaleGemmRunner::getWorkspaceSize keeps the number that moe_kernels.cu passes.
    Arguments are b N [rows, grid], SMs of the GPU and which rows are that layer [rows, 1].
    """
    swapped = np.clip(np.ceil(tokens / 8.0) * 8.0, 16.0, 64.0)
    below = np.where(sms == _H20_SMS, 64.0, 32.0)
    tiles = np.select(
        [tokens < below, tokens <= 64.0], [swapped, np.full_like(tokens, 64.0)], 128.0
    )
    return np.where(routed, tiles, np.nan)
