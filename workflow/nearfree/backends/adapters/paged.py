"""Pages of a KV cache: which ones each request has, in the forms that kernels ask for."""

import torch
from torch import Tensor


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
