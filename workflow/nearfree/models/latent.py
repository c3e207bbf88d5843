"""Latent attention (MLA) of a decoder's layer, over a cache of latents, and its indexer.

Source: DeepseekV3Attention and DeepseekV32Indexer of transformers 5.23, which widen the latents to
keys and values; the absorbed form computes the same (DeepSeek-V2, arXiv 2405.04434, sec. 2.1.2).
"""

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.torch_mla import absorbed, index_scores, selected, top_positions
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.attention_uses import (
    ABSORB,
    INDEX_KEY,
    INDEX_QUERY,
    INDEXER,
    LATENT,
    LATENTS,
    OUTPUT,
    QUERY,
    RELEASE,
)
from nearfree.decoders.details import Details
from nearfree.decoders.modules import BETWEEN, Laps
from nearfree.models.attention import AttentionMask
from nearfree.models.layers import Cache, Norm, Places, RandomWeights
from nearfree.models.rotation import rotate

_EPS = 1e-6
"""Of the norms of latents and of an indexer's keys, whatever a file says of others."""


class LatentRunner:
    """Attention of N new positions over a cache of latents, in torch on a CPU."""

    positions_first, page_size = False, 1

    def __init__(self, attention_mask: AttentionMask, kind: Latent, scale: float) -> None:
        self.attention_mask = attention_mask
        self._heads, self._latent, self._scale = kind.heads, kind.latent, scale
        self._masks: dict[int, tuple[Tensor, Tensor] | None] = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, latent] over all positions; values are part of keys."""
        del values
        return self.attend_to(queries.transpose(1, 2), keys, None)

    def attend_to(self, queries: Tensor, keys: Tensor, positions: Tensor | None) -> Tensor:
        """Return attention over the positions of each query, [b, N, selected], None for all.

        Parameters
        ----------
        queries
            [b, N, heads, latent + rope_dim].
        keys
            The cache, [b, 1, L + N or more, latent + rope_dim].
        positions
            Those that an indexer chose, of which none that a query does not see counts.
        """
        n = queries.shape[1]
        cache = keys[:, 0, : self.attention_mask.context + n]
        masks = self._of(n, queries)
        if positions is None:
            mask = masks and masks[1]
            return absorbed(queries, cache, self._latent, self._scale, mask)
        mask = masks and masks[0]
        return selected(queries, cache, positions, self._latent, self._scale, mask=mask)

    def mask(self, n: int, like: Tensor) -> Tensor | None:
        """Return what is added to an indexer's scores, [N, L + N]; None where all see all."""
        masks = self._of(n, like)
        return masks and masks[0]

    def _of(self, n: int, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the mask of N positions, and the same for each of their heads."""
        if n not in self._masks:
            mask = self.attention_mask.bias(n, like)
            of_rows = None if mask is None else (mask, mask.repeat_interleave(self._heads, 0))
            self._masks[n] = of_rows
        return self._masks[n]


def latent_runner(places: Places) -> LatentRunner:
    """Return what attends to latents."""
    if not isinstance(places.runner, LatentRunner):
        raise TypeError("latents are attended to by their own runner")
    return places.runner


def by_head(states: Tensor, matrices: Tensor) -> Tensor:
    """Return each head's states times its matrix, [b, N, heads, out].

    Given are [b, N, heads, in] and [heads, in, out]; rows of all requests are one product's.
    """
    rows = states.flatten(0, 1).transpose(0, 1) @ matrices
    return rows.transpose(0, 1).unflatten(0, states.shape[:2])


class Chosen:
    """What the last layer with an indexer chose for each query, [b, N, selected]; None: all."""

    positions: Tensor | None = None


class _Indexer:
    """Chooses the positions that a query attends to."""

    def __init__(self, kind: Latent, d_model: int, weights: RandomWeights, at: str) -> None:
        heads, width, rank = kind.index_heads or 0, kind.index_dim or 0, kind.query_rank or 0
        self._heads, self._selected = heads, kind.selected or 0
        self._queries = weights(f"{at}.wq_b.weight", (heads * width, rank))
        self._keys = weights.joined(
            [
                (f"{at}.wk.weight", (width, d_model)),
                (f"{at}.weights_proj.weight", (heads, d_model)),
            ]
        )
        names = (f"{at}.k_norm.weight", f"{at}.k_norm.bias")
        self._norm, self._bias = (weights(name, (width,)) for name in names)
        self._scale = (heads * width) ** -0.5
        self._width = width

    def choose(
        self, hidden: Tensor, ranked: Tensor, places: Places, keys: Tensor, laps: Laps
    ) -> Tensor | None:
        """Return the positions of each query, and put the new keys into the layer's own cache."""
        new = places.new(hidden.shape[1])
        queries = functional.linear(ranked, self._queries)
        places.lap(laps, INDEX_QUERY)
        own, weights = functional.linear(hidden, self._keys).split([self._width, self._heads], -1)
        places.lap(laps, INDEX_KEY)
        queries = queries.unflatten(-1, (self._heads, -1)).transpose(1, 2)
        queries = rotate(queries, places.index_rotation).transpose(1, 2)
        own = functional.layer_norm(own, (self._width,), self._norm, self._bias, _EPS)
        keys[:, new] = rotate(own, places.index_rotation)
        laps.lap(BETWEEN)
        mask = latent_runner(places).mask(hidden.shape[1], hidden)
        scores = index_scores(queries, keys[:, : new.stop], weights.float() * self._scale, mask)
        positions = top_positions(scores, self._selected)
        places.lap(laps, INDEXER)
        return positions


class LatentAttention:
    """Latent attention of N new positions, whose latents are put into the cache.

    `chosen` is what layers with an indexer and those without share.
    """

    def __init__(
        self,
        kind: Latent,
        d_model: int,
        weights: RandomWeights,
        prefix: str,
        *,
        details: Details,
        chosen: Chosen,
    ) -> None:
        at, self._kind, self._chosen = f"{prefix}.self_attn", kind, chosen
        head = kind.nope_dim + kind.rope_dim
        width, rank = kind.heads * head, kind.query_rank
        into = [] if rank is None else [(f"{at}.q_a_proj", rank)]
        into.append((f"{at}.kv_a_proj_with_mqa", kind.latent + kind.rope_dim))
        self._widths = [out for _, out in into]
        if rank is None:
            query = weights(f"{at}.q_proj.weight", (width, d_model))
        self._into = weights.joined([(f"{name}.weight", (out, d_model)) for name, out in into])
        self._into_bias = (
            weights.joined([(f"{name}.bias", (out,)) for name, out in into])
            if details.qkv_bias
            else None
        )
        if rank is not None:
            self._query_norm = Norm(weights, f"{at}.q_a_layernorm", rank, _EPS)
            query = weights(f"{at}.q_b_proj.weight", (width, rank))
        self._query = query
        self._latent_norm = Norm(weights, f"{at}.kv_a_layernorm", kind.latent, _EPS)
        widening = weights(
            f"{at}.kv_b_proj.weight",
            (kind.heads * (kind.nope_dim + kind.value_dim), kind.latent),
        ).unflatten(0, (kind.heads, -1))
        keys, values = widening.split([kind.nope_dim, kind.value_dim], 1)
        # Apart: of matrices with gaps between them torch makes a copy in each product.
        self._keys, self._values = keys.contiguous(), values.transpose(1, 2).contiguous()
        output = f"{at}.o_proj"
        self._output = weights(f"{output}.weight", (d_model, kind.inputs))
        self._output_bias = weights(f"{output}.bias", (d_model,)) if details.output_bias else None
        self._indexer = (
            _Indexer(kind, d_model, weights, f"{at}.indexer") if kind.index_heads else None
        )

    def forward(self, hidden: Tensor, places: Places, cache: Cache, laps: Laps) -> Tensor:
        """Return [b, N, d_model], given as much, with the layer's latents."""
        kind, new = self._kind, places.new(hidden.shape[1])
        down = functional.linear(hidden, self._into, self._into_bias)
        places.lap(laps, LATENTS)
        *of_queries, latents = down.split(self._widths, -1)
        latents, turned = latents.split([kind.latent, kind.rope_dim], -1)
        cache.keys[:, 0, new, : kind.latent] = self._latent_norm.forward(latents)
        cache.keys[:, 0, new, kind.latent :] = rotate(turned, places.rotation)
        ranked = self._query_norm.forward(of_queries[0]) if of_queries else hidden
        laps.lap(BETWEEN)
        queries = functional.linear(ranked, self._query)
        places.lap(laps, QUERY)
        queries = queries.unflatten(-1, (kind.heads, -1))
        plain, turning = queries.split([kind.nope_dim, kind.rope_dim], -1)
        turning = rotate(turning.transpose(1, 2), places.rotation).transpose(1, 2)
        laps.lap(BETWEEN)
        positions = self._positions(hidden, ranked, places, cache, laps)
        plain = by_head(plain, self._keys)
        places.lap(laps, ABSORB)
        queries = torch.cat((plain, turning), -1)
        if isinstance(places.weights, Tensor):
            queries = queries * places.weights.unsqueeze(-1)
        laps.lap(BETWEEN)
        out = latent_runner(places).attend_to(queries, cache.keys, positions)
        places.lap(laps, LATENT)
        out = by_head(out, self._values)
        places.lap(laps, RELEASE)
        out = functional.linear(out.flatten(2), self._output, self._output_bias)
        places.lap(laps, OUTPUT)
        return out

    def _positions(
        self, hidden: Tensor, ranked: Tensor, places: Places, cache: Cache, laps: Laps
    ) -> Tensor | None:
        """Return the positions that each query attends to, None for all."""
        if self._indexer is not None and cache.index_keys is not None:
            found = self._indexer.choose(hidden, ranked, places, cache.index_keys, laps)
            self._chosen.positions = found
        return self._chosen.positions if self._kind.selected else None
