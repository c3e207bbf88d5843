"""The algorithm of an engine's all-reduce, by release, GPUs, links and bytes.

The order is vLLM's: FlashInfer's kernels, its own, torch's symmetric memory, then NCCL (0.33.0,
distributed/device_communicators/cuda_communicator.py, 362). FlashInfer's come first where the
all-reduce is fused with the norm after it (`decoders/ranks/engines.py`, `fuses_norms`), and in vLLM
since 0.29.0 by themselves, too. The norm's own pass, which a fused kernel saves, is not counted
off. Public tables name an engine's own kernel, and time no other.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from nearfree.core.modules.collective import WITH_NORM

ALGORITHMS = (
    "one_shot", "two_shot", "multicast", "torch_two_shot", "push", "pull", "nccl",
    "push_two_shot", "pull_multicast", "flashinfer_one_shot", "flashinfer_two_shot",
)  # fmt: skip
"""The first two are vLLM's and SGLang's before 0.5.12; the next two are torch's symmetric memory.
SGLang's later kernels are push, where a rank writes to the others; pull, where it reads from them;
a push of parts, which are summed, and a pull that the switch sums. FlashInfer's are pushes, too,
whole or in parts, to buffers where a value that is no number says that nothing has come yet."""
(
    ONE_SHOT, TWO_SHOT, MULTICAST, TORCH, PUSH, PULL, NCCL, TWO_PUSHES, SWITCHED_PULL,
    FLASHINFER_ONE_SHOT, FLASHINFER_TWO_SHOT,
) = ALGORITHMS  # fmt: skip
TIMED_AS = {
    TWO_PUSHES: PULL,
    SWITCHED_PULL: MULTICAST,
    FLASHINFER_ONE_SHOT: PUSH,
    FLASHINFER_TWO_SHOT: PULL,
}
"""Measured substitutes for algorithms that no public table measures, with as many transfers of as
many bytes."""
FASTER_THAN_PUSH = (TWO_PUSHES, FLASHINFER_TWO_SHOT)
"""Algorithms that take no longer than a push at the sizes where they run: sweeps chose these sizes
(SGLang 0.5.23, configs/custom_all_reduce_v2.py, 3; FlashInfer 0.7.2, comm/trtllm_mnnvl_ar.py, 50,
and comm/trtllm_ar.py, 710). Their time is that of the substitute or of a push, the shorter one."""
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
_FUSED_UP_TO = {
    90: {2: 64 * _MIB, 4: 2 * _MIB, 8: _MIB // 2},
    100: {2: 64 * _MIB, 4: 32 * _MIB, 8: _MIB, 16: 64 * _MIB},
    103: {2: 64 * _MIB, 4: 64 * _MIB, 8: 4 * _MIB, 16: 64 * _MIB},
}
"""Sizes up to which vLLM runs FlashInfer's kernels: 0.33.0, allreduce_rms_fusion.py, 108; the same
in 0.20.2 but for 16 GPUs (since 0.28.0) and 8 of 10.3 (2 MiB until 0.28.0)."""
_FUSED_ON_103_SINCE = Version("0.19.0")
"""The first release of vLLM that fuses on 10.3, too: config/vllm.py, 126."""
_ONE_SHOT_UP_TO = {
    90: {2: 32 * _MIB, 4: 2 * _MIB, 8: _MIB // 2},
    100: {2: 32 * _MIB, 4: 4 * _MIB, 8: _MIB},
    103: {2: 32 * _MIB, 4: 4 * _MIB, 8: 2 * _MIB},
}
"""Sizes up to which vLLM asks TensorRT-LLM's kernels in FlashInfer for one shot: 0.20.2 and 0.33.0,
allreduce_rms_fusion.py, 132."""
_ONE_SHOT_BY_FLASHINFER = {2: 128 * _MIB, 4: 8 * _MIB, 8: 42 * _MIB // 16}
"""The same where FlashInfer chooses, as for SGLang: 512, 64 and 42 MiB over 2 g (FlashInfer 0.6.1
and 0.7.2, comm/trtllm_ar.py, 712)."""
_MULTINODE_ONE_SHOT = _MIB
"""Largest size times GPUs that FlashInfer's other kernels (MNNVL) push whole: 0.6.13 and 0.7.2,
comm/trtllm_mnnvl_ar.py, MNNVL_ONE_SHOT_THRESHOLD."""
_MULTINODE_SINCE = Version("0.25.0")
"""The first release of vLLM whose groups of one machine use them: flashinfer_all_reduce.py,
_resolve_fi_ar_backend. Groups of several do since 0.20.2 or before."""
_UNFUSED_SINCE = Version("0.29.0")
"""The first release of vLLM with VLLM_ALLREDUCE_USE_FLASHINFER on by default: envs.py, 266."""
_TUNED_UP_TO = {
    (100, 8): (Version("0.33.0"), 128 * _MIB),
    (103, 4): (_UNFUSED_SINCE, 80 * _MIB),
    (103, 8): (_UNFUSED_SINCE, 64 * _MIB),
}
"""Sizes that replace those of _FUSED_UP_TO for an all-reduce that is not fused, each with its first
release of vLLM: all_reduce_utils.py, FI_MNNVL_ALLREDUCE_MAX_SIZE_MB; in 0.33.0 it is 128 MiB on 8
of 10.3."""
_FUSED_SGLANG_TOKENS = 2048
"""Most tokens that SGLang fuses: 0.5.6 to 0.5.14, layers/communicator.py,
FUSE_ALLREDUCE_MAX_BATCH_SIZE."""
_HOPPER, _H20 = 90, re.compile(r"H20(?!0)")
_FUSED_ON_HOPPER_SINCE = Version("0.5.7")
"""The first release of SGLang that fuses on 9.0, too: server_args.py, 1479; 0.5.6 does on Blackwell
alone (1028 and 1085)."""
_FUSED_ON_H20_SINCE = Version("0.5.14")
"""The first release of SGLang read that does not leave out an H20: server_args.py, 4296; 0.5.12,
2441."""
_SGLANG_MULTINODE_SINCE = Version("0.5.14")
"""The first release of SGLang read whose choice on Blackwell are FlashInfer's kernels for several
nodes: layers/flashinfer_comm_fusion.py, _resolve_backend."""
SWITCHES = {
    "vllm": "vLLM 0.33.0 cuda_communicator.py:362, all_reduce_utils.py:31, "
    "allreduce_rms_fusion.py:108; 0.22.0 custom_all_reduce.cuh:592",
    "sglang": "SGLang 0.5.14 custom_all_reduce_v2.py, _maybe_init_config; "
    "0.5.23 configs/custom_all_reduce_v2.py:142",
}
"""The source of each engine's choice of algorithm."""
_GRID_BYTES = 36 * 512 * 16
"""Bytes in flight of a grid of vLLM's kernels: 36 blocks of 512 threads of 16 bytes (0.22.0,
csrc/custom_all_reduce.cuh, 33 and 529)."""


class Ranks(NamedTuple):
    """The ranks of an all-reduce.

    Parameters
    ----------
    gpus
        Their number.
    sm
        The compute capability, 90 for 9.0.
    nvlink
        Whether NVLink connects all GPUs: over PCIe more than two use NCCL.
    machine
        GPUs of one operating system, where a node has several: no engine's own kernels reach
        beyond it (vLLM 0.33.0, custom_all_reduce.py, in_the_same_node_as).
    device
        The driver's name of the GPU.
    """

    gpus: int
    sm: int
    nvlink: bool = True
    machine: int | None = None
    device: str = ""

    @property
    def on_one_machine(self) -> bool:
        """Whether one operating system has them all."""
        return self.gpus <= (self.machine or self.gpus)


def algorithm_of(
    backend: str,
    release: str | None,
    ranks: Ranks,
    *,
    size: float,
    dtype: str = _SYMMETRIC_DTYPE,
    call: str | None = None,
    tokens: float = 1.0,
) -> str:
    """Return the algorithm of an engine's all-reduce, one of ALGORITHMS.

    Parameters
    ----------
    backend, release
        `vllm` or `sglang` and its version; without a version the newest rules apply.
    size
        Bytes of a rank's buffer.
    dtype
        The type of its elements.
    call
        WITH_NORM for an all-reduce that is fused with the norm after it, None for another one of a
        forward; the kernel that a public table names is the engine's own.
    tokens
        Rows of the buffer.
    """
    version = _version(release)
    if ranks.nvlink and call in (WITH_NORM, None):
        of_engine = {"vllm": _vllm_flashinfer, "sglang": _sglang_flashinfer}[backend]
        algorithm = of_engine(version, ranks, size, tokens if call else None)
        if algorithm is not None:
            return algorithm
    gpus, sm = ranks.gpus, ranks.sm
    if gpus not in _OWN_GPUS or (gpus > 2 and not ranks.nvlink):
        return NCCL
    if backend == "sglang":
        push_version = version if ranks.nvlink and version >= _PUSH_SINCE else None
        own = _sglang(gpus, size, sm=sm, push_version=push_version)
        return own if ranks.on_one_machine else NCCL
    symmetric = version >= _SYMMETRIC_SINCE and ranks.nvlink and sm in _SYMMETRIC_UP_TO
    own_below = min(_LARGEST, _OWN_BELOW[sm][gpus] if symmetric else _LARGEST)
    if ranks.on_one_machine and size < own_below:
        return _own(gpus, size)
    if symmetric and dtype == _SYMMETRIC_DTYPE and size <= _SYMMETRIC_UP_TO[sm][gpus]:
        return MULTICAST if gpus in _MULTICAST[sm] else TORCH
    return NCCL


COLUMNS = (
    "backend", "kernel", "backend_version", "sm", "nvlink", "gpus", "dtype", "machine_gpus",
    "device_name", "d_model",
)  # fmt: skip
"""The columns of a question that decide the algorithm, besides the size; `kernel` is its `api`
where it has none."""


def algorithm_at(question: Mapping[str, Any], size: float) -> str:
    """Return the algorithm of a question with COLUMNS, as in `algorithm_of`."""
    ranks = Ranks(
        gpus=question["gpus"] or 0,
        sm=question["sm"] or 0,
        nvlink=question["nvlink"] is not None,
        machine=question["machine_gpus"],
        device=question["device_name"] or "",
    )
    dtype = question["dtype"]
    return algorithm_of(
        question["backend"],
        question["backend_version"],
        ranks,
        size=size,
        dtype=dtype,
        call=question["kernel"],
        tokens=size / ((question["d_model"] or 1) * (4 if dtype == "float32" else 2)),
    )


def _vllm_flashinfer(
    version: Version, ranks: Ranks, size: float, tokens: float | None
) -> str | None:
    """Return the kernel of FlashInfer that vLLM runs, None where it runs none.

    `tokens` are None where the all-reduce is not fused.
    """
    gpus, sm = ranks.gpus, ranks.sm
    most = _FUSED_UP_TO.get(sm, {}).get(gpus, 0)
    if tokens is None:
        first, tuned = _TUNED_UP_TO.get((sm, gpus), (_UNFUSED_SINCE, most))
        most = tuned if version >= first else most
        most = most if version >= _UNFUSED_SINCE else 0
    elif sm == 103 and version < _FUSED_ON_103_SINCE:
        most = 0
    elif (sm, gpus) == (103, 8) and version < _UNFUSED_SINCE:
        most //= 2
    if size > most or not (ranks.on_one_machine or sm >= _BLACKWELL):
        return None
    if version >= _MULTINODE_SINCE or not ranks.on_one_machine:
        return _multinode(gpus, size)
    whole = size <= _ONE_SHOT_UP_TO[sm].get(gpus, 0)
    return FLASHINFER_ONE_SHOT if whole else FLASHINFER_TWO_SHOT


def _sglang_flashinfer(
    version: Version, ranks: Ranks, size: float, tokens: float | None
) -> str | None:
    """Return the kernel of FlashInfer that SGLang runs, None where it runs none."""
    blackwell = ranks.sm // 10 == _BLACKWELL // 10
    first = Version("0.5.6") if blackwell else _FUSED_ON_HOPPER_SINCE
    supported = blackwell or ranks.sm == _HOPPER
    if tokens is None or tokens > _FUSED_SGLANG_TOKENS or not supported or version < first:
        return None
    if version < _FUSED_ON_H20_SINCE and _H20.search(ranks.device):
        return None
    if blackwell and version >= _SGLANG_MULTINODE_SINCE:
        return _multinode(ranks.gpus, size)
    if not ranks.on_one_machine or ranks.gpus not in _ONE_SHOT_BY_FLASHINFER:
        return None
    whole = size <= _ONE_SHOT_BY_FLASHINFER[ranks.gpus]
    return FLASHINFER_ONE_SHOT if whole else FLASHINFER_TWO_SHOT


def _multinode(gpus: int, size: float) -> str:
    return FLASHINFER_ONE_SHOT if size * gpus <= _MULTINODE_ONE_SHOT else FLASHINFER_TWO_SHOT


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
