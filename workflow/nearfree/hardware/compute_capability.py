"""Shared memory by compute capability: what kernels ask a device for when they choose a tile.

Source: NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability",
in bytes. The limit a block may opt in to is 1 KB below the memory of an SM.
"""

from msgspec import Struct

from nearfree.errors import EvidenceError


class SharedMemory(Struct, frozen=True):
    """Shared memory of one SM, and the most that one block may opt in to, in bytes."""

    per_sm: int
    per_block: int


_KB_PER_SM = {75: 64, 80: 164, 86: 100, 87: 164, 89: 100, 90: 228, 100: 228, 103: 228, 120: 100}


def shared_memory(sm: int) -> SharedMemory:
    """Return the shared memory of a compute capability, written as 90 for 9.0.

    Raises
    ------
    EvidenceError
        The capability is not known here.
    """
    if sm not in _KB_PER_SM:
        known = ", ".join(map(str, sorted(_KB_PER_SM)))
        raise EvidenceError(
            f"the shared memory of compute capability {sm} is unknown",
            remedy=f"Ask for one of {known}",
        )
    size = _KB_PER_SM[sm]
    reserved = 0 if sm == 75 else 1
    return SharedMemory(per_sm=size * 1024, per_block=(size - reserved) * 1024)
