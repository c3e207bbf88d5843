"""FlashAttention 3: N new queries over L cached and N new keys.

Its causal mask is aligned bottom-right; without it, each query sees all keys.

The operator `flash_attn_3::fwd` is called itself, as xformers 0.0.31 to 0.0.34 install it: they
are what an index offers ready to run, and the releases whose rules are read. (flash-attn's sdist
holds the Python functions around it but not the kernels; vLLM's fork has tiles of its own.)
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from nearfree.backends.adapters.flash_inputs import FlashInputs, compute_capability
from nearfree.backends.adapters.flash_tiles import flash_3_tiling
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.records import checked
from nearfree.core.modules.attention import attention_work, is_causal
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError


def load() -> Any:
    """Return the operator; EvidenceError if this xformers comes without it."""
    try:
        import_module("xformers.flash_attn_3._C")
    except ImportError as error:
        raise EvidenceError(
            "this installation of xformers has no FlashAttention 3",
            remedy=f"Install a wheel of xformers {checked('flash_attn_3')}",
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
    """Return what the operator makes of queries, keys and values.

    A query sees the last `window` keys up to its own, all of them if None; `lengths` say how long
    requests are and where their pages are.
    """
    seen = {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
    out: Tensor = operator(queries, keys, values, is_causal=causal, **seen, **lengths)[0]
    return out


class FlashAttn3:
    """The operator, given those lengths and pages that make it a kvcache, varlen or dense call."""

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        refuse_other_capability(execution)
        self._setting, self._execution = setting, execution
        self._inputs = FlashInputs(setting, positions, execution)
        self.cache = self._inputs.cache
        self._function = load()
        self._arguments = {n: self._lengths(n) for n in positions}

    def _lengths(self, n: int) -> dict[str, Any]:
        """Return what tells a call how long requests are, and where their pages are."""
        given, api = self._inputs, self._setting.api
        if api == "dense":
            return {}
        rows = {"cu_seqlens_q": given.query_ends[n], "max_seqlen_q": n} if api == "varlen" else {}
        if given.pages:
            return {**rows, "seqused_k": given.lengths[n], "page_table": given.pages[n].table}
        if api == "varlen":
            ends, longest = given.key_ends[n], given.context + n
            return {**rows, "cu_seqlens_k": ends, "max_seqlen_k": longest}
        return {"seqused_k": given.lengths[n]}

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
        tiling = flash_3_tiling(self._setting, n, self._inputs.capacity(n), self._execution.sms)
        counted = "" if self._setting.api == "dense" else " on the device, not counted"
        return attention_work(
            self._setting,
            n,
            f"FlashAttention 3 on 9.0: tile of {tiling.rows} x {tiling.keys}, splits{counted}",
            tile_rows=tiling.rows,
            tile_keys=tiling.keys,
            group=tiling.group,
            splits=tiling.splits,
            sms=self._execution.sms,
        )
