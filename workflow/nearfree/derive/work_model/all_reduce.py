"""Which algorithm an engine's all-reduce runs: by release, GPUs, links and bytes.

The order is vLLM's: its own kernels, then torch's symmetric memory, then NCCL (0.33.0,
distributed/device_communicators/cuda_communicator.py, 362). Not here: the all-reduce that engines
fuse with the norm after it through FlashInfer. vLLM does so by default since 0.17.0, up to 64, 2
and 0.5 MiB of 2, 4 and 8 GPUs of compute capability 9.0 and 64, 32 and 1 MiB of 10.0 (0.20.2,
compilation/passes/fusion/allreduce_rms_fusion.py, 104); SGLang on both for models such as
DeepSeek's, gpt-oss and Qwen3's with experts, where tp > 1 without data parallel attention (0.5.14,
server_args.py, 4296; 0.5.23, arg_groups/overrides.py, 955). No public table measures it; it spares
the norm's own pass and is no slower than the two by themselves, so that what follows from here is
an upper bound below those sizes.
"""

import re
from functools import cache
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

ONE_SHOT, TWO_SHOT, MULTICAST, TORCH, PUSH, PULL, NCCL, TWO_PUSHES, SWITCHED_PULL = ALGORITHMS = (
    "one_shot", "two_shot", "multicast", "torch_two_shot", "push", "pull", "nccl",
    "push_two_shot", "pull_multicast",
)  # fmt: skip
"""Of vLLM, and of SGLang before 0.5.12, the first two; of torch's symmetric memory the next two; of
SGLang's later kernels push and pull, where a rank writes to the others, or reads from them, and the
last two: a push of parts, summed up, and a pull that the switch sums up."""
TIMED_AS = {TWO_PUSHES: PULL, SWITCHED_PULL: MULTICAST}
"""What stands for algorithms that no public table measures: what sends as many bytes as often. A
push of parts is faster, by the sweeps that SGLang chose its sizes by (0.5.23,
configs/custom_all_reduce_v2.py, 3)."""
_KIB, _MIB = 1024, 1024**2
_BLACKWELL = 100
_OWN_GPUS = (2, 4, 6, 8)
_LARGEST = 8 * _MIB
"""vLLM 0.14.0 to 0.33.0 and SGLang 0.5.9, custom_all_reduce.py: vLLM stays below it, SGLang's is
inclusive (0.5.23, 273)."""
_ONE_SHOT_BELOW = ((4, 512 * _KIB), (8, 256 * _KIB))
"""vLLM 0.22.0, csrc/custom_all_reduce.cuh, 592; SGLang's sgl-kernel is its copy."""
_CAPPED = {
    90: {2: 64 * _MIB, 4: 32 * _MIB, 6: _MIB // 2, 8: _MIB // 4},
    100: {2: 2 * _MIB, 4: 2 * _MIB, 6: _MIB, 8: _MIB},
    103: {2: 4 * _MIB, 4: 4 * _MIB, 6: 8 * _MIB, 8: 4 * _MIB},
}
"""vLLM 0.33.0, all_reduce_utils.py, 31: own kernels stay below it where symmetric memory is on."""
_SYMMETRIC = {
    90: {2: 64 * _MIB, 4: 32 * _MIB, 6: 64 * _MIB, 8: 64 * _MIB},
    100: {2: 8 * _MIB, 4: 32 * _MIB, 6: 128 * _MIB, 8: 128 * _MIB},
    103: {2: 4 * _MIB, 4: 32 * _MIB, 6: 32 * _MIB, 8: 64 * _MIB},
}
"""vLLM 0.33.0, all_reduce_utils.py, 58: up to which size symmetric memory takes the rest."""
_MULTICAST = {90: (4, 6, 8), 100: (6, 8), 103: (6, 8)}
"""vLLM 0.33.0, symm_mem.py, _WORLD_SIZES_MULTIMEM."""
_SYMMETRIC_DTYPE = "bfloat16"
"""vLLM 0.33.0, symm_mem.py, should_use_symm_mem: what it takes; of others the own kernels have the
same caps, and NCCL the rest."""
_SYMMETRIC_SINCE = Version("0.18.0")
"""Its default is on since 0.11.0 (envs.py, VLLM_ALLREDUCE_USE_SYMM_MEM), but the public tables of
0.14.0 have the own kernels' times above its sizes, those of 0.18.0 have symmetric memory's."""
_PUSH_SINCE = Version("0.5.12")
_PUSHED = {
    False: {2: 2 * _MIB, 4: 384 * _KIB, 6: 192 * _KIB, 8: 160 * _KIB},
    True: {2: 4 * _MIB, 4: 2 * _MIB, 6: _MIB, 8: 720 * _KIB},
}
"""SGLang 0.5.14, custom_all_reduce_v2.py, _maybe_init_config, below and from compute capability
10.0 on: up to these sizes one shot is pushed."""
_PULLED = 16 * _MIB
"""The same, __init__: the largest buffer that is pulled; so it is in 0.5.23 (environ.py, 1535)."""
_SWEPT_SINCE = Version("0.5.23")
"""The oldest release read whose sizes are those of _SWEPT."""


class _Swept(NamedTuple):
    """Up to which size one shot is pushed, and two; from which the switch sums up what is read."""

    pushed: int
    in_two: int = 0
    switched: int = _PULLED + 1


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
"""SGLang 0.5.23, configs/custom_all_reduce_v2.py, 142-228 and 265-312, in graphs, by the major
number of the compute capability; the order is that of custom_all_reduce_v2.py, 385."""
_UNSWEPT = _Swept(_MIB)
"""The same, 326: of all others."""
SWITCHES = {
    "vllm": "vLLM 0.33.0 cuda_communicator.py:362, all_reduce_utils.py:31; "
    "0.22.0 custom_all_reduce.cuh:592",
    "sglang": "SGLang 0.5.14 custom_all_reduce_v2.py, _maybe_init_config; "
    "0.5.23 configs/custom_all_reduce_v2.py:142",
}
"""Where an engine's switches stand."""
_TILE = 36 * 512 * 16
"""Bytes that a grid of vLLM's kernels has in flight: 36 blocks of 512 threads of 16 bytes (0.22.0,
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
        `vllm` or `sglang` and its version; of none the newest rules.
    sm
        The compute capability, 90 for 9.0.
    nvlink
        Whether NVLink joins all of them: over PCIe more than two GPUs use NCCL.
    gpus
        The GPUs that take part.
    size
        Bytes of a rank's buffer.
    dtype
        What it holds.
    machine
        GPUs of one operating system, where a node has several: no engine's own kernels reach
        beyond it (vLLM 0.33.0, custom_all_reduce.py, in_the_same_node_as).
    """
    if gpus not in _OWN_GPUS or (gpus > 2 and not nvlink):
        return NCCL
    version = _version(release)
    together = gpus <= (machine or gpus)
    if backend == "sglang":
        later = version if nvlink and version >= _PUSH_SINCE else None
        return _sglang(gpus, size, sm=sm, later=later) if together else NCCL
    symmetric = version >= _SYMMETRIC_SINCE and nvlink and sm in _SYMMETRIC
    if together and size < min(_LARGEST, _CAPPED[sm][gpus] if symmetric else _LARGEST):
        return _own(gpus, size)
    if symmetric and dtype == _SYMMETRIC_DTYPE and size <= _SYMMETRIC[sm][gpus]:
        return MULTICAST if gpus in _MULTICAST[sm] else TORCH
    return NCCL


def _sglang(gpus: int, size: float, *, sm: int, later: Version | None) -> str:
    """Return SGLang's algorithm, of its first kernels or of a release with its later ones."""
    if later is None:
        return _own(gpus, size) if size <= _LARGEST else NCCL
    sizes = _Swept(_PUSHED[sm >= _BLACKWELL][gpus])
    if later >= _SWEPT_SINCE:
        sizes = _SWEPT.get(sm // 10, {}).get(gpus, _UNSWEPT)
    if size <= max(sizes.pushed, sizes.in_two):
        return PUSH if size <= sizes.pushed else TWO_PUSHES
    if size > _PULLED:
        return NCCL
    return SWITCHED_PULL if size >= sizes.switched else PULL


def rounds_of(algorithm: str, gpus: int, size: float) -> float:
    """Return how often a thread of the own kernels loads from all ranks, one after the other."""
    if algorithm == ONE_SHOT:
        return -(-size // _TILE)
    return 2 * -(-size / gpus // _TILE) if algorithm == TWO_SHOT else 0.0


def _own(gpus: int, size: float) -> str:
    small = any(gpus <= most and size < below for most, below in _ONE_SHOT_BELOW)
    return ONE_SHOT if gpus == 2 or small else TWO_SHOT


@cache
def _version(release: str | None) -> Version:
    """Return a release as a version; what is no version is taken for the newest one."""
    newest = Version("9999")
    try:
        return Version(re.sub(r"\+.*", "", release)) if release else newest
    except InvalidVersion:
        return newest
