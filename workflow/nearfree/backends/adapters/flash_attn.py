"""FlashAttention 2: N new queries over L cached and N new keys.

Its causal mask is aligned bottom-right; without it, each query sees all keys.
"""

from importlib import import_module
from typing import Any

from torch import Tensor

from nearfree.backends.adapters.flash_inputs import FlashInputs, compute_capability
from nearfree.backends.adapters.flash_tiles import flash_2_tiling
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.core.modules.attention import attention_work, is_causal
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
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
    """Return what one of the three functions makes of queries, keys and values.

    A query sees the last `window` keys up to its own, all of them if None; `lengths` say how long
    requests are and where their pages are.
    """
    seen = {} if window is None else {"window_size": (window - 1, 0)}
    out: Tensor = function(queries, keys, values, causal=causal, **seen, **lengths)
    return out


class FlashAttn:
    """One of the three functions, named by the setting's `api`; the new keys are in the cache."""

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        if (setting.page_size or 0) % _PAGE_MULTIPLE:
            raise EvidenceError(
                f"FlashAttention 2 has no pages of {setting.page_size} positions",
                remedy=f"Choose a multiple of {_PAGE_MULTIPLE} as `page_size`, or leave it out",
            )
        self._setting, self._execution = setting, execution
        self._inputs = FlashInputs(setting, positions, execution)
        self._sm = compute_capability(execution)
        self.cache = self._inputs.cache
        self._function = getattr(load(), FUNCTIONS[setting.api or ""])
        self._arguments = {n: self._lengths(n) for n in positions}

    def _lengths(self, n: int) -> dict[str, Any]:
        """Return what tells a call how long requests are, and where their pages are."""
        given, api = self._inputs, self._setting.api
        paged = {"block_table": given.pages[n].table} if given.pages else {}
        if api == "kvcache":
            return {"cache_seqlens": given.lengths[n], **paged}
        if api == "varlen":
            return {
                "cu_seqlens_q": given.query_ends[n],
                "cu_seqlens_k": given.key_ends[n],
                "max_seqlen_q": n,
                "max_seqlen_k": given.context + n,
                **paged,
            }
        return {}

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request."""
        keys, values = self._inputs.keys_and_values(n)
        return attend(
            self._function,
            self._inputs.queries[n],
            keys,
            values,
            causal=is_causal(self._setting),
            **self._arguments[n],
        )

    def work(self, n: int) -> ExecutedWork:
        """Return the work in the tiles of the kernel that the call leads to."""
        capacity = self._inputs.capacity(n)
        tiling = flash_2_tiling(self._setting, n, capacity, self._execution.sms, self._sm)
        return attention_work(
            self._setting,
            n,
            f"FlashAttention 2.8: tile of {tiling.rows} x {tiling.keys}, {tiling.splits} splits",
            tile_rows=tiling.rows,
            tile_keys=tiling.keys,
            group=tiling.group,
            splits=tiling.splits,
            sms=self._execution.sms,
        )
