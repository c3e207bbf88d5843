"""FlashInfer's paged prefill, N new queries over L cached and N new keys, and its paged decode.

The causal mask is aligned bottom-right; without it, each query sees all keys. `plan` is called once
per N when the adapter is constructed; `run` is timed. Engines run decode at N = 1; it computes on
CUDA cores, so no row is padded.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from nearfree.backends.adapters.flashinfer_plan import (
    PAGE_SIZE,
    Kernels,
    Plan,
    load,
    workspace,
)
from nearfree.backends.adapters.kernel import ExecutionContext, Positions, accepted
from nearfree.backends.adapters.tensors import (
    Pages,
    Turns,
    filled,
    pages_of,
    share_read,
    torch_dtype,
)
from nearfree.core.modules.attention import attention_work, is_causal
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError


def fa2_rows(setting: Setting, n: int) -> int:
    """Return the rows of fa2's tile, chosen by a request's packed rows: N times heads per KV head.

    A plan for a CUDA graph assumes the longest request that the total of rows allows, with one row
    for each other request (`PrefillSplitQOKVIndptr`, scheduler.cuh; `FA2DetermineCtaTileQ`,
    utils.cuh).
    """
    head_dim, group = setting.head_dim or 0, (setting.heads or 0) // (setting.kv_heads or 1)
    longest = setting.batch * (n - 1) + 1 if setting.cuda_graph else n
    packed = longest * group
    if packed > 64 and head_dim < 256:
        return 128
    return 64 if packed > 16 else 16


def fa3_rows(head_dim: int) -> int:
    """Return the rows of fa3's tile, which packs no heads (`PrefillSM90Plan`, scheduler.cuh)."""
    return 192 if head_dim == 64 else 128


def graph_bytes(setting: Setting, max_n: int) -> int:
    """Return the extra workspace bytes of a plan for a CUDA graph, which splits every tile's keys.

    Each packed row of a tile of 128 then has, for all heads, a partial output and a log-sum, in
    float32 (`PrefillPlan`, scheduler.cuh).
    """
    heads, batch = setting.heads or 0, setting.batch
    packed = batch * max_n * heads // (setting.kv_heads or 1)
    rows = 128 * (-(-packed // 128) + batch - 1) if setting.cuda_graph else 0
    return 4 * rows * heads * ((setting.head_dim or 0) + 1)


class PagedInputs:
    """Queries, a paged cache [pages, 2, page, kv_heads, head_dim], and the pages of each N.

    One workspace serves the wrappers of all N, which never run concurrently.
    """

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        dtype, batch, max_n = torch_dtype(setting), setting.batch, max(positions)
        context, head_dim = setting.context or 0, setting.head_dim or 0
        self.page_size = setting.page_size or PAGE_SIZE
        owned = pages_of(context + max_n, self.page_size)
        shape = (batch * owned, 2, self.page_size, setting.kv_heads or 0, head_dim)
        self.caches = Turns(
            [filled(execution, dtype, *shape) for _ in range(execution.copies)],
            execution,
            share=share_read(setting, positions, self.page_size),
        )
        rows = filled(execution, dtype, batch * max_n, setting.heads or 0, head_dim)
        self.queries = {n: rows[: batch * n] for n in positions}
        self.pages = {
            n: Pages(batch, context + n, self.page_size, owned, execution.device) for n in positions
        }
        self.workspace = workspace(execution, graph_bytes(setting, max_n))
        self.heads = (setting.heads or 0, setting.kv_heads or 0, head_dim, self.page_size)
        """Arguments of every `plan` after the pages; all releases have them in this order."""
        self.dtype = dtype


class _Prefill:
    """Paged prefill with one plan per N."""

    _kernels: ClassVar[Kernels]

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        self._setting, self._execution = setting, execution
        inputs = self._inputs = PagedInputs(setting, positions, execution)
        self.cache = inputs.caches.cache
        self._plans = {
            n: Plan(
                self._kernels,
                inputs.workspace,
                n,
                inputs.pages[n],
                heads=inputs.heads,
                dtype=inputs.dtype,
                causal=is_causal(setting),
                cuda_graph=setting.cuda_graph,
            )
            for n in positions
        }

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request, [batch * N, heads, head_dim]."""
        return self._plans[n].run(self._inputs.queries[n], self._inputs.caches.next())


class FlashInferFa2(_Prefill):
    """The `fa2` kernels, which pack the query heads of a key-value head into one row axis."""

    _kernels = "fa2"

    def work(self, n: int) -> ExecutedWork:
        """Return the work in tiles of 16, 64 or 128 packed rows."""
        heads, kv_heads, *_ = self._inputs.heads
        return attention_work(
            self._setting,
            n,
            "FlashInfer fa2: 16, 64 or 128 packed rows, key tile and splits not counted",
            tile_rows=fa2_rows(self._setting, n),
            group=heads // kv_heads,
            sms=self._execution.sms,
        )


class FlashInferFa3(_Prefill):
    """The `fa3` kernels, for compute capability 9.0: one tile per head size."""

    _kernels = "fa3"

    def work(self, n: int) -> ExecutedWork:
        """Return the work in tiles of 128 rows, or 192 at a head size of 64."""
        return attention_work(
            self._setting,
            n,
            "FlashInfer fa3: 128 rows, 192 at head_dim 64, key tile not counted",
            tile_rows=fa3_rows(self._setting.head_dim or 0),
            sms=self._execution.sms,
        )


class FlashInferDecode:
    """Paged decode of queries [batch, heads, head_dim], planned once; `run` is timed."""

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        if positions != (1,):
            raise EvidenceError(
                f"flashinfer_decode runs N=1 alone, not {', '.join(map(str, positions))}",
                remedy="Give this study `positions: [1]`, or choose flashinfer_fa2 or _fa3",
            )
        self._setting, self._execution = setting, execution
        self._inputs = PagedInputs(setting, positions, execution)
        self.cache = self._inputs.caches.cache
        self._wrapper = self._planned(load().BatchDecodeWithPagedKVCacheWrapper)
        self._options = accepted(self._wrapper.run, enable_pdl=False)

    def _planned(self, wrapper_class: Any) -> Any:
        inputs, pages = self._inputs, self._inputs.pages[1]
        buffers: dict[str, Any] = {}
        if self._setting.cuda_graph:
            buffers = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": torch.empty_like(pages.indptr),
                "paged_kv_indices_buffer": torch.empty_like(pages.indices),
                "paged_kv_last_page_len_buffer": torch.empty_like(pages.last),
            }
        # Later releases may resolve `auto` to cuDNN.
        backend_options = accepted(wrapper_class, backend="fa2")
        planned = wrapper_class(
            inputs.workspace, "NHD", use_tensor_cores=False, **backend_options, **buffers
        )
        dtypes = {"q_data_type": inputs.dtype, "kv_data_type": inputs.dtype}
        planned.plan(pages.indptr, pages.indices, pages.last, *inputs.heads, **dtypes)
        return planned

    def forward(self, n: int) -> Tensor:
        """Run one forward, [batch, heads, head_dim]."""
        inputs = self._inputs
        out: Tensor = self._wrapper.run(inputs.queries[n], inputs.caches.next(), **self._options)
        return out

    def work(self, n: int) -> ExecutedWork:
        """Return the work: the heads that share a key-value head are the rows of a block."""
        heads, kv_heads, *_ = self._inputs.heads
        return attention_work(
            self._setting,
            n,
            "FlashInfer decode on CUDA cores: no padded rows, splits not counted",
            tile_rows=heads // kv_heads,
            group=heads // kv_heads,
            sms=self._execution.sms,
        )
