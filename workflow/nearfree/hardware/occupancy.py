"""How many blocks of threads an SM holds at once, by what one of them uses.

Limits are those of the CUDA C++ Programming Guide 12.9, section 17.2 (Technical Specifications per
Compute Capability); registers are given to warps in steps of 256 (CUDA occupancy calculator).
"""

from nearfree.errors import EvidenceError
from nearfree.hardware.platforms import shared_memory

REGISTERS = 64 * 1024
"""Registers of an SM, of 32 bits."""
RESERVED_BYTES = 1024
"""Shared memory that the system takes of each block, from compute capability 8.0 on."""
TENSOR_COLUMNS = 512
"""Columns of an SM's tensor memory, on data-centre Blackwell."""
_STEP, _SHARED_STEP, _WARP = 256, 128, 32
_WARPS_AND_BLOCKS = {80: (64, 32), 86: (48, 16), 89: (48, 24), 90: (64, 32), 100: (64, 32),
                     103: (64, 32), 120: (48, 24)}  # fmt: skip


def resident_blocks(
    sm: int, *, registers: int, shared_bytes: int, warps: int, tensor_columns: int = 0
) -> int:
    """Return how many blocks an SM holds at once; 0 where not one fits.

    Parameters
    ----------
    sm
        The compute capability, 90 for 9.0.
    registers
        Of a thread.
    shared_bytes
        Of a block, without what the system takes.
    warps
        Of a block.
    tensor_columns
        Columns of tensor memory that a block takes.

    Raises
    ------
    EvidenceError
        The limits of the capability are not known here.
    """
    if sm not in _WARPS_AND_BLOCKS:
        known = ", ".join(map(str, _WARPS_AND_BLOCKS))
        raise EvidenceError(
            f"how many blocks an SM of compute capability {sm} holds is unknown",
            remedy=f"Ask for one of {known}",
        )
    memory = shared_memory(sm)
    if shared_bytes > memory.per_block:
        return 0
    most_warps, most_blocks = _WARPS_AND_BLOCKS[sm]
    of_warp = -(-registers * _WARP // _STEP) * _STEP
    taken = -(-(shared_bytes + RESERVED_BYTES) // _SHARED_STEP) * _SHARED_STEP
    limits = (
        most_blocks,
        most_warps // warps,
        REGISTERS // max(of_warp, _STEP) // warps,
        memory.per_sm // taken,
        *([TENSOR_COLUMNS // tensor_columns] if tensor_columns else []),
    )
    return min(limits)
