"""A decoder's attention in torch: SDPA under a mask on CPUs, the FlashAttention op on GPUs.

Keys before those that a window lets any position see are not read.
"""

from torch import Tensor

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.torch_sdpa import causal_mask, flash, sdpa
from nearfree.models.attention_mask import AttentionMask


class Sdpa:
    """SDPA, given a mask for each N."""

    positions_first, page_size = False, 1

    def __init__(self, attention_mask: AttentionMask) -> None:
        self.attention_mask = attention_mask
        self._masks: dict[int, Tensor] = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        n = queries.shape[2]
        seen = slice(self.attention_mask.first, self.attention_mask.context + n)
        out = sdpa(queries, keys[:, :, seen], values[:, :, seen], self._mask(n, queries))
        return out.transpose(1, 2)

    def _mask(self, n: int, queries: Tensor) -> Tensor | None:
        """Return the mask of N positions; None where all see all."""
        if not self.attention_mask.causal or n == 1:
            return None
        if n not in self._masks:
            before = self.attention_mask.context - self.attention_mask.first
            self._masks[n] = causal_mask(
                n, before, queries.dtype, window=self.attention_mask.window
            )
        return self._masks[n]


class Flash:
    """The FlashAttention op, which knows the mask and the window."""

    positions_first, page_size = True, 1

    def __init__(self, attention_mask: AttentionMask) -> None:
        self.attention_mask = attention_mask

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        seen = slice(self.attention_mask.first, self.attention_mask.context + queries.shape[2])
        return flash(
            queries.transpose(1, 2),
            keys.transpose(1, 2)[:, seen],
            values.transpose(1, 2)[:, seen],
            causal=self.attention_mask.causal,
            window=self.attention_mask.window,
        )


def torch_attention(attention_mask: AttentionMask, execution: ExecutionContext) -> Flash | Sdpa:
    """Return what runs attention in torch on a device."""
    return Flash(attention_mask) if execution.device == "cuda" else Sdpa(attention_mask)
