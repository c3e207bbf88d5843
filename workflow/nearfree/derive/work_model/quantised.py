"""What an MoE layer does besides, where numbers of fewer than 16 bits enter its products.

Read from sources and taken from datasheets; none of it is fitted, and it is nothing at 16 bits.
"""

import re
from typing import Any

import numpy as np

from nearfree.derive.work_model.family import Array

SCALED_DEPTH = 128.0
"""Inputs that share a scale where scales are of blocks."""
_SLOTS = 2.0
"""Of an accumulator a block of inputs: a product with one scale, and one that adds with the other.
Source: fused_moe_kernel of vllm 0.24.0 and sglang 0.5.14, `accumulator += tl.dot(a, b) *
a_scale[:, None] * b_scale[None, :]`."""
_FLOP_A_SLOT = 2.0
TRTLLM_CUTLASS = r"(?i)torch_flow_cutlass"
"""TensorRT-LLM's own kernel by name; its block-scaled one of Hopper among it."""
_PERMUTED = re.compile(rf"{TRTLLM_CUTLASS}|deep_?gemm")
_GATHERED = re.compile(r"(?i)deep_?gemm")


def promotion_us(peak_float32: Array, scaled: Array) -> Array:
    """Return microseconds a FLOP by which scales of blocks hold up the warps that multiply.

    Each block of 128 inputs ends with two instructions for every accumulator outside the tensor
    cores: 2 x 2 FLOP of float32 for 2 x 128 of the product. The same warps wait for the product
    before, so the times add. Kernels that give them to other warps hide them.

    Parameters
    ----------
    peak_float32
        phi outside the tensor cores in FLOP/us, NaN where no datasheet has it; [rows, 1].
    scaled
        Whether scales are of blocks and the same warps multiply and scale.
    """
    a_flop = _SLOTS * _FLOP_A_SLOT / (2.0 * SCALED_DEPTH)
    return np.where(scaled, np.nan_to_num(a_flop / peak_float32), 0.0)


def pass_bytes(
    layer: dict[str, Any], kernels: list[str], dtypes: list[str], *, triton: bool
) -> Array:
    """Return what passes between the products move beside those of a 16-bit layer, [rows, grid].

    A kernel of its own reads 16 bits and writes s bytes, which the product reads: 2 s more for
    each element that enters. Triton's layer does so for tokens before they are routed and for what
    enters the second product; TensorRT-LLM's block-scaled layers on Hopper and with DeepGEMM for
    routed rows both times, and after DeepGEMM rows are copied once more, 16 bits read and written.
    Others quantise where they write.

    Source: moe_kernel_quantize_input of vllm 0.24.0; CutlassFp8BlockScaleGemmRunner::moeGemm with
    internal_quantize_a (fp8_blockscale_gemm.cu) and DeepGemmFusedMoE (fused_moe_deepgemm.py:
    masked_index_copy_group_quant_fp8, triton_masked_index_gather) of TensorRT-LLM 1.3.

    Parameters
    ----------
    layer
        Features of MoE layers.
    kernels, dtypes
        Of each row: the source's name of the kernel, and what enters products.
    triton
        Whether the rows are of Triton's fused layer.
    """
    tokens, size = layer["tokens"], layer["element_bytes"]
    pairs = tokens * layer["top_k"]
    blocks = np.array([dtype == "float8_block" for dtype in dtypes])[:, None]
    few = size < layer["result_bytes"]
    if triton:
        entering = np.where(few, tokens * layer["d_model"] + pairs * layer["d_ff"], 0.0)
        return np.asarray(2.0 * size * entering)
    permuted = blocks & np.array([bool(_PERMUTED.search(name)) for name in kernels])[:, None]
    gathered = blocks & np.array([bool(_GATHERED.search(name)) for name in kernels])[:, None]
    quantised = np.where(permuted, 2.0 * size * pairs * (layer["d_model"] + layer["d_ff"]), 0.0)
    copied = np.where(gathered, 2.0 * layer["result_bytes"] * pairs * layer["d_model"], 0.0)
    return np.asarray(quantised + copied)


_H20_SMS = 78


def token_tiles(tokens: Array, sms: Array, ruled: Array) -> Array:
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
    ruled
        Whether a row is of that kernel, [rows, 1].
    """
    swapped = np.clip(np.ceil(tokens / 8.0) * 8.0, 16.0, 64.0)
    below = np.where(sms == _H20_SMS, 64.0, 32.0)
    tiles = np.select([tokens < below, tokens <= 64.0], [swapped, 64.0], 128.0)
    return np.where(ruled, tiles, np.nan)
