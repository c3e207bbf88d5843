"""A decoder's attention in FlashInfer: a plan for each N, which layers and forwards share.

A cache that has room for whole pages is a pool of them: request i owns those from
i * room / page size on.
"""

from typing import Any

from torch import Tensor

from nearfree.backends.adapters.flashinfer_plan import PAGE_SIZE, Kernels, Plan, workspace
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.paged import Pages
from nearfree.models.attention_mask import AttentionMask


class _FlashInfer:
    """Paged prefill over the cache."""

    positions_first, page_size = True, PAGE_SIZE
    _kernels: Kernels

    def __init__(self, attention_mask: AttentionMask, execution: ExecutionContext) -> None:
        self.attention_mask, self._execution = attention_mask, execution
        self._workspace = workspace(execution)
        self._plans: dict[int, Plan] = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        batch, heads, n, head_dim = queries.shape
        if n not in self._plans:
            self._plans[n] = self._plan(queries, keys)
        rows = queries.transpose(1, 2).reshape(batch * n, heads, head_dim)
        out = self._plans[n].run(rows, (_paged(keys), _paged(values)))
        return out.view(batch, n, heads, head_dim)

    def _plan(self, queries: Tensor, keys: Tensor) -> Plan:
        """Return the plan that all forwards of an execution share which see and own the same."""
        batch, _, n, _ = queries.shape
        owned = keys.shape[2] // PAGE_SIZE
        heads = (queries.shape[1], keys.shape[1], queries.shape[3], PAGE_SIZE)
        kept: dict[tuple[object, ...], Any] = self._execution.shared
        key = (
            "flashinfer plan",
            self._kernels,
            batch,
            n,
            owned,
            heads,
            self.attention_mask,
            queries.dtype,
        )
        if key not in kept:
            kept[key] = self._made(queries, owned, heads)
        plan: Plan = kept[key]
        return plan

    def _made(self, queries: Tensor, owned: int, heads: tuple[int, int, int, int]) -> Plan:
        batch, _, n, _ = queries.shape
        return Plan(
            self._kernels,
            self._workspace,
            n,
            Pages(batch, self.attention_mask.context + n, PAGE_SIZE, owned, queries.device),
            heads=heads,
            dtype=queries.dtype,
            causal=self.attention_mask.causal,
            window=self.attention_mask.window,
        )


class FlashInferFa2(_FlashInfer):
    """Paged prefill by the kernels of `fa2`."""

    _kernels = "fa2"


class FlashInferFa3(_FlashInfer):
    """Paged prefill by the kernels of `fa3`."""

    _kernels = "fa3"


def _paged(cache: Tensor) -> Tensor:
    """Return a cache [b, kv_heads, room, head_dim] as pages, [pages, page, kv_heads, head_dim]."""
    _, kv_heads, _, head_dim = cache.shape
    return cache.transpose(1, 2).view(-1, PAGE_SIZE, kv_heads, head_dim)
