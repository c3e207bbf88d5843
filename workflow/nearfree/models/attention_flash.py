"""A decoder's attention in FlashAttention 2 and 3: their cache call over the whole cache.

The new keys lie in the cache already: it is L + N long in each request, and nothing is appended.
"""

from torch import Tensor

from nearfree.backends.adapters import flash_attn, flash_attn_3
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.paged import alike
from nearfree.models.attention_mask import AttentionMask


class _Cached:
    """How long the cache of each request is, by N."""

    positions_first, page_size = True, 1

    def __init__(self, attention_mask: AttentionMask) -> None:
        self.attention_mask = attention_mask
        self._lengths: dict[int, Tensor] = {}

    def _length(self, queries: Tensor) -> Tensor:
        batch, _, n, _ = queries.shape
        if n not in self._lengths:
            self._lengths[n] = alike(batch, self.attention_mask.context + n, queries.device)
        return self._lengths[n]


class Flash2(_Cached):
    """FlashAttention 2."""

    def __init__(self, attention_mask: AttentionMask, execution: ExecutionContext) -> None:  # noqa: ARG002 (one signature for all)
        super().__init__(attention_mask)
        self._function = getattr(flash_attn.load(), flash_attn.FUNCTIONS["kvcache"])

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        return flash_attn.attend(
            self._function,
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            causal=self.attention_mask.causal,
            window=self.attention_mask.window,
            cache_seqlens=self._length(queries),
        )


class Flash3(_Cached):
    """FlashAttention 3."""

    def __init__(self, attention_mask: AttentionMask, execution: ExecutionContext) -> None:
        flash_attn_3.refuse_other_capability(execution)
        super().__init__(attention_mask)
        self._operator = flash_attn_3.load()

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        return flash_attn_3.attend(
            self._operator,
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            causal=self.attention_mask.causal,
            window=self.attention_mask.window,
            seqused_k=self._length(queries),
        )
