"""Latent attention in torch on a CPU, over a cache of latents, and the indexer of sparse selection.

The form is absorbed: queries are projected into the latent space. All heads of a position share one
key, the latent followed by the rotated elements; the latent is also the value. So the heads become
the query rows of a single head.
"""

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.adapters.tensors import filled, share_read, torch_dtype, turns
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

    The whole key serves as value; of the output the latent elements are kept.

    Parameters
    ----------
    queries
        [b, N, heads, latent + rope_dim].
    cache
        [b, positions, latent + rope_dim].
    mask
        Additive mask [N * heads, positions]; None if every query sees every key.
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
    """Return `absorbed` attention in which each query attends to its own `positions`.

    `positions` is [b, N, selected], `mask` [N, positions of the cache].
    """
    batch, n, heads, width = queries.shape
    request = torch.arange(batch, device=cache.device)[:, None, None]
    keys = cache[request, positions].view(batch * n, 1, -1, width)
    if mask is not None:
        query_mask = mask.expand(batch, -1, -1).gather(-1, positions)
        mask = query_mask.view(batch * n, 1, 1, -1).expand(-1, -1, heads, -1)
    rows = queries.reshape(batch * n, 1, heads, width)
    out = functional.scaled_dot_product_attention(rows, keys, keys, attn_mask=mask, scale=scale)
    return out.view(batch, n, heads, width)[..., :latent]


def index_scores(queries: Tensor, keys: Tensor, weights: Tensor, mask: Tensor | None) -> Tensor:
    """Return the indexer's score of each position for each query, [b, N, positions], float32.

    The score is the weighted sum over heads of ReLU(query . key).
    Source: DeepseekV32Indexer of transformers 5.23.

    Parameters
    ----------
    queries, weights
        [b, N, heads, index_dim] and [b, N, heads].
    keys
        [b, positions, index_dim].
    mask
        Additive mask [N, positions]; None if every query sees every key.
    """
    batch, n, heads, width = queries.shape
    products = queries.reshape(batch, n * heads, width).float() @ keys.transpose(1, 2).float()
    head_scores = products.relu_().view(batch, n, heads, -1)
    scores = (weights.float().unsqueeze(-2) @ head_scores).squeeze(-2)
    return scores if mask is None else scores + mask


def top_positions(scores: Tensor, selected: int) -> Tensor | None:
    """Return the positions with the highest scores, [b, N, selected]; None if all are selected."""
    return None if scores.shape[-1] <= selected else scores.topk(selected, -1).indices


_UNSEEN = -1e38
SELECTED = 2048
"""Positions that an indexer selects: index_topk in DeepSeek V3.2's and GLM's published configs."""


class TorchMla:
    """Queries [b, N, heads, latent + rope_dim] over a cache [b, L + N, latent + rope_dim].

    If fewer positions are selected than exist, each query has its own random selection of the L
    cached ones, drawn once.
    """

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        """Allocate queries, caches and masks.

        Raises
        ------
        EvidenceError
            The setting asks for a GPU, for the naive form, or for more selected than cached
            positions.
        """
        if execution.device != "cpu" or not is_absorbed(setting):
            raise EvidenceError(
                "torch_sdpa runs latent attention on a CPU, in its absorbed form",
                remedy="Measure it there, or choose another backend",
            )
        self._setting, self._context = setting, setting.context or 0
        selecting = [n for n in positions if self._selects(n)]
        if selecting and (setting.selected or 0) > self._context:
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
            share_read(setting, positions),
        )
        self.cache = self._caches.cache
        queries = filled(execution, dtype, batch, max(positions), heads, width)
        self._queries = {n: queries[:, :n].contiguous() for n in positions}
        causal = is_causal(setting)
        masked = [n for n in positions if n > 1 and causal and n not in selecting]
        self._masks = {
            n: causal_mask(n, self._context, dtype).repeat_interleave(heads, 0) for n in masked
        }
        self._chosen = {n: self._drawn(n) for n in selecting}

    def _selects(self, n: int) -> bool:
        """Return whether queries of a forward over N attend to a selection of the positions."""
        limit = self._setting.selected
        return limit is not None and limit < self._context + n

    def _drawn(self, n: int) -> Tensor:
        """Return random cached positions for each of N queries, [b, N, selected]."""
        setting = self._setting
        scores = torch.rand(setting.batch, n, self._context)
        return scores.topk(setting.selected or 0, -1).indices

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request; return [b, N, heads, latent]."""
        cache, queries = self._caches.next()[:, : self._context + n], self._queries[n]
        if n in self._chosen:
            drawn_positions = self._chosen[n]
            return selected(queries, cache, drawn_positions, self._latent, self._scale, mask=None)
        return absorbed(queries, cache, self._latent, self._scale, self._masks.get(n))

    def work(self, n: int) -> ExecutedWork:
        """Return the work: masked keys are computed too, and values are as wide as keys."""
        setting = self._setting
        basis = "torch's CPU kernel: every key under the mask, values as wide as keys"
        width, _ = head_widths(setting)
        keys = setting.selected if self._selects(n) else self._context + n
        executed = 4 * width * setting.batch * n * (setting.heads or 0) * (keys or 0)
        return structs.replace(mla_work(setting, n, basis), flop_executed=executed)


class TorchIndexer:
    """Scores of keys [b, L + N, index_dim] for queries [b, N, heads, index_dim], in float32.

    Beyond SELECTED positions it selects those with the highest scores, unless `api` asks for the
    scores alone.
    """

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        """Allocate queries, weights of heads, keys and masks.

        Raises
        ------
        EvidenceError
            The setting asks for a GPU, for entries that span several positions, or for selection
            alone.
        """
        if execution.device != "cpu" or setting.span > 1 or setting.api == SELECT:
            raise EvidenceError(
                "torch_sdpa runs an indexer's scores on a CPU, one per position",
                remedy="Measure it there, or choose another backend",
            )
        self._setting, self._context = setting, setting.context or 0
        dtype, batch, heads = torch_dtype(setting), setting.batch, setting.heads or 0
        width, max_n = setting.head_dim or 0, max(positions)
        shape = batch, self._context + max_n, width
        self._keys = turns(
            execution,
            lambda _: filled(execution, dtype, *shape),
            share_read(setting, positions),
        )
        self.cache = self._keys.cache
        self._queries = filled(execution, dtype, batch, max_n, heads, width)
        self._weights = filled(execution, torch.float32, batch, max_n, heads)
        masked = [n for n in positions if n > 1 and is_causal(setting)]
        # Hidden keys score far below all others, but finitely: an output must be finite.
        self._masks = {n: causal_mask(n, self._context, dtype).clamp_(min=_UNSEEN) for n in masked}

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request.

        Return scores [b, N, L + N], or the selected positions [b, N, SELECTED].
        """
        keys, weights = self._keys.next()[:, : self._context + n], self._weights[:, :n]
        scores = index_scores(self._queries[:, :n], keys, weights, self._masks.get(n))
        positions = top_positions(scores, SELECTED) if self._setting.api is None else None
        return scores if positions is None else positions

    def work(self, n: int) -> ExecutedWork:
        """Return the work: masked keys are computed too."""
        setting, basis = self._setting, "two products in torch: every key under the mask"
        dot_products = setting.batch * n * (setting.heads or 0) * (self._context + n)
        executed = 2 * dot_products * (setting.head_dim or 0)
        return structs.replace(indexer_work(setting, n, basis), flop_executed=executed)
