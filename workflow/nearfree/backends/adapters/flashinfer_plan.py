"""FlashInfer's paged prefill: a wrapper that is planned once for each N, and then runs.

`plan` settles the tiles and the splits on the host; `run` waits for nothing. What a release takes
is asked of its signatures.
"""

import inspect
import os
import sysconfig
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import Pages, evenly
from nearfree.errors import EvidenceError

Kernels = Literal["fa2", "fa3"]
PAGE_SIZE = 16
_LEAST_WORKSPACE_BYTES = 512 * 2**20
_INT32_BYTES = 4
_PLAN_BYTES = 8 * 2**20 + 2**15 * _INT32_BYTES
_SPARSE_BYTES = (2**24 + 2**15) * _INT32_BYTES


def load() -> Any:
    """Return the module that has the wrappers.

    It compiles its kernels with the `ninja` of its own environment, which need not be on the PATH.
    """
    path = os.environ.get("PATH", "")
    scripts = sysconfig.get_path("scripts")
    if scripts not in path.split(os.pathsep):
        os.environ["PATH"] = f"{scripts}{os.pathsep}{path}"
    return import_module("flashinfer")


def accepted(function: Callable[..., Any], **wished: Any) -> dict[str, Any]:
    """Return those of some arguments that a function of the installed release takes."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in wished.items() if name in known}


def workspace(execution: ExecutionContext, more: int = 0) -> Tensor:
    """Return the bytes that all plans of an execution share, `more` than the least.

    They never run at the same time.
    """
    key = ("flashinfer", more)
    if key not in execution.shared:
        size = _LEAST_WORKSPACE_BYTES + more
        execution.shared[key] = torch.zeros(size, dtype=torch.uint8, device=execution.device)
    return execution.shared[key]


def bytes_held(kernels: Kernels, plans: int) -> int:
    """Return what a workspace and so many plans hold on the GPU.

    A wrapper has 8 MiB for what is planned, and as much of the host, pinned; and one number a
    request. With `fa3` it has 64 MiB more for the place of each key, which later releases have no
    more (`BatchPrefillWithPagedKVCacheWrapper.__init__`, flashinfer/prefill.py, 0.5.3 and
    0.7.2.post1).
    """
    sparse = _SPARSE_BYTES if kernels == "fa3" else 0
    return _LEAST_WORKSPACE_BYTES + plans * (_PLAN_BYTES + sparse)


class Plan:
    """A wrapper of its own, planned for N new positions of every request.

    Under a CUDA graph the first plan of a wrapper fixes the largest N.
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
        kernels
            Which of FlashInfer's kernels run; left alone, the wrapper chooses by the device.
        shared
            The workspace.
        n, pages
            New positions N of each request, and the pages of its L + N.
        heads
            Query heads, key-value heads, head_dim and page size.
        dtype
            Of queries, keys and values.
        causal, window
            Which keys a query sees: up to its own, bottom-right, or all; and of these the last
            `window`, None for all of them.
        cuda_graph
            Whether what a captured graph reads lies in buffers of the caller.

        Raises
        ------
        EvidenceError
            The installed release plans no window.
        """
        ends = evenly(len(pages.last), n, pages.last.device)
        buffers: dict[str, Any] = {}
        if cuda_graph:
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf": torch.empty_like(ends),
                "paged_kv_indptr_buf": torch.empty_like(pages.indptr),
                "paged_kv_indices_buf": torch.empty_like(pages.indices),
                "paged_kv_last_page_len_buf": torch.empty_like(pages.last),
            }
        wrapper = load().BatchPrefillWithPagedKVCacheWrapper
        self._made = wrapper(shared, "NHD", backend=kernels, **buffers)
        seen = {} if window is None else _window(self._made.plan, window)
        dtypes = {"q_data_type": dtype, "kv_data_type": dtype}
        used = (pages.indptr, pages.indices, pages.last)
        self._made.plan(ends, *used, *heads, causal=causal, **seen, **dtypes)
        # By default consecutive launches overlap on compute capability 9.0.
        self._options = accepted(self._made.run, enable_pdl=False)

    def run(self, queries: Tensor, cache: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Return attention [batch * N, heads, head_dim], given as many queries.

        The cache is [pages, 2, page, kv_heads, head_dim], or keys and values apart.
        """
        out: Tensor = self._made.run(queries, cache, **self._options)
        return out


def _window(plan: Callable[..., Any], window: int) -> dict[str, Any]:
    found = accepted(plan, window_left=window - 1)
    if not found:
        raise EvidenceError(
            "the installed flashinfer plans no window",
            remedy="Take a release whose plan has `window_left`, or choose flash_attn",
        )
    return found
