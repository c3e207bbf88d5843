"""FlashAttention 3: N new queries over L cached and N new keys.

Its causal mask is aligned bottom-right; without it, each query sees all keys.

The adapter calls the operator `flash_attn_3::fwd` directly, as xformers 0.0.31 to 0.0.34 install
it: these are the prebuilt releases on PyPI, and those whose rules are read. (flash-attn's sdist has
the Python functions around the operator but not the kernels; vLLM's fork has other tiles.)
"""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from nearfree.backends.adapters.flash_kernel import FlashKernel, compute_capability
from nearfree.backends.adapters.flash_tiles import Tiling, flash_3_tiling
from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.records import checked_releases
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError


def load() -> Any:
    """Return the operator; EvidenceError if this xformers comes without it."""
    try:
        import_module("xformers.flash_attn_3._C")
    except ImportError as error:
        raise EvidenceError(
            "this installation of xformers has no FlashAttention 3",
            remedy=f"Install a wheel of xformers {checked_releases('flash_attn_3')}",
        ) from error
    return torch.ops.flash_attn_3.fwd


def refuse_other_capability(execution: ExecutionContext) -> None:
    """Raise EvidenceError unless the GPU has the compute capability 9.0."""
    if compute_capability(execution) // 10 != 9:
        raise EvidenceError(
            "FlashAttention 3 is measured on compute capability 9.0 alone",
            remedy="Choose flash_attn, or another platform",
        )


def attend(
    operator: Any,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    **lengths: Any,
) -> Tensor:
    """Return the attention that the operator computes.

    A query sees the last `window` keys up to its own, all of them if None. `lengths` are the
    arguments for the requests' lengths and pages.
    """
    window_options = (
        {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
    )
    out: Tensor = operator(queries, keys, values, is_causal=causal, **window_options, **lengths)[0]
    return out


class FlashAttn3(FlashKernel):
    """The operator, with the lengths and pages of a kvcache, varlen or dense call."""

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        refuse_other_capability(execution)
        super().__init__(setting, positions, execution)
        self._attend = partial(attend, load())

    def _lengths(self, n: int) -> dict[str, Any]:
        api = self._setting.api
        if api == "dense":
            return {}
        rows = {"cu_seqlens_q": self.query_ends[n], "max_seqlen_q": n} if api == "varlen" else {}
        if self.pages:
            return {**rows, "seqused_k": self.lengths[n], "page_table": self.pages[n].table}
        if api == "varlen":
            return {**rows, "cu_seqlens_k": self.key_ends[n], "max_seqlen_k": self.context + n}
        return {"seqused_k": self.lengths[n]}

    def _tiling(self, n: int) -> tuple[Tiling, str]:
        tiling = flash_3_tiling(self._setting, n, self.capacity(n), self._execution.sms)
        tile = f"{tiling.rows} x {tiling.keys}"
        suffix = "" if self._setting.api == "dense" else " on the device, not counted"
        return tiling, f"FlashAttention 3 on 9.0: tile of {tile}, splits{suffix}"
