"""FlashAttention 2: N new queries over L cached and N new keys.

Its causal mask is aligned bottom-right; without it, each query sees all keys.
"""

from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from nearfree.backends.adapters.flash_kernel import FlashKernel, compute_capability
from nearfree.backends.adapters.flash_tiles import Tiling, flash_2_tiling
from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError

FUNCTIONS = {
    "kvcache": "flash_attn_with_kvcache",
    "varlen": "flash_attn_varlen_func",
    "dense": "flash_attn_func",
}
_PAGE_MULTIPLE = 256


def load() -> Any:
    """Return the module that has the three functions."""
    return import_module("flash_attn.flash_attn_interface")


def attend(
    function: Any,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    **lengths: Any,
) -> Tensor:
    """Return the attention that one of the three functions computes.

    A query sees the last `window` keys up to its own, all of them if None. `lengths` are the
    arguments for the requests' lengths and pages.
    """
    window_options = {} if window is None else {"window_size": (window - 1, 0)}
    out: Tensor = function(queries, keys, values, causal=causal, **window_options, **lengths)
    return out


class FlashAttn(FlashKernel):
    """One of the three functions, named by the setting's `api`."""

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        if (setting.page_size or 0) % _PAGE_MULTIPLE:
            raise EvidenceError(
                f"FlashAttention 2 has no pages of {setting.page_size} positions",
                remedy=f"Choose a multiple of {_PAGE_MULTIPLE} as `page_size`, or leave it out",
            )
        super().__init__(setting, positions, execution)
        self._sm = compute_capability(execution)
        self._attend = partial(attend, getattr(load(), FUNCTIONS[setting.api or ""]))

    def _lengths(self, n: int) -> dict[str, Any]:
        paged = {"block_table": self.pages[n].table} if self.pages else {}
        if self._setting.api == "kvcache":
            return {"cache_seqlens": self.lengths[n], **paged}
        if self._setting.api == "varlen":
            return {
                "cu_seqlens_q": self.query_ends[n],
                "cu_seqlens_k": self.key_ends[n],
                "max_seqlen_q": n,
                "max_seqlen_k": self.context + n,
                **paged,
            }
        return {}

    def _tiling(self, n: int) -> tuple[Tiling, str]:
        sms = self._execution.sms
        tiling = flash_2_tiling(self._setting, n, self.capacity(n), sms, self._sm)
        tile = f"{tiling.rows} x {tiling.keys}"
        return tiling, f"FlashAttention 2.8: tile of {tile}, {tiling.splits} splits"
