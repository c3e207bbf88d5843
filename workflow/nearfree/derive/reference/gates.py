"""Gated and ungated experts: which kernels' curves answer for which.

Public tables do not say whether experts had a gate, except by the names of TensorRT-LLM's kernels.
In tables of vLLM up to 0.22.0 and of SGLang up to 0.5.10 all experts have three matrices, whatever
their model has. In those of vLLM 0.24.0 and SGLang 0.5.14 a layer is that of its model, and that of
Nemotron-H has two matrices: in the median of each kernel, T at one or two rows per expert is 2.1 to
2.8 times the memory's time for one matrix, and 3.2 to 3.9 times for all other models. Curves are
stored as if all experts had three matrices, so that residuals of ungated ones lack a third. Where
such curves answer for ungated experts, the form counts three matrices, too, and T is that of the
curves.

Source: AIConfigurator, collector/sglang/collect_moe.py, `_benchmark_framework_quantized_moe`
(`is_gated`); before it w1 had 2 d_ff outputs for all models there and in
collector/vllm/collect_moe.py.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from nearfree.derive.reference.groups import Constants, Group, Key, version_of
from nearfree.derive.work_model.family import Features
from nearfree.derive.work_model.moe import MOE_LIBRARY, MOE_TRITON

_UNGATED_NAME = "nongated"
"""Part of the names of kernels whose curves are all of ungated experts."""
_UNGATED_NAMES = {"moe_torch_flow_cutlass": "moe_torch_flow_nongated"}
"""The name of TensorRT-LLM's CUTLASS kernel in tables of ungated experts."""
_FIRST_RELEASES = {"vllm": version_of("0.24.0"), "sglang": version_of("0.5.14")}
"""The first release whose curves are of experts as their model has them, by engine."""
_UNGATED_SHAPES = {(2688, 128, 6), *((width, 512, 22) for width in (1024, 2048, 4096, 8192))}
"""d_model, E and k of Nemotron-H's ungated experts: Nano, and Super and Ultra with latents."""
_AS_GATED = {
    ("sglang_fused_moe_triton", 1024),
    ("vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmonolithic", 2688),
}
"""Kernels and widths d_model whose curves take as long as three matrices do."""
_UNTUNED = "sglang_flashinfer_cutlass_moe"
_UNTUNED_ON = ("h100", "h200")
"""Platforms on which that kernel is untuned: its curves in 16 bits take ten times as long as one
matrix and more, which does not show the number of matrices."""
_GATED_MATRICES = 3.0
_EXPERT_FAMILIES = (MOE_TRITON.name, MOE_LIBRARY.name)


def key_for_gate(key: Key, *, gated: bool) -> Key:
    """Return a key with the kernel's name for gated or ungated experts."""
    return key if gated else key._replace(kernel=_UNGATED_NAMES.get(key.kernel or "", key.kernel))


def keys_for_gate(keys: Sequence[Key], *, gated: bool) -> list[Key]:
    """Return the keys of kernels for gated or ungated experts; all keys if there are none."""
    matching = [key for key in keys if (_UNGATED_NAME in (key.kernel or "")) != gated]
    return matching or [*keys]


def gates_of(rows: pl.DataFrame) -> list[bool]:
    """Return whether the experts of each question are gated, which is the default."""
    return rows["gated"].fill_null(value=True).to_list()


def with_curve_matrices(
    rows: pl.DataFrame, features: Features, group: Group | Constants
) -> Features:
    """Return features with the matrices per expert that a group's curves were fitted with.

    Parameters
    ----------
    rows
        Questions: `d_model`, `experts` and `top_k`.
    features
        Their features; `matrices` [rows, 1] of experts are 3, and 2 without a gate.
    group
        A group of any kernel; one of other modules changes nothing.
    """
    if group.key.family not in _EXPERT_FAMILIES or (features["matrices"] == _GATED_MATRICES).all():
        return features
    ungated_shapes = _ungated_shapes(group)
    shapes = rows.select("d_model", "experts", "top_k").rows()
    is_ungated = np.array([[shape in ungated_shapes] for shape in shapes])
    return {**features, "matrices": np.where(is_ungated, _GATED_MATRICES, features["matrices"])}


def _ungated_shapes(group: Group | Constants) -> set[tuple[int, int, int]]:
    """Return the shapes of which all of a group's curves are of ungated experts."""
    first_release, kernel = _FIRST_RELEASES.get(group.key.backend), group.key.kernel
    if first_release is None or not isinstance(group, Group):
        return set()
    if kernel == _UNTUNED and group.key.platform in _UNTUNED_ON:
        return set()
    before: set[tuple[int, int, int]] = set()
    after: set[tuple[int, int, int]] = set()
    rows = group.curves.select("backend_version", "d_model", "experts", "top_k").iter_rows()
    for release, *shape in rows:
        width, experts, top_k = shape
        (after if version_of(release) >= first_release else before).add((width, experts, top_k))
    ungated = (after & _UNGATED_SHAPES) - before
    return {shape for shape in ungated if (kernel, shape[0]) not in _AS_GATED}
