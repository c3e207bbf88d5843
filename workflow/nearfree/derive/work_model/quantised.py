"""What an MoE layer does besides, where numbers of fewer than 16 bits enter its products.

Read from the kernels' sources; nothing is fitted, and it is nothing at 16 bits.
"""

from typing import Any

import numpy as np

from nearfree.derive.work_model.family import Array, Flags

TRTLLM_CUTLASS = r"(?i)torch_flow_cutlass"
"""TensorRT-LLM's own kernel by name; its block-scaled one of Hopper among it."""
HOPPER = 90


def pass_bytes(layer: dict[str, Any], *, triton: bool, routed: Flags) -> Array:
    """Return what is moved to quantise what enters products, beside a 16-bit layer; [rows, grid].

    A kernel of its own reads 16 bits and writes s bytes, which the product reads: 2 s more for
    each element. Triton's layer does so for tokens before they are routed and for what enters the
    second product, TensorRT-LLM's block-scaled one on Hopper for routed rows both times. Others
    quantise where they write.

    Source: TritonExperts.apply of vllm 0.24.0, fused_experts_impl and invoke_fused_moe_kernel of
    sglang 0.5.14; CutlassFp8BlockScaleGemmRunner::moeGemm, whose internal_quantize_a is true, in
    fp8_blockscale_gemm.cu of TensorRT-LLM 1.3.

    Parameters
    ----------
    layer
        Features of MoE layers.
    triton
        Whether the rows are of Triton's fused layer.
    routed
        Which rows are of that layer of TensorRT-LLM, [rows, 1].
    """
    tokens, size = layer["tokens"], layer["element_bytes"]
    pairs = tokens * layer["top_k"]
    rows = tokens if triton else pairs
    quantised = (size < layer["result_bytes"]) & (triton | routed)
    entering = rows * layer["d_model"] + pairs * layer["d_ff"]
    return np.where(quantised, 2.0 * size * entering, 0.0)


_H20_SMS = 78


def token_tiles(tokens: Array, sms: Array, routed: Flags) -> Array:
    """Return the rows of a tile of TensorRT-LLM's block-scaled MoE on Hopper, NaN elsewhere.

    It follows the tokens of the forward, not the rows of an expert: below 32 of them (64 on a GPU
    of 78 SMs) operands are swapped and the tile is the least multiple of 8 from 16 on that holds
    them all; from there on it is 64 rows up to 64 tokens, then 128.

    Source: grouped_gemm_dispatch in fp8_blockscale_gemm_kernel.cuh and get_best_gemm_config in
    deep_gemm/jit_utils.cuh of TensorRT-LLM 1.3; the rows that are expected are the tokens, as
    CutlassFp8BlockScaleGemmRunner::getWorkspaceSize keeps what moe_kernels.cu gives it.

    Parameters
    ----------
    tokens
        b N, [rows, grid].
    sms
        SMs of the GPU, [rows, 1].
    routed
        Which rows are of that layer, [rows, 1].
    """
    swapped = np.clip(np.ceil(tokens / 8.0) * 8.0, 16.0, 64.0)
    below = np.where(sms == _H20_SMS, 64.0, 32.0)
    tiles = np.select(
        [tokens < below, tokens <= 64.0], [swapped, np.full_like(tokens, 64.0)], 128.0
    )
    return np.where(routed, tiles, np.nan)
