"""The algorithm of an engine's all-reduce, by release, GPUs, links and bytes.

The order is vLLM's: its own kernels, then torch's symmetric memory, then NCCL (0.33.0,
distributed/device_communicators/cuda_communicator.py, 362). Not modelled is the all-reduce that
engines fuse with the norm after it through FlashInfer. vLLM fuses by default since 0.17.0, up to
64, 2 and 0.5 MiB on 2, 4 and 8 GPUs of compute capability 9.0, and 64, 32 and 1 MiB on 10.0
(0.20.2, compilation/passes/fusion/allreduce_rms_fusion.py, 104). SGLang fuses on both for models
such as DeepSeek's, gpt-oss and Qwen3's with experts, where tp > 1 without data parallel attention
(0.5.14, server_args.py, 4296; 0.5.23, arg_groups/overrides.py, 955). No public table measures it.
It saves the norm's own pass and is no slower than the two kernels by themselves, so that times by
these algorithms are an upper bound below those sizes.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

ONE_SHOT, TWO_SHOT, MULTICAST, TORCH, PUSH, PULL, NCCL, TWO_PUSHES, SWITCHED_PULL = ALGORITHMS = (
    "one_shot", "two_shot", "multicast", "torch_two_shot", "push", "pull", "nccl",
    "push_two_shot", "pull_multicast",
)  # fmt: skip
"""The first two are vLLM's and SGLang's before 0.5.12; the next two are torch's symmetric memory.
SGLang's later kernels are push, where a rank writes to the others; pull, where it reads from them;
and the last two: a push of parts, which are summed, and a pull that the switch sums."""
TIMED_AS = {TWO_PUSHES: PULL, SWITCHED_PULL: MULTICAST}
"""Measured substitutes for algorithms that no public table measures, with as many transfers of as
many bytes. A push of parts is faster than its substitute, by the sweeps from which SGLang chose its
sizes (0.5.23, configs/custom_all_reduce_v2.py, 3)."""
_KIB, _MIB = 1024, 1024**2
_BLACKWELL = 100
_OWN_GPUS = (2, 4, 6, 8)
_LARGEST = 8 * _MIB
"""Largest buffer of the own kernels: exclusive in vLLM 0.14.0 to 0.33.0 (custom_all_reduce.py),
inclusive in SGLang 0.5.9 (the same; 0.5.23, 273)."""
_ONE_SHOT_BELOW = ((4, 512 * _KIB), (8, 256 * _KIB))
"""Sizes below which vLLM's kernel runs one shot, by most GPUs: vLLM 0.22.0,
csrc/custom_all_reduce.cuh, 592; SGLang's sgl-kernel is its copy."""
_OWN_BELOW = {
    90: {2: 64 * _MIB, 4: 32 * _MIB, 6: _MIB // 2, 8: _MIB // 4},
    100: {2: 2 * _MIB, 4: 2 * _MIB, 6: _MIB, 8: _MIB},
    103: {2: 4 * _MIB, 4: 4 * _MIB, 6: 8 * _MIB, 8: 4 * _MIB},
}
"""Sizes below which own kernels run where symmetric memory is on: vLLM 0.33.0,
all_reduce_utils.py, 31."""
_SYMMETRIC_UP_TO = {
    90: {2: 64 * _MIB, 4: 32 * _MIB, 6: 64 * _MIB, 8: 64 * _MIB},
    100: {2: 8 * _MIB, 4: 32 * _MIB, 6: 128 * _MIB, 8: 128 * _MIB},
    103: {2: 4 * _MIB, 4: 32 * _MIB, 6: 32 * _MIB, 8: 64 * _MIB},
}
"""Sizes up to which symmetric memory runs the rest: vLLM 0.33.0, all_reduce_utils.py, 58."""
_MULTICAST = {90: (4, 6, 8), 100: (6, 8), 103: (6, 8)}
"""Numbers of GPUs that use multicast: vLLM 0.33.0, symm_mem.py, _WORLD_SIZES_MULTIMEM."""
_SYMMETRIC_DTYPE = "bfloat16"
"""The type that symmetric memory accepts: vLLM 0.33.0, symm_mem.py, should_use_symm_mem. For other
types the own kernels have the same sizes, and NCCL runs the rest."""
_SYMMETRIC_SINCE = Version("0.18.0")
"""On by default since 0.11.0 (envs.py, VLLM_ALLREDUCE_USE_SYMM_MEM), but above its sizes the public
tables of 0.14.0 have the own kernels' times; those of 0.18.0 have symmetric memory's."""
_PUSH_SINCE = Version("0.5.12")
_PUSHED_UP_TO = {
    False: {2: 2 * _MIB, 4: 384 * _KIB, 6: 192 * _KIB, 8: 160 * _KIB},
    True: {2: 4 * _MIB, 4: 2 * _MIB, 6: _MIB, 8: 720 * _KIB},
}
"""Sizes up to which one shot is pushed, by whether the compute capability is 10.0 or later: SGLang
0.5.14, custom_all_reduce_v2.py, _maybe_init_config."""
_PULLED_UP_TO = 16 * _MIB
"""Largest buffer that is pulled: the same file, __init__; the same in 0.5.23 (environ.py, 1535)."""
_SWEPT_SINCE = Version("0.5.23")
"""The oldest release read with the sizes of _SWEPT."""


class _Swept(NamedTuple):
    """Sizes up to which one shot and two are pushed, and from which the switch sums a pull."""

    pushed: int
    in_two: int = 0
    switched: int = _PULLED_UP_TO + 1


_SWEPT = {
    9: {
        2: _Swept(16 * _MIB),
        4: _Swept(384 * _KIB),
        6: _Swept(128 * _KIB, switched=8 * _MIB),
        8: _Swept(128 * _KIB, switched=512 * _KIB),
    },
    10: {
        2: _Swept(8 * _MIB),
        4: _Swept(640 * _KIB, in_two=8 * _MIB),
        6: _Swept(_MIB),
        8: _Swept(256 * _KIB, in_two=8 * _MIB, switched=8 * _MIB),
    },
}
"""Sizes in graphs by the major number of the compute capability: SGLang 0.5.23,
configs/custom_all_reduce_v2.py, 142-228 and 265-312; the order is custom_all_reduce_v2.py, 385."""
_UNSWEPT = _Swept(_MIB)
"""Sizes of all other GPUs: the same file, 326."""
SWITCHES = {
    "vllm": "vLLM 0.33.0 cuda_communicator.py:362, all_reduce_utils.py:31; "
    "0.22.0 custom_all_reduce.cuh:592",
    "sglang": "SGLang 0.5.14 custom_all_reduce_v2.py, _maybe_init_config; "
    "0.5.23 configs/custom_all_reduce_v2.py:142",
}
"""The source of each engine's choice of algorithm."""
_GRID_BYTES = 36 * 512 * 16
"""Bytes in flight of a grid of vLLM's kernels: 36 blocks of 512 threads of 16 bytes (0.22.0,
csrc/custom_all_reduce.cuh, 33 and 529)."""


def algorithm_of(
    backend: str,
    release: str | None,
    *,
    sm: int,
    nvlink: bool,
    gpus: int,
    size: float,
    dtype: str = _SYMMETRIC_DTYPE,
    machine: int | None = None,
) -> str:
    """Return the algorithm of an engine's all-reduce, one of ALGORITHMS.

    Parameters
    ----------
    backend, release
        `vllm` or `sglang` and its version; without a version the newest rules apply.
    sm
        The compute capability, 90 for 9.0.
    nvlink
        Whether NVLink connects all GPUs: over PCIe more than two use NCCL.
    gpus
        The number of ranks.
    size
        Bytes of a rank's buffer.
    dtype
        The type of its elements.
    machine
        GPUs of one operating system, where a node has several: no engine's own kernels reach
        beyond it (vLLM 0.33.0, custom_all_reduce.py, in_the_same_node_as).
    """
    if gpus not in _OWN_GPUS or (gpus > 2 and not nvlink):
        return NCCL
    version = _version(release)
    one_machine = gpus <= (machine or gpus)
    if backend == "sglang":
        push_version = version if nvlink and version >= _PUSH_SINCE else None
        return _sglang(gpus, size, sm=sm, push_version=push_version) if one_machine else NCCL
    symmetric = version >= _SYMMETRIC_SINCE and nvlink and sm in _SYMMETRIC_UP_TO
    if one_machine and size < min(_LARGEST, _OWN_BELOW[sm][gpus] if symmetric else _LARGEST):
        return _own(gpus, size)
    if symmetric and dtype == _SYMMETRIC_DTYPE and size <= _SYMMETRIC_UP_TO[sm][gpus]:
        return MULTICAST if gpus in _MULTICAST[sm] else TORCH
    return NCCL


COLUMNS = ("backend", "backend_version", "sm", "nvlink", "gpus", "dtype", "machine_gpus")
"""The columns of a question that decide the algorithm, besides the size."""


def algorithm_at(question: Mapping[str, Any], size: float) -> str:
    """Return the algorithm of a question with COLUMNS, as in `algorithm_of`."""
    return algorithm_of(
        question["backend"],
        question["backend_version"],
        sm=question["sm"] or 0,
        nvlink=question["nvlink"] is not None,
        gpus=question["gpus"] or 0,
        size=size,
        dtype=question["dtype"],
        machine=question["machine_gpus"],
    )


def _sglang(gpus: int, size: float, *, sm: int, push_version: Version | None) -> str:
    """Return SGLang's algorithm; `push_version` is None where its first kernels run."""
    if push_version is None:
        return _own(gpus, size) if size <= _LARGEST else NCCL
    sizes = _Swept(_PUSHED_UP_TO[sm >= _BLACKWELL][gpus])
    if push_version >= _SWEPT_SINCE:
        sizes = _SWEPT.get(sm // 10, {}).get(gpus, _UNSWEPT)
    if size <= max(sizes.pushed, sizes.in_two):
        return PUSH if size <= sizes.pushed else TWO_PUSHES
    if size > _PULLED_UP_TO:
        return NCCL
    return SWITCHED_PULL if size >= sizes.switched else PULL


def rounds_of(algorithm: str, gpus: int, size: float) -> float:
    """Return the successive loads from all ranks by a thread of the own kernels."""
    if algorithm == ONE_SHOT:
        return -(-size // _GRID_BYTES)
    return 2 * -(-size / gpus // _GRID_BYTES) if algorithm == TWO_SHOT else 0.0


def _own(gpus: int, size: float) -> str:
    small = any(gpus <= most_gpus and size < limit for most_gpus, limit in _ONE_SHOT_BELOW)
    return ONE_SHOT if gpus == 2 or small else TWO_SHOT


@cache
def _version(release: str | None) -> Version:
    """Return a release as a version; the newest one if it is none."""
    newest = Version("9999")
    try:
        return Version(re.sub(r"\+.*", "", release)) if release else newest
    except InvalidVersion:
        return newest
