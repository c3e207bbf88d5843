"""Occupancy: the scarcest resource of a block bounds the blocks of an SM."""

import pytest
from nearfree.errors import EvidenceError
from nearfree.hardware.occupancy import resident_blocks, shared_memory, smem_per_block


@pytest.mark.parametrize(
    ("sm", "registers", "shared", "warps", "blocks"),
    [
        (80, 40, 12288, 4, 12),  # 65,536 registers of 1,280 a warp
        (89, 40, 12288, 4, 7),  # 100 KB of 13 KB a block
        (90, 64, 24576, 4, 8),
        (90, 209, 196608, 8, 1),
        (100, 32, 0, 1, 32),  # blocks
        (120, 16, 0, 8, 6),  # 48 warps
        (90, 16, 0, 8, 8),  # 64 warps
        (89, 252, 147456, 8, 0),  # more than a block may have
    ],
)
def test_the_scarcest_resource_bounds_the_blocks(
    sm: int, registers: int, shared: int, warps: int, blocks: int
) -> None:
    """Registers, shared memory, warps and blocks each bound the occupancy where scarcest."""
    assert resident_blocks(sm, registers=registers, shared_bytes=shared, warps=warps) == blocks


def test_tensor_memory_bounds_the_blocks_too() -> None:
    """512 columns of it are shared by all blocks of an SM."""
    taken = {"registers": 32, "shared_bytes": 0, "warps": 4}
    assert resident_blocks(100, **taken) == 16
    assert resident_blocks(100, **taken, tensor_columns=256) == 2


@pytest.mark.parametrize("sm", [75, 80, 86, 87, 89, 90, 100, 103, 120, 121])
def test_more_of_anything_is_never_more_blocks(sm: int) -> None:
    """A block that takes more leaves room for as many others or fewer, down to none."""
    most = shared_memory(sm).per_block
    counts = [
        resident_blocks(sm, registers=64, shared_bytes=size, warps=4)
        for size in range(0, most + 1025, 1024)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[-2:] == [1, 0]


def test_shared_memory_of_a_block_may_be_unknown() -> None:
    """A block's shared memory is known for known capabilities, and None without one."""
    assert smem_per_block(90) == shared_memory(90).per_block == 227 * 1024
    assert smem_per_block(70) is None
    assert smem_per_block(None) is None


def test_another_capability_is_refused() -> None:
    """A compute capability with unknown limits is refused."""
    with pytest.raises(EvidenceError, match="70"):
        resident_blocks(70, registers=32, shared_bytes=0, warps=4)
