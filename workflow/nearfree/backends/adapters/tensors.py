"""What adapters share: random tensors, copies of them that take turns, pages of a KV cache."""

import math
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from nearfree.backends.adapters.kernel import TURNING, ExecutionContext
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError

_BLOCK = 2**20
"""Elements that are random; a larger tensor repeats them."""
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
    """Return a tensor of normal random numbers: zeros would run faster on some GPUs.

    A large one repeats a block of them, which is ten times as fast to make on a CPU.

    Raises
    ------
    EvidenceError
        The device has no memory for it.
    """
    try:
        tensor = torch.empty(shape, dtype=dtype, device=execution.device)
    except (RuntimeError, MemoryError) as error:  # torch has no class for a lack of memory
        size = " x ".join(map(str, shape))
        raise EvidenceError(
            f"a tensor of {size} cannot be had: {str(error).splitlines()[0]}",
            remedy="Choose a smaller shape, or fewer copies or positions",
        ) from error
    first, *others = tensor.view(-1).split(_BLOCK)
    first.normal_(0.0, scale)
    for other in others:
        other.copy_(first[: len(other)])
    return tensor


def weight(
    execution: ExecutionContext, dtype: torch.dtype, *shape: int, copy: int, projection: str = ""
) -> Tensor:
    """Return a weight [..., out, in], the same tensor to all settings that ask for that copy.

    Its elements have the variance 1 / in, so that a forward neither grows nor vanishes.
    `projection` tells weights of one shape apart.
    """
    key = (str(dtype), *shape, copy, projection)
    if key not in execution.shared:
        execution.shared[key] = filled(execution, dtype, *shape, scale=shape[-1] ** -0.5)
    return execution.shared[key]


class Turns(Generic[Item]):
    """Copies of weights, or of keys and values, of which each forward takes the next.

    They are read cold if those in between are as large as the last-level cache.
    """

    def __init__(self, copies: list[Item], execution: ExecutionContext, share: float = 1.0) -> None:
        """Keep the copies; `share` is the part of one that a forward reads."""
        self.copies = copies
        self._turn = 0
        between = (len(copies) - 1) * _bytes(copies[0]) * share
        self.cache: Literal["cold", "warm"] = "cold" if between >= execution.cache_bytes else "warm"

    def next(self) -> Item:
        """Return the copy whose turn it is."""
        item = self.copies[self._turn]
        self._turn = (self._turn + 1) % len(self.copies)
        return item


def turns(
    execution: ExecutionContext, make: Callable[[int], Item], share: float = 1.0
) -> Turns[Item]:
    """Return copies of weights, or of keys and values, that take turns.

    Parameters
    ----------
    execution
        Says how many; 0 is as many as fill the last-level cache, or TURNING of a larger one.
    make
        Makes a copy, given its number from 0 on.
    share
        The part of a copy that a forward reads.
    """
    first = make(0)
    count = execution.copies or copies_for(_bytes(first) * share, execution.cache_bytes)
    return Turns([first, *(make(copy) for copy in range(1, count))], execution, share)


def copies_for(read_bytes: float, cache_bytes: int) -> int:
    """Return the copies of which one is read again when a cache, or TURNING, was read meanwhile."""
    return 1 + math.ceil(min(cache_bytes, TURNING) / read_bytes)


def _bytes(item: Tensor | tuple[Tensor | tuple[Tensor, ...], ...]) -> int:
    return item.nbytes if isinstance(item, Tensor) else sum(_bytes(part) for part in item)


def share_seen(setting: Setting, positions: tuple[int, ...], page_size: int = 1) -> float:
    """Return the part of a cache that a forward over the smallest N reads.

    The cache has room for L and the largest N positions of each request, in whole pages.
    """
    context = setting.context or 0
    room = pages_of(context + max(positions), page_size) * page_size
    return (context + min(positions)) / room


def evenly(batch: int, length: int, device: str) -> Tensor:
    """Return 0, length, 2 length, ...: where the rows of equally long requests begin and end.

    The tensor is [batch + 1], int32.
    """
    return length * torch.arange(batch + 1, dtype=torch.int32, device=device)


def alike(batch: int, length: int, device: str) -> Tensor:
    """Return the length of each of equally long requests, [batch], int32."""
    return torch.full((batch,), length, dtype=torch.int32, device=device)


def pages_of(length: int, page_size: int) -> int:
    """Return how many pages hold the first `length` positions of a request."""
    return -(-length // page_size)


class Pages:
    """The pages that hold the first `length` positions of each request, in order.

    Request i owns `owned` pages of the pool, from page i * owned on. All tensors are int32.
    `table`: the pages of each request, [batch, pages]; `indices`: the same in one row;
    `indptr`: where each request's begin and end in that row, [batch + 1]; `last`: the positions
    in use of each request's last page, [batch].
    """

    def __init__(self, batch: int, length: int, page_size: int, owned: int, device: str) -> None:
        count = pages_of(length, page_size)
        first = owned * torch.arange(batch, dtype=torch.int32, device=device)
        own = torch.arange(count, dtype=torch.int32, device=device)
        self.table = first[:, None] + own
        self.indices = self.table.flatten()
        self.indptr = evenly(batch, count, device)
        self.last = alike(batch, length - (count - 1) * page_size, device)
