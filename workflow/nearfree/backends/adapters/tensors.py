"""Tensors that adapters share: random ones, rotating copies of them, pages of a KV cache."""

import math
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from nearfree.backends.adapters.kernel import TURNING, ExecutionContext, Positions
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError

_BLOCK = 2**20
"""Random elements generated per tensor; a larger tensor repeats them."""
Item = TypeVar("Item", bound="Tensor | tuple[Tensor | tuple[Tensor, ...], ...]")


def torch_dtype(setting: Setting) -> torch.dtype:
    """Return a setting's dtype; EvidenceError if torch has none of that name."""
    dtype = getattr(torch, setting.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise EvidenceError(
            f"torch has no dtype {setting.dtype}", remedy="Choose bfloat16, float16 or float32"
        )
    return dtype


def filled(
    execution: ExecutionContext, dtype: torch.dtype, *shape: int, scale: float = 1.0
) -> Tensor:
    """Return a tensor of normally distributed random numbers; zeros run faster on some GPUs.

    A large tensor repeats one random block, which is ten times faster to fill on a CPU.

    Raises
    ------
    EvidenceError
        The device has too little memory for it.
    """
    try:
        tensor = torch.empty(shape, dtype=dtype, device=execution.device)
    except (
        RuntimeError,
        MemoryError,
    ) as error:  # torch has no exception class for a lack of memory
        size = " x ".join(map(str, shape))
        raise EvidenceError(
            f"a tensor of {size} cannot be allocated: {str(error).splitlines()[0]}",
            remedy="Choose a smaller shape, or fewer copies or positions",
        ) from error
    block, *repeats = tensor.view(-1).split(_BLOCK)
    block.normal_(0.0, scale)
    for repeat in repeats:
        repeat.copy_(block[: len(repeat)])
    return tensor


def weight(
    execution: ExecutionContext, dtype: torch.dtype, *shape: int, copy: int, projection: str = ""
) -> Tensor:
    """Return a weight [..., out, in]; all settings that request the same copy share one tensor.

    Its elements have variance 1 / in, so that activations neither grow nor vanish.
    `projection` distinguishes weights of the same shape.
    """
    key = (str(dtype), *shape, copy, projection)
    if key not in execution.shared:
        execution.shared[key] = filled(execution, dtype, *shape, scale=shape[-1] ** -0.5)
    return execution.shared[key]


class Turns(Generic[Item]):
    """Copies of weights, or of keys and values, that forwards use in rotation.

    A copy is read cold if the others, read in between, are as large as the last-level cache.
    """

    def __init__(self, copies: list[Item], execution: ExecutionContext, share: float = 1.0) -> None:
        """Store the copies; `share` is the fraction of a copy that a forward reads."""
        self.copies = copies
        self._turn = 0
        between = (len(copies) - 1) * _bytes(copies[0]) * share
        self.cache: Literal["cold", "warm"] = "cold" if between >= execution.cache_bytes else "warm"

    def next(self) -> Item:
        """Return the next copy in the rotation."""
        item = self.copies[self._turn]
        self._turn = (self._turn + 1) % len(self.copies)
        return item


def turns(
    execution: ExecutionContext, make: Callable[[int], Item], share: float = 1.0
) -> Turns[Item]:
    """Return copies of weights, or of keys and values, to be used in rotation.

    Parameters
    ----------
    execution
        Its `copies` is their number; 0 means enough to fill the last-level cache, or TURNING bytes
        if the cache is larger.
    share
        The fraction of a copy that a forward reads.
    """
    first = make(0)
    count = execution.copies or copies_for(_bytes(first) * share, execution.cache_bytes)
    return Turns([first, *(make(copy) for copy in range(1, count))], execution, share)


def copies_for(read_bytes: float, cache_bytes: int) -> int:
    """Return how many copies let min(cache, TURNING) bytes be read between two uses of one."""
    return 1 + math.ceil(min(cache_bytes, TURNING) / read_bytes)


def _bytes(item: Tensor | tuple[Tensor | tuple[Tensor, ...], ...]) -> int:
    return item.nbytes if isinstance(item, Tensor) else sum(_bytes(part) for part in item)


def share_read(setting: Setting, positions: Positions, page_size: int = 1) -> float:
    """Return the fraction of a KV cache that a forward over the smallest N reads.

    The cache holds L plus the largest N positions of each request, in whole pages.
    """
    context = setting.context or 0
    room = pages_of(context + max(positions), page_size) * page_size
    return (context + min(positions)) / room


def row_offsets(batch: int, length: int, device: str) -> Tensor:
    """Return the row offsets of equally long requests: 0, length, 2 length, ..., int32.

    The tensor is [batch + 1].
    """
    return length * torch.arange(batch + 1, dtype=torch.int32, device=device)


def equal_lengths(batch: int, length: int, device: str) -> Tensor:
    """Return the lengths of equally long requests, [batch], int32."""
    return torch.full((batch,), length, dtype=torch.int32, device=device)


def pages_of(length: int, page_size: int) -> int:
    """Return how many pages hold the first `length` positions of a request."""
    return -(-length // page_size)


class Pages:
    """The pages that hold the first `length` positions of each request, in order.

    Request i owns `owned` pages of the pool, starting at page i * owned. All tensors are int32.
    `table`: the pages of each request, [batch, pages]; `indices`: the same, flattened;
    `indptr`: the offsets of the requests in `indices`, [batch + 1]; `last`: the positions in use
    in each request's last page, [batch].
    """

    def __init__(self, batch: int, length: int, page_size: int, owned: int, device: str) -> None:
        count = pages_of(length, page_size)
        first = owned * torch.arange(batch, dtype=torch.int32, device=device)
        offsets = torch.arange(count, dtype=torch.int32, device=device)
        self.table = first[:, None] + offsets
        self.indices = self.table.flatten()
        self.indptr = row_offsets(batch, count, device)
        self.last = equal_lengths(batch, length - (count - 1) * page_size, device)
