"""Occupancy: the number of thread blocks that are resident on an SM, by the resources of a block.

Limits are those of the CUDA C++ Programming Guide 12.9, section 17.2 (Technical Specifications per
Compute Capability); registers are allocated to warps in steps of 256 (CUDA occupancy calculator).
"""

from nearfree.errors import EvidenceError
from nearfree.hardware.platforms import shared_memory

REGISTERS = 64 * 1024
"""32-bit registers per SM."""
RESERVED_BYTES = 1024
"""Shared memory that the system reserves per block, from compute capability 8.0 on."""
TENSOR_COLUMNS = 512
"""Columns of tensor memory per SM, on data-centre Blackwell."""
_REGISTER_STEP, _SHARED_STEP, _WARP_THREADS = 256, 128, 32
_WARPS_AND_BLOCKS = {80: (64, 32), 86: (48, 16), 89: (48, 24), 90: (64, 32), 100: (64, 32),
                     103: (64, 32), 120: (48, 24), 121: (48, 24)}  # fmt: skip


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
    if sm not in _WARPS_AND_BLOCKS:
        known = ", ".join(map(str, _WARPS_AND_BLOCKS))
        raise EvidenceError(
            f"the occupancy limits of compute capability {sm} are unknown",
            remedy=f"Choose one of {known}",
        )
    memory = shared_memory(sm)
    if shared_bytes > memory.per_block:
        return 0
    max_warps, max_blocks = _WARPS_AND_BLOCKS[sm]
    warp_registers = -(-registers * _WARP_THREADS // _REGISTER_STEP) * _REGISTER_STEP
    block_bytes = -(-(shared_bytes + RESERVED_BYTES) // _SHARED_STEP) * _SHARED_STEP
    limits = (
        max_blocks,
        max_warps // warps,
        REGISTERS // max(warp_registers, _REGISTER_STEP) // warps,
        memory.per_sm // block_bytes,
        *([TENSOR_COLUMNS // tensor_columns] if tensor_columns else []),
    )
    return min(limits)
