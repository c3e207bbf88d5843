"""Latent attention in torch on a CPU, over a cache of latents, and the indexer of sparse selection.

Queries are taken into the space of the latent: all heads of a position share one key of latent and
rotated elements, whose first ones are the value, and are the query rows of one head.
"""

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import filled, share_seen, torch_dtype, turns
from nearfree.backends.adapters.torch_sdpa import causal_mask
from nearfree.core.modules.attention import is_causal
from nearfree.core.modules.indexer import SELECT, indexer_work
from nearfree.core.modules.mla import head_widths, is_absorbed, mla_work
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError


def absorbed(
    queries: Tensor, cache: Tensor, latent: int, scale: float, mask: Tensor | None
) -> Tensor:
    """Return attention [b, N, heads, latent] over a cache of latents, by torch's SDPA.

    The whole key stands for the value, of which the latent is kept.

    Parameters
    ----------
    queries
        [b, N, heads, latent + rope_dim].
    cache
        [b, positions, latent + rope_dim].
    latent
        Elements of a latent.
    scale
        What logits are multiplied by.
    mask
        What is added to logits, [N * heads, positions]; None where all see all.
    """
    batch, n, heads, width = queries.shape
    rows, keys = queries.reshape(batch, 1, n * heads, width), cache.unsqueeze(1)
    out = functional.scaled_dot_product_attention(rows, keys, keys, attn_mask=mask, scale=scale)
    return out.view(batch, n, heads, width)[..., :latent]


def selected(
    queries: Tensor,
    cache: Tensor,
    positions: Tensor,
    latent: int,
    scale: float,
    *,
    mask: Tensor | None,
) -> Tensor:
    """Return the same, where each query attends to positions of its own, [b, N, selected].

    `mask` is [N, positions of the cache].
    """
    batch, n, heads, width = queries.shape
    request = torch.arange(batch, device=cache.device)[:, None, None]
    keys = cache[request, positions].view(batch * n, 1, -1, width)
    if mask is not None:
        of_query = mask.expand(batch, -1, -1).gather(-1, positions)
        mask = of_query.view(batch * n, 1, 1, -1).expand(-1, -1, heads, -1)
    rows = queries.reshape(batch * n, 1, heads, width)
    out = functional.scaled_dot_product_attention(rows, keys, keys, attn_mask=mask, scale=scale)
    return out.view(batch, n, heads, width)[..., :latent]


def index_scores(queries: Tensor, keys: Tensor, weights: Tensor, mask: Tensor | None) -> Tensor:
    """Return how near each position is to each query, [b, N, positions], float32.

    It is the sum over heads of what is positive of their products, each with its weight.
    Source: DeepseekV32Indexer of transformers 5.23.

    Parameters
    ----------
    queries, weights
        [b, N, heads, index_dim] and [b, N, heads].
    keys
        [b, positions, index_dim].
    mask
        What is added, [N, positions]; None where all see all.
    """
    batch, n, heads, width = queries.shape
    products = queries.reshape(batch, n * heads, width).float() @ keys.transpose(1, 2).float()
    near = products.relu_().view(batch, n, heads, -1)
    scores = (weights.float().unsqueeze(-2) @ near).squeeze(-2)
    return scores if mask is None else scores + mask


def chosen(scores: Tensor, selected: int) -> Tensor | None:
    """Return the positions with the highest scores, [b, N, selected]; None where all are."""
    return None if scores.shape[-1] <= selected else scores.topk(selected, -1).indices


_UNSEEN = -1e38
SELECTED = 2048
"""Positions that an indexer chooses: index_topk of DeepSeek V3.2's and GLM's published files."""


class TorchMla:
    """Queries [b, N, heads, latent + rope_dim] over a cache [b, L + N, latent + rope_dim].

    Where fewer positions are selected than there are, each query has its own of the L cached ones,
    drawn once.
    """

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        """Allocate queries, caches and masks.

        Raises
        ------
        EvidenceError
            It is to run on a GPU, in the naive form, or to select new positions among others.
        """
        if execution.device != "cpu" or not is_absorbed(setting):
            raise EvidenceError(
                "torch_sdpa runs latent attention on a CPU, in its absorbed form",
                remedy="Measure it there, or choose another backend",
            )
        self._setting, self._context = setting, setting.context or 0
        choosing = [n for n in positions if self._selects(n)]
        if choosing and (setting.selected or 0) > self._context:
            raise EvidenceError(
                f"{setting.selected} positions cannot be selected of {self._context} cached ones",
                remedy="Choose a longer context, or fewer positions",
            )
        dtype, batch, heads = torch_dtype(setting), setting.batch, setting.heads or 0
        width, self._latent = head_widths(setting)
        self._scale = ((setting.nope_dim or 0) + (setting.rope_dim or 0)) ** -0.5
        length = self._context + max(positions)
        self._caches = turns(
            execution,
            lambda _: filled(execution, dtype, batch, length, width),
            share_seen(setting, positions),
        )
        self.cache = self._caches.cache
        queries = filled(execution, dtype, batch, max(positions), heads, width)
        self._queries = {n: queries[:, :n].contiguous() for n in positions}
        seeing = is_causal(setting)
        masked = [n for n in positions if n > 1 and seeing and n not in choosing]
        self._masks = {
            n: causal_mask(n, self._context, dtype).repeat_interleave(heads, 0) for n in masked
        }
        self._chosen = {n: self._drawn(n) for n in choosing}

    def _selects(self, n: int) -> bool:
        """Return whether a query of N attends to fewer positions than it sees."""
        selected_of = self._setting.selected
        return selected_of is not None and selected_of < self._context + n

    def _drawn(self, n: int) -> Tensor:
        """Return the positions of each of N queries, [b, N, selected]."""
        setting = self._setting
        scores = torch.rand(setting.batch, n, self._context)
        return scores.topk(setting.selected or 0, -1).indices

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request, [b, N, heads, latent] out."""
        cache, queries = self._caches.next()[:, : self._context + n], self._queries[n]
        if n in self._chosen:
            chosen_of = self._chosen[n]
            return selected(queries, cache, chosen_of, self._latent, self._scale, mask=None)
        return absorbed(queries, cache, self._latent, self._scale, self._masks.get(n))

    def work(self, n: int) -> ExecutedWork:
        """Return the work: every key under the mask, and the whole key for the value."""
        setting = self._setting
        basis = "torch's CPU kernel: every key under the mask, values as wide as keys"
        width, _ = head_widths(setting)
        seen = setting.selected if self._selects(n) else self._context + n
        executed = 4 * width * setting.batch * n * (setting.heads or 0) * (seen or 0)
        return structs.replace(mla_work(setting, n, basis), flop_executed=executed)


class TorchIndexer:
    """Numbers of queries [b, N, heads, index_dim] and keys [b, L + N, index_dim], in float32.

    Of more positions than SELECTED the largest are chosen, unless `api` asks for numbers alone.
    """

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        """Allocate queries, weights of heads, keys and masks.

        Raises
        ------
        EvidenceError
            It is to run on a GPU, over entries of several positions, or to select alone.
        """
        if execution.device != "cpu" or setting.span > 1 or setting.api == SELECT:
            raise EvidenceError(
                "torch_sdpa runs an indexer's numbers on a CPU, one a position",
                remedy="Measure it there, or choose another backend",
            )
        self._setting, self._context = setting, setting.context or 0
        dtype, batch, heads = torch_dtype(setting), setting.batch, setting.heads or 0
        width, most = setting.head_dim or 0, max(positions)
        shape = batch, self._context + most, width
        self._keys = turns(
            execution,
            lambda _: filled(execution, dtype, *shape),
            share_seen(setting, positions),
        )
        self.cache = self._keys.cache
        self._queries = filled(execution, dtype, batch, most, heads, width)
        self._weights = filled(execution, torch.float32, batch, most, heads)
        masked = [n for n in positions if n > 1 and is_causal(setting)]
        # What a position does not see is far below all else, and finite, as an output must be.
        self._masks = {n: causal_mask(n, self._context, dtype).clamp_(min=_UNSEEN) for n in masked}

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request.

        Out come numbers, [b, N, L + N], or the positions that were chosen, [b, N, SELECTED].
        """
        keys, weights = self._keys.next()[:, : self._context + n], self._weights[:, :n]
        scores = index_scores(self._queries[:, :n], keys, weights, self._masks.get(n))
        found = chosen(scores, SELECTED) if self._setting.api is None else None
        return scores if found is None else found

    def work(self, n: int) -> ExecutedWork:
        """Return the work: every key under the mask."""
        setting, basis = self._setting, "two products in torch: every key under the mask"
        products = setting.batch * n * (setting.heads or 0) * (self._context + n)
        executed = 2 * products * (setting.head_dim or 0)
        return structs.replace(indexer_work(setting, n, basis), flop_executed=executed)
