"""Experts with a gate and without one: which kernels' curves speak of which.

Public tables do not say whether experts had a gate, but in the names of TensorRT-LLM's kernels. In
those of vLLM up to 0.22.0 and of SGLang up to 0.5.10 all have three matrices, whatever their model
has; in those of vLLM 0.24.0 and SGLang 0.5.14 a layer is that of its model, and Nemotron-H's has
two: T at one or two rows an expert is 2.1 to 2.8 times what the memory takes to bring one matrix,
3.2 to 3.9 times of all other models, of each kernel in the median. Curves are kept as if all had
three, so that a third is missing from their residuals: where they answer for experts without a
gate, the form counts three matrices, too, and T is that of the curves.

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

_NAMED = "nongated"
"""What the name of a kernel holds whose curves are all of experts without a gate."""
_WITHOUT = {"moe_torch_flow_cutlass": "moe_torch_flow_nongated"}
"""What tables call TensorRT-LLM's CUTLASS kernel where experts have no gate."""
_SINCE = {"vllm": version_of("0.24.0"), "sglang": version_of("0.5.14")}
"""The release from which on an engine's curves are of experts as their model has them."""
_SHAPES = {(2688, 128, 6), *((width, 512, 22) for width in (1024, 2048, 4096, 8192))}
"""d_model, E and k of Nemotron-H's experts: of Nano, and of Super and Ultra with their latents."""
_AS_GATED = {
    ("sglang_fused_moe_triton", 1024),
    ("vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmonolithic", 2688),
}
"""Kernels, and widths of these, whose curves take as long as three matrices do."""
_UNTUNED = "sglang_flashinfer_cutlass_moe"
_NOT_ON = ("h100", "h200")
"""Where a kernel's curves in 16 bits take ten times as long as one matrix and more: nobody tuned it
there, and what it takes says nothing of matrices."""
_GATED = 3.0
_OF_EXPERTS = (MOE_TRITON.name, MOE_LIBRARY.name)


def named(key: Key, *, gated: bool) -> Key:
    """Return a kernel by its name for experts with a gate or without one."""
    return key if gated else key._replace(kernel=_WITHOUT.get(key.kernel or "", key.kernel))


def of_gate(keys: Sequence[Key], *, gated: bool) -> list[Key]:
    """Return the kernels of experts with a gate or without one, all of the keys where none is."""
    alike = [each for each in keys if (_NAMED in (each.kernel or "")) != gated]
    return alike or [*keys]


def gates_of(rows: pl.DataFrame) -> list[bool]:
    """Return whether the experts of each question have a gate; true of what does not say."""
    return rows["gated"].fill_null(value=True).to_list()


def counted(rows: pl.DataFrame, features: Features, group: Group | Constants) -> Features:
    """Return features with as many matrices an expert as the curves of a group are counted with.

    Parameters
    ----------
    rows
        Questions: `d_model`, `experts` and `top_k`.
    features
        Theirs; of experts `matrices` [rows, 1] are 3, 2 without a gate.
    group
        Of any kernel; those of other modules change nothing.
    """
    if group.key.family not in _OF_EXPERTS or (features["matrices"] == _GATED).all():
        return features
    without = _without_gate(group)
    told = rows.select("d_model", "experts", "top_k").rows()
    plain = np.array([[each in without] for each in told])
    return {**features, "matrices": np.where(plain, _GATED, features["matrices"])}


def _without_gate(group: Group | Constants) -> set[tuple[int, int, int]]:
    """Return the shapes of which all curves of a group are of experts without a gate."""
    since, kernel = _SINCE.get(group.key.backend), group.key.kernel
    if since is None or not isinstance(group, Group):
        return set()
    if kernel == _UNTUNED and group.key.platform in _NOT_ON:
        return set()
    before: set[tuple[int, int, int]] = set()
    after: set[tuple[int, int, int]] = set()
    rows = group.curves.select("backend_version", "d_model", "experts", "top_k").iter_rows()
    for release, *shape in rows:
        width, experts, top_k = shape
        (after if version_of(release) >= since else before).add((width, experts, top_k))
    plain = (after & _SHAPES) - before
    return {each for each in plain if (kernel, each[0]) not in _AS_GATED}
