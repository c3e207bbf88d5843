"""Attention in torch: N new queries over L cached and N new keys, causal or in a block.

On a CPU SDPA dispatches to its flash kernel. Its `is_causal` aligns the mask top-left when query
and key lengths differ, so the adapter passes an explicit mask; a block needs none. On a GPU the
adapter calls the FlashAttention op directly, whose causal mask is aligned bottom-right.
"""

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.adapters.tensors import filled, share_read, torch_dtype, turns
from nearfree.core.modules.attention import attention_work, is_causal
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork

_CUDA_TILE, _CUDA_KEYS = 64, 128


def cpu_tile(n: int) -> int:
    """Return the query split of torch's CPU flash kernel: ATen/native/cpu/FlashAttentionKernel."""
    return 256 if n >= 768 else 64 if n >= 192 else 32


def causal_mask(
    n: int,
    context: int,
    dtype: torch.dtype,
    *,
    window: int | None = None,
    chunk: int | None = None,
    device: str = "cpu",
) -> Tensor:
    """Return the additive mask [N, L + N]: query i sees the L cached keys and i + 1 new ones.

    With a window it sees only the last `window` of these, with a chunk only those from the last
    multiple of `chunk` on.
    """
    ones = torch.ones(n, context + n, dtype=torch.bool, device=device)
    hidden = ones.triu(context + 1)
    if window is not None:
        hidden |= ones.tril(context - window)
    if chunk is not None:
        keys = torch.arange(context + n, device=device)
        hidden |= keys < (keys[context:, None] // chunk * chunk)
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, float("-inf"))


def sdpa(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Return attention [b, heads, N, head_dim] over keys and values [b, kv_heads, ..., head_dim].

    Every query sees every key where `mask` is None.
    """
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, enable_gqa=queries.shape[1] != keys.shape[1]
    )


def with_sinks(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, sinks: Tensor
) -> Tensor:
    """Return `sdpa` with attention sinks: each head has a logit, [heads], without a key.

    Each output is scaled by the share of the keys in the softmax's sum, sink included.
    """
    out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        queries, keys, values, attn_mask=mask
    )
    key_share = (log_sums - sinks.float().unsqueeze(-1)).sigmoid().to(out.dtype)
    return torch.mul(out, key_share.unsqueeze(-1))


def capped(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, cap: float
) -> Tensor:
    """Return `sdpa` with soft-capped logits: cap * tanh(logit / cap)."""
    batch, heads, n, width = queries.shape
    groups = (batch, keys.shape[1], -1)
    logits = queries.reshape(*groups, width) @ keys.transpose(2, 3) * (width**-0.5 / cap)
    logits = logits.tanh_().mul_(cap).view(batch, heads, n, -1)
    if mask is not None:
        logits += mask
    probabilities = logits.softmax(-1, dtype=torch.float32).to(values.dtype)
    return (probabilities.view(*groups, probabilities.shape[-1]) @ values).view(batch, heads, n, -1)


def flash(
    queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool, window: int | None = None
) -> Tensor:
    """Return attention [b, N, heads, head_dim] on a GPU; keys are [b, ..., kv_heads, head_dim].

    The causal mask is aligned bottom-right; a window ends at each query's own position.
    """
    out: Tensor = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 (its name)
        queries,
        keys,
        values,
        None,
        None,
        queries.shape[1],
        keys.shape[1],
        0.0,
        causal,
        False,  # noqa: FBT003 (return_debug_mask: the op's arguments are positional)
        **({} if window is None else {"window_size_left": window - 1}),
    )[0]
    return out


class TorchSdpa:
    """Queries [b, heads, N, head_dim], keys and values [b, kv_heads, L + N, head_dim]."""

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        self._setting = setting
        self._execution = execution
        dtype = torch_dtype(setting)
        batch, heads, max_n = setting.batch, setting.heads or 0, max(positions)
        self._context, head_dim = setting.context or 0, setting.head_dim or 0
        shape = (batch, setting.kv_heads or 0, self._context + max_n, head_dim)
        if execution.device == "cuda":  # the op takes [b, positions, heads, head_dim]
            shape = (shape[0], shape[2], shape[1], shape[3])
        self._keys = turns(
            execution,
            lambda _: (filled(execution, dtype, *shape), filled(execution, dtype, *shape)),
            share_read(setting, positions),
        )
        self.cache = self._keys.cache
        queries = filled(execution, dtype, batch, max_n, heads, head_dim)
        self._queries = {n: self._query(queries[:, :n]) for n in positions}
        masked = positions if execution.device == "cpu" and is_causal(setting) else ()
        self._masks = {n: causal_mask(n, self._context, dtype) for n in masked if n > 1}

    def _query(self, queries: Tensor) -> Tensor:
        ordered = queries if self._execution.device == "cuda" else queries.transpose(1, 2)
        return ordered.contiguous()

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request."""
        keys, values = self._keys.next()
        length = self._context + n
        if self._execution.device == "cuda":
            return flash(
                self._queries[n],
                keys[:, :length],
                values[:, :length],
                causal=is_causal(self._setting),
            )
        return sdpa(
            self._queries[n], keys[:, :, :length], values[:, :, :length], self._masks.get(n)
        )

    def work(self, n: int) -> ExecutedWork:
        """Return the work; the CPU kernel pads no rows and computes masked keys, too."""
        if self._execution.device == "cuda":
            return attention_work(
                self._setting,
                n,
                "FlashAttention in torch: split-KV tile of 64 x 128, splits not counted",
                tile_rows=_CUDA_TILE,
                tile_keys=_CUDA_KEYS,
                sms=self._execution.sms,
            )
        return attention_work(
            self._setting,
            n,
            "torch's CPU kernel: query split of 32, 64 or 256, every key under the mask",
            tile_rows=cpu_tile(n),
            padded=False,
            causal_skip=False,
        )
