"""Base of FlashAttention 2 and 3: queries, a KV cache in their layout, lengths, and the call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nearfree.backends.adapters.flash_tiles import Tiling
from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.adapters.tensors import (
    Pages,
    equal_lengths,
    filled,
    pages_of,
    row_offsets,
    share_read,
    torch_dtype,
    turns,
)
from nearfree.core.modules.attention import attention_work, is_causal
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError

APIS = ("kvcache", "varlen", "dense")


def compute_capability(execution: ExecutionContext) -> int:
    """Return the GPU's compute capability, 90 for 9.0; 90 as well without a GPU."""
    if execution.device != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability()
    return 10 * int(major) + int(minor)


class FlashKernel:
    """A call per N: N new queries over L cached and the N new keys, which the cache holds, too.

    Subclasses define the call (`_attend`), its arguments for lengths and pages, and its tile.

    `queries`: [b, N, heads, head_dim], or [b N, heads, head_dim] for varlen; `lengths`: keys of
    each request, [b], int32; `query_ends`, `key_ends`: row offsets of the requests, [b + 1],
    int32; `pages`: those of a paged cache. Each is a dictionary by N.
    """

    _attend: Callable[..., Tensor]

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        """Allocate for all N.

        Raises
        ------
        EvidenceError
            The setting's `api` does not exist, or it sets a page size for one without pages.
        """
        _refuse_unknown(setting)
        self._setting, self._execution = setting, execution
        dtype, batch, self.context = torch_dtype(setting), setting.batch, setting.context or 0
        self._batch, self._flat = batch, setting.api == "varlen"
        head_dim, page_size = setting.head_dim or 0, setting.page_size
        max_length = self.context + max(positions)
        owned = pages_of(max_length, page_size or 1)
        flat = (batch * max_length,) if self._flat else (batch, max_length)
        rows = (batch * owned, page_size) if page_size else flat
        shape = (*rows, setting.kv_heads or 0, head_dim)
        self._caches = turns(
            execution,
            lambda _: (filled(execution, dtype, *shape), filled(execution, dtype, *shape)),
            share_read(setting, positions, page_size or 1),
        )
        self.cache = self._caches.cache
        queries = filled(execution, dtype, batch, max(positions), setting.heads or 0, head_dim)
        query_slices = {n: queries[:, :n].contiguous() for n in positions}
        self.queries = {n: q.flatten(0, 1) if self._flat else q for n, q in query_slices.items()}
        device = execution.device
        self.lengths = {n: equal_lengths(batch, self.context + n, device) for n in positions}
        self.query_ends = {n: row_offsets(batch, n, device) for n in positions}
        self.key_ends = {n: row_offsets(batch, self.context + n, device) for n in positions}
        self._page_size = page_size
        self.pages = {
            n: Pages(batch, self.context + n, page_size, owned, device)
            for n in positions
            if page_size
        }
        self._arguments = {n: self._lengths(n) for n in positions}

    def _lengths(self, n: int) -> dict[str, Any]:
        """Return the call's arguments for the requests' lengths and pages."""
        raise NotImplementedError

    def _tiling(self, n: int) -> tuple[Tiling, str]:
        """Return the tile of the kernel that the call runs, and its basis in words."""
        raise NotImplementedError

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request."""
        keys, values = self.keys_and_values(n)
        return self._attend(
            self.queries[n], keys, values, causal=is_causal(self._setting), **self._arguments[n]
        )

    def work(self, n: int) -> ExecutedWork:
        """Return the work in tiles of the kernel that the call runs."""
        tiling, basis = self._tiling(n)
        return attention_work(
            self._setting,
            n,
            basis,
            tile_rows=tiling.rows,
            tile_keys=tiling.keys,
            group=tiling.group,
            splits=tiling.splits,
            sms=self._execution.sms,
        )

    def keys_and_values(self, n: int) -> tuple[Tensor, Tensor]:
        """Return L + N keys and values of each request in the next copy, or all its pages."""
        keys, values = self._caches.next()
        length = self.context + n
        if self.pages:
            return keys, values
        if self._flat:
            return keys[: self._batch * length], values[: self._batch * length]
        return keys[:, :length], values[:, :length]

    def capacity(self, n: int) -> int:
        """Return the keys that the cache of a request has room for in a call."""
        length = self.context + n
        return pages_of(length, self._page_size) * self._page_size if self._page_size else length


def _refuse_unknown(setting: Setting) -> None:
    if setting.api not in APIS:
        raise EvidenceError(
            f"{setting.backend} has no api {setting.api}",
            remedy=f"Choose from {', '.join(APIS)} as the study's `api`",
        )
    if setting.api == "dense" and setting.page_size:
        raise EvidenceError(
            f"a dense call of {setting.backend} reads no pages",
            remedy="Leave `page_size` out, or choose kvcache or varlen as `api`",
        )
