"""What an SM holds at once, by compute capability, and how many blocks of a kernel are resident.

Limits are those of the CUDA C++ Programming Guide 12.9, section 17.2 (Technical Specifications per
Compute Capability); registers are allocated to warps in steps of 256 (CUDA occupancy calculator).
"""

from typing import NamedTuple

from msgspec import Struct

from nearfree.errors import EvidenceError

REGISTERS = 64 * 1024
"""32-bit registers per SM."""
RESERVED_BYTES = 1024
"""Shared memory that the system reserves per block, from compute capability 8.0 on."""
TENSOR_COLUMNS = 512
"""Columns of tensor memory per SM, on data-centre Blackwell."""
_RESERVES = 80
"""The first compute capability on which the system reserves shared memory."""
_REGISTER_STEP, _SHARED_STEP, _WARP_THREADS = 256, 128, 32


class _Limits(NamedTuple):
    """The limits of one SM: shared memory, resident warps and resident blocks."""

    shared_kib: int
    warps: int
    blocks: int


_LIMITS = {
    75: _Limits(64, 32, 16),
    80: _Limits(164, 64, 32),
    86: _Limits(100, 48, 16),
    87: _Limits(164, 48, 16),
    89: _Limits(100, 48, 24),
    90: _Limits(228, 64, 32),
    100: _Limits(228, 64, 32),
    103: _Limits(228, 64, 32),
    120: _Limits(100, 48, 24),
    121: _Limits(100, 48, 24),
}


class SharedMemory(Struct, frozen=True):
    """Shared memory of one SM, and the limit to which one block may opt in, in bytes."""

    per_sm: int
    per_block: int


def shared_memory(sm: int) -> SharedMemory:
    """Return the shared memory of a compute capability, written as 90 for 9.0.

    Raises
    ------
    EvidenceError
        The capability is not known here.
    """
    size_bytes = _limits(sm).shared_kib * 1024
    return SharedMemory(per_sm=size_bytes, per_block=size_bytes - _reserved_bytes(sm))


def smem_per_block(sm: int | None) -> int | None:
    """Return the shared memory to which one block may opt in, in bytes; None if it is unknown."""
    return shared_memory(sm).per_block if sm in _LIMITS else None


def _reserved_bytes(sm: int) -> int:
    return RESERVED_BYTES if sm >= _RESERVES else 0


def _limits(sm: int) -> _Limits:
    if sm not in _LIMITS:
        raise EvidenceError(
            f"the limits of an SM of compute capability {sm} are unknown",
            remedy=f"Choose one of {', '.join(map(str, _LIMITS))}",
        )
    return _LIMITS[sm]


def resident_blocks(
    sm: int, *, registers: int, shared_bytes: int, warps: int, tensor_columns: int = 0
) -> int:
    """Return the number of blocks that are resident on an SM; 0 if a block does not fit.

    Parameters
    ----------
    sm
        The compute capability, 90 for 9.0.
    registers
        Registers per thread.
    shared_bytes
        Shared memory per block, without the part that the system reserves.
    warps
        Warps per block.
    tensor_columns
        Columns of tensor memory per block.

    Raises
    ------
    EvidenceError
        The limits of the compute capability are not known here.
    """
    limits, memory = _limits(sm), shared_memory(sm)
    if shared_bytes > memory.per_block:
        return 0
    warp_registers = -(-registers * _WARP_THREADS // _REGISTER_STEP) * _REGISTER_STEP
    block_bytes = -(-(shared_bytes + _reserved_bytes(sm)) // _SHARED_STEP) * _SHARED_STEP
    counts = (
        limits.blocks,
        limits.warps // warps,
        REGISTERS // max(warp_registers, _REGISTER_STEP) // warps,
        memory.per_sm // max(block_bytes, _SHARED_STEP),
        *([TENSOR_COLUMNS // tensor_columns] if tensor_columns else []),
    )
    return min(counts)
