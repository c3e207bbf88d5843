"""Which keys N new positions see over a context of L, and attention over these."""

import torch
from torch import Tensor

from nearfree.errors import EvidenceError
from nearfree.kernels.torch_sdpa import causal_mask, flash, sdpa
from nearfree.settings import Mask


class Sight:
    """Attention of new positions from L on, under one mask.

    A window hides keys that lie further back than it reaches; those that no position sees are not
    read.
    """

    def __init__(
        self, mask: Mask, context: int, window: int | None, dtype: torch.dtype, device: str
    ) -> None:
        if device == "cuda" and dtype not in (torch.bfloat16, torch.float16):
            raise EvidenceError(
                f"FlashAttention in torch does not run in {dtype}",
                remedy="Choose bfloat16 or float16",
            )
        if window is not None and mask == "block":
            raise EvidenceError(
                "a block of positions that see each other is not run with a window",
                remedy="Choose the causal mask, or a model without a window",
            )
        self._causal, self._dtype, self._device = mask == "causal", dtype, device
        self.context = context
        self._first = 0 if window is None else max(0, context + 1 - window)
        self._window = window
        self._masks: dict[int, Tensor | None] = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim].

        Parameters
        ----------
        queries
            [b, heads, N, head_dim].
        keys, values
            The cache, [b, kv_heads, L + N or more, head_dim].
        """
        n = queries.shape[2]
        seen = slice(self._first, self.context + n)
        keys, values = keys[:, :, seen], values[:, :, seen]
        if self._device == "cuda":
            return flash(
                queries.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                causal=self._causal,
                window=self._window,
            )
        return sdpa(queries, keys, values, self._mask(n)).transpose(1, 2)

    def _mask(self, n: int) -> Tensor | None:
        """Return the mask of N positions, made the first time; None where all see all."""
        if not self._causal or n == 1:
            return None
        if n not in self._masks:
            before = self.context - self._first
            self._masks[n] = causal_mask(n, before, self._dtype, window=self._window)
        return self._masks[n]
