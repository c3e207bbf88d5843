"""FlashInfer's paged prefill: N new queries over L cached and N new keys, causal, bottom-right.

`run` is what is timed. `plan`, which settles the tiles and the splits on the host, is called once
for each N when the adapter is made. What a release takes is asked of its signatures.
"""

import inspect
import os
import sysconfig
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from nearfree.events.types import ExecutedWork
from nearfree.kernels import Place
from nearfree.kernels.paged import Pages, evenly, pages_of
from nearfree.kernels.tensors import Turns, filled, torch_dtype
from nearfree.settings import Setting
from nearfree.work import attention_work

PAGE_SIZE = 16
_LEAST_WORKSPACE = 512 * 2**20


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


def fa2_rows(setting: Setting, n: int) -> int:
    """Return the tile of fa2: it follows a request's rows, all heads of a key-value head packed.

    A plan for a CUDA graph takes the longest request that all rows together allow, one row for
    each of the others (`PrefillSplitQOKVIndptr`, scheduler.cuh; `FA2DetermineCtaTileQ`, utils.cuh).
    """
    head_dim, group = setting.head_dim or 0, (setting.heads or 0) // (setting.kv_heads or 1)
    longest = setting.batch * (n - 1) + 1 if setting.cuda_graph else n
    packed = longest * group
    if packed > 64 and head_dim < 256:
        return 128
    return 64 if packed > 16 else 16


def fa3_rows(head_dim: int) -> int:
    """Return the tile of fa3, which packs no heads (`PrefillSM90Plan`, scheduler.cuh)."""
    return 192 if head_dim == 64 else 128


def workspace_bytes(setting: Setting, most: int) -> int:
    """Return what a plan may ask for: under a CUDA graph it splits the keys of every tile.

    Each packed row of a tile of 128 then has partial outputs and a sum for all heads, in float32
    (`PrefillPlan`, scheduler.cuh).
    """
    heads, batch = setting.heads or 0, setting.batch
    packed = batch * most * heads // (setting.kv_heads or 1)
    rows = 128 * (-(-packed // 128) + batch - 1) if setting.cuda_graph else 0
    return _LEAST_WORKSPACE + 4 * rows * heads * ((setting.head_dim or 0) + 1)


class PagedInputs:
    """Queries, a paged cache [pages, 2, page, kv_heads, head_dim], and the pages of each N.

    One workspace serves the wrappers of all N, which never run at the same time.
    """

    def __init__(self, setting: Setting, positions: tuple[int, ...], place: Place) -> None:
        dtype, batch, most = torch_dtype(setting), setting.batch, max(positions)
        context, head_dim = setting.context or 0, setting.head_dim or 0
        self.page_size = setting.page_size or PAGE_SIZE
        owned = pages_of(context + most, self.page_size)
        shape = (batch * owned, 2, self.page_size, setting.kv_heads or 0, head_dim)
        self.caches = Turns([filled(place, dtype, *shape) for _ in range(place.copies)], place)
        rows = filled(place, dtype, batch * most, setting.heads or 0, head_dim)
        self.queries = {n: rows[: batch * n] for n in positions}
        self.pages = {
            n: Pages(batch, context + n, self.page_size, owned, place.device) for n in positions
        }
        size = workspace_bytes(setting, most)
        key = ("flashinfer", size)
        if key not in place.shared:  # settings never run at the same time either
            place.shared[key] = torch.zeros(size, dtype=torch.uint8, device=place.device)
        self.workspace = place.shared[key]
        self.heads = (setting.heads or 0, setting.kv_heads or 0, head_dim, self.page_size)
        """What every `plan` takes after the pages, in this order in all releases."""
        self.dtypes = {"q_data_type": dtype, "kv_data_type": dtype}


class _Prefill:
    """One wrapper for each N: under a CUDA graph the first plan fixes the largest N."""

    _backend: ClassVar[Literal["fa2", "fa3"]]

    def __init__(self, setting: Setting, positions: tuple[int, ...], place: Place) -> None:
        self._setting, self._place = setting, place
        self._inputs = PagedInputs(setting, positions, place)
        self.cache = self._inputs.caches.cache
        wrapper = load().BatchPrefillWithPagedKVCacheWrapper
        self._wrappers = {n: self._planned(wrapper, n) for n in positions}
        # By default consecutive launches overlap on compute capability 9.0.
        self._options = accepted(self._wrappers[positions[0]].run, enable_pdl=False)

    def _planned(self, wrapper: Any, n: int) -> Any:
        given, pages = self._inputs, self._inputs.pages[n]
        ends = evenly(self._setting.batch, n, self._place.device)
        buffers: dict[str, Any] = {}
        if self._setting.cuda_graph:
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf": torch.empty_like(ends),
                "paged_kv_indptr_buf": torch.empty_like(pages.indptr),
                "paged_kv_indices_buf": torch.empty_like(pages.indices),
                "paged_kv_last_page_len_buf": torch.empty_like(pages.last),
            }
        made = wrapper(given.workspace, "NHD", backend=self._backend, **buffers)
        pages_used = (pages.indptr, pages.indices, pages.last)
        made.plan(ends, *pages_used, *given.heads, causal=True, **given.dtypes)
        return made

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request, [batch * N, heads, head_dim]."""
        given = self._inputs
        out: Tensor = self._wrappers[n].run(given.queries[n], given.caches.next(), **self._options)
        return out


class FlashInferFa2(_Prefill):
    """The kernels of `fa2`: query heads of a key-value head are packed into one row axis."""

    _backend = "fa2"

    def work(self, n: int) -> ExecutedWork:
        """Return the work in tiles of 16, 64 or 128 packed rows."""
        heads, kv_heads, *_ = self._inputs.heads
        return attention_work(
            self._setting,
            n,
            "FlashInfer fa2: 16, 64 or 128 packed rows, key tile and splits not counted",
            tile_rows=fa2_rows(self._setting, n),
            group=heads // kv_heads,
            sms=self._place.sms,
        )


class FlashInferFa3(_Prefill):
    """The kernels of `fa3`, for compute capability 9.0: one tile for a head size."""

    _backend = "fa3"

    def work(self, n: int) -> ExecutedWork:
        """Return the work in tiles of 128 rows, or 192 at a head size of 64."""
        return attention_work(
            self._setting,
            n,
            "FlashInfer fa3: 128 rows, 192 at head_dim 64, key tile not counted",
            tile_rows=fa3_rows(self._setting.head_dim or 0),
            sms=self._place.sms,
        )
