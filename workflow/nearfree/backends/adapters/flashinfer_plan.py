"""FlashInfer's paged prefill: a wrapper that is planned once per N, then run.

`plan` chooses tiles and splits on the host; `run` does not synchronise. Arguments follow the
signatures of the installed release.
"""

import os
import sysconfig
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from nearfree.backends.adapters.kernel import ExecutionContext, accepted
from nearfree.backends.adapters.tensors import Pages, row_offsets
from nearfree.errors import EvidenceError

Kernels = Literal["fa2", "fa3"]
PAGE_SIZE = 16
_LEAST_WORKSPACE_BYTES = 512 * 2**20
_INT32_BYTES = 4
_PLAN_BYTES = 8 * 2**20 + 2**15 * _INT32_BYTES
_SPARSE_BYTES = (2**24 + 2**15) * _INT32_BYTES


def load() -> Any:
    """Return the module that has the wrappers.

    FlashInfer compiles its kernels with `ninja`. The one of this environment is put on the PATH.
    """
    path = os.environ.get("PATH", "")
    scripts = sysconfig.get_path("scripts")
    if scripts not in path.split(os.pathsep):
        os.environ["PATH"] = f"{scripts}{os.pathsep}{path}"
    return import_module("flashinfer")


def workspace(execution: ExecutionContext, extra_bytes: int = 0) -> Tensor:
    """Return the workspace that all plans of an execution share: they never run concurrently.

    It is `extra_bytes` larger than FlashInfer's minimum.
    """
    key = ("flashinfer", extra_bytes)
    if key not in execution.shared:
        size = _LEAST_WORKSPACE_BYTES + extra_bytes
        execution.shared[key] = torch.zeros(size, dtype=torch.uint8, device=execution.device)
    return execution.shared[key]


def bytes_held(kernels: Kernels, plans: int) -> int:
    """Return the GPU memory, in bytes, of a workspace and a number of plans.

    A wrapper has 8 MiB for its plan, as much pinned host memory, and an int32 per request. With
    `fa3` it has another 64 MiB for the index of each key, which later releases dropped
    (`BatchPrefillWithPagedKVCacheWrapper.__init__`, flashinfer/prefill.py, 0.5.3 and 0.7.2.post1).
    """
    sparse = _SPARSE_BYTES if kernels == "fa3" else 0
    return _LEAST_WORKSPACE_BYTES + plans * (_PLAN_BYTES + sparse)


class Plan:
    """A wrapper planned for N new positions of every request.

    There is one wrapper per plan: with CUDA graphs a wrapper's first plan fixes the largest N.
    """

    def __init__(
        self,
        kernels: Kernels,
        shared: Tensor,
        n: int,
        pages: Pages,
        *,
        heads: tuple[int, int, int, int],
        dtype: torch.dtype,
        causal: bool,
        window: int | None = None,
        cuda_graph: bool = False,
    ) -> None:
        """Make a wrapper and plan it.

        Parameters
        ----------
        heads
            Query heads, key-value heads, head_dim and page size.
        causal, window
            The keys that a query sees: with `causal` those up to its own (bottom-right), otherwise
            all; of these the last `window`, None for all.
        cuda_graph
            Whether the wrapper plans into fixed buffers, which a captured graph reads.

        Raises
        ------
        EvidenceError
            The installed release plans no window.
        """
        query_ends = row_offsets(len(pages.last), n, pages.last.device)
        buffers: dict[str, Any] = {}
        if cuda_graph:
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf": torch.empty_like(query_ends),
                "paged_kv_indptr_buf": torch.empty_like(pages.indptr),
                "paged_kv_indices_buf": torch.empty_like(pages.indices),
                "paged_kv_last_page_len_buf": torch.empty_like(pages.last),
            }
        wrapper_class = load().BatchPrefillWithPagedKVCacheWrapper
        self._wrapper = wrapper_class(shared, "NHD", backend=kernels, **buffers)
        window_options = {} if window is None else _window(self._wrapper.plan, window)
        dtypes = {"q_data_type": dtype, "kv_data_type": dtype}
        page_tensors = (pages.indptr, pages.indices, pages.last)
        self._wrapper.plan(
            query_ends, *page_tensors, *heads, causal=causal, **window_options, **dtypes
        )
        # By default consecutive launches overlap on compute capability 9.0.
        self._options = accepted(self._wrapper.run, enable_pdl=False)

    def run(self, queries: Tensor, cache: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Return attention [batch * N, heads, head_dim] for queries of that shape.

        The cache is [pages, 2, page, kv_heads, head_dim], or a pair of keys and values.
        """
        out: Tensor = self._wrapper.run(queries, cache, **self._options)
        return out


def _window(plan: Callable[..., Any], window: int) -> dict[str, Any]:
    options = accepted(plan, window_left=window - 1)
    if not options:
        raise EvidenceError(
            "the installed flashinfer plans no window",
            remedy="Take a release whose plan has `window_left`, or choose flash_attn",
        )
    return options
