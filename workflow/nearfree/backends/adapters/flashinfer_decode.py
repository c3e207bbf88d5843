"""FlashInfer's paged decode: one new query over L cached keys and its own.

It is what an engine runs at N = 1, and computes on CUDA cores, so no row is padded.
"""

from typing import Any

import torch
from torch import Tensor

from nearfree.backends.adapters.flashinfer import PagedInputs
from nearfree.backends.adapters.flashinfer_plan import accepted, load
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.core.modules.attention import attention_work
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError


class FlashInferDecode:
    """Queries [batch, heads, head_dim], planned once; `run` is what is timed."""

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
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

    def _planned(self, wrapper: Any) -> Any:
        given, pages = self._inputs, self._inputs.pages[1]
        buffers: dict[str, Any] = {}
        if self._setting.cuda_graph:
            buffers = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": torch.empty_like(pages.indptr),
                "paged_kv_indices_buffer": torch.empty_like(pages.indices),
                "paged_kv_last_page_len_buffer": torch.empty_like(pages.last),
            }
        named = accepted(wrapper, backend="fa2")  # later releases may turn `auto` into cuDNN
        made = wrapper(given.workspace, "NHD", use_tensor_cores=False, **named, **buffers)
        dtypes = {"q_data_type": given.dtype, "kv_data_type": given.dtype}
        made.plan(pages.indptr, pages.indices, pages.last, *given.heads, **dtypes)
        return made

    def forward(self, n: int) -> Tensor:
        """Run one forward, [batch, heads, head_dim]."""
        given = self._inputs
        out: Tensor = self._wrapper.run(given.queries[n], given.caches.next(), **self._options)
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
