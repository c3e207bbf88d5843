"""Latent attention (MLA) of a decoder's layer, over a cache of latents, and its indexer.

Source: DeepseekV3Attention and DeepseekV32Indexer of transformers 5.23, which expand the latents to
keys and values; the absorbed form computes the same (DeepSeek-V2, arXiv 2405.04434, sec. 2.1.2).
"""

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.torch_mla import absorbed, index_scores, selected, top_positions
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.details import Details
from nearfree.decoders.ranks.attention_uses import (
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
from nearfree.decoders.ranks.modules import BETWEEN, Laps
from nearfree.models.attention import AttentionMask
from nearfree.models.layers import AttentionInputs, Cache, Norm, RandomWeights
from nearfree.models.rotation import rotate

_EPS = 1e-6
"""Epsilon of the norms of latents and of an indexer's keys, whatever the file's for other norms."""


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
            Those that an indexer selected; positions that a query does not see are ignored.
        """
        n = queries.shape[1]
        cache = keys[:, 0, : self.attention_mask.context + n]
        masks = self._masks_of(n, queries)
        if positions is None:
            mask = masks and masks[1]
            return absorbed(queries, cache, self._latent, self._scale, mask)
        mask = masks and masks[0]
        return selected(queries, cache, positions, self._latent, self._scale, mask=mask)

    def mask(self, n: int, like: Tensor) -> Tensor | None:
        """Return the bias on an indexer's scores, [N, L + N]; None if all see all positions."""
        masks = self._masks_of(n, like)
        return masks and masks[0]

    def _masks_of(self, n: int, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the mask of N positions, and the mask repeated for each head."""
        if n not in self._masks:
            mask = self.attention_mask.bias(n, like)
            masks = None if mask is None else (mask, mask.repeat_interleave(self._heads, 0))
            self._masks[n] = masks
        return self._masks[n]


def latent_runner(inputs: AttentionInputs) -> LatentRunner:
    """Return the runner of attention to latents."""
    if not isinstance(inputs.runner, LatentRunner):
        raise TypeError("latent attention needs a LatentRunner")
    return inputs.runner


def by_head(states: Tensor, matrices: Tensor) -> Tensor:
    """Return each head's states times its matrix, [b, N, heads, out].

    `states` are [b, N, heads, in], `matrices` [heads, in, out]; rows of all requests are one batch.
    """
    rows = states.flatten(0, 1).transpose(0, 1) @ matrices
    return rows.transpose(0, 1).unflatten(0, states.shape[:2])


class Selection:
    """The positions that the last indexer selected for each query, [b, N, selected]; None: all."""

    positions: Tensor | None = None


class _Indexer:
    """Selects the positions that a query attends to."""

    def __init__(self, kind: Latent, d_model: int, weights: RandomWeights, prefix: str) -> None:
        heads, width, rank = kind.index_heads or 0, kind.index_dim or 0, kind.query_rank or 0
        self._heads, self._selected = heads, kind.selected or 0
        self._queries = weights(f"{prefix}.wq_b.weight", (heads * width, rank))
        self._keys = weights.joined(
            [
                (f"{prefix}.wk.weight", (width, d_model)),
                (f"{prefix}.weights_proj.weight", (heads, d_model)),
            ]
        )
        names = (f"{prefix}.k_norm.weight", f"{prefix}.k_norm.bias")
        self._norm, self._bias = (weights(name, (width,)) for name in names)
        self._scale = (heads * width) ** -0.5
        self._width = width

    def select(
        self,
        hidden: Tensor,
        query_latents: Tensor,
        inputs: AttentionInputs,
        keys: Tensor,
        laps: Laps,
    ) -> Tensor | None:
        """Return the positions of each query; write the new index keys into the layer's cache."""
        new = inputs.new(hidden.shape[1])
        queries = functional.linear(query_latents, self._queries)
        inputs.lap(laps, INDEX_QUERY)
        index_keys, weights = functional.linear(hidden, self._keys).split(
            [self._width, self._heads], -1
        )
        inputs.lap(laps, INDEX_KEY)
        queries = queries.unflatten(-1, (self._heads, -1)).transpose(1, 2)
        queries = rotate(queries, inputs.index_rotation).transpose(1, 2)
        index_keys = functional.layer_norm(index_keys, (self._width,), self._norm, self._bias, _EPS)
        keys[:, new] = rotate(index_keys, inputs.index_rotation)
        laps.lap(BETWEEN)
        mask = latent_runner(inputs).mask(hidden.shape[1], hidden)
        scores = index_scores(queries, keys[:, : new.stop], weights.float() * self._scale, mask)
        positions = top_positions(scores, self._selected)
        inputs.lap(laps, INDEXER)
        return positions


class LatentAttention:
    """Latent attention of N new positions, whose latents are written into the cache.

    `selection` is shared by layers with an indexer and layers without one.
    """

    def __init__(
        self,
        kind: Latent,
        d_model: int,
        weights: RandomWeights,
        prefix: str,
        *,
        details: Details,
        selection: Selection,
    ) -> None:
        module, self._kind, self._selection = f"{prefix}.self_attn", kind, selection
        head_dim = kind.nope_dim + kind.rope_dim
        width, rank = kind.heads * head_dim, kind.query_rank
        down_projections = [] if rank is None else [(f"{module}.q_a_proj", rank)]
        down_projections.append((f"{module}.kv_a_proj_with_mqa", kind.latent + kind.rope_dim))
        self._widths = [out for _, out in down_projections]
        if rank is None:
            query = weights(f"{module}.q_proj.weight", (width, d_model))
        self._down = weights.joined(
            [(f"{name}.weight", (out, d_model)) for name, out in down_projections]
        )
        self._down_bias = (
            weights.joined([(f"{name}.bias", (out,)) for name, out in down_projections])
            if details.qkv_bias
            else None
        )
        if rank is not None:
            self._query_norm = Norm(weights, f"{module}.q_a_layernorm", rank, _EPS)
            query = weights(f"{module}.q_b_proj.weight", (width, rank))
        self._query = query
        self._latent_norm = Norm(weights, f"{module}.kv_a_layernorm", kind.latent, _EPS)
        expansion = weights(
            f"{module}.kv_b_proj.weight",
            (kind.heads * (kind.nope_dim + kind.value_dim), kind.latent),
        ).unflatten(0, (kind.heads, -1))
        keys, values = expansion.split([kind.nope_dim, kind.value_dim], 1)
        # Separate: torch copies matrices with gaps between them in each product.
        self._keys, self._values = keys.contiguous(), values.transpose(1, 2).contiguous()
        output = f"{module}.o_proj"
        self._output = weights(f"{output}.weight", (d_model, kind.inputs))
        self._output_bias = weights(f"{output}.bias", (d_model,)) if details.output_bias else None
        self._indexer = (
            _Indexer(kind, d_model, weights, f"{module}.indexer") if kind.index_heads else None
        )

    def forward(self, hidden: Tensor, inputs: AttentionInputs, cache: Cache, laps: Laps) -> Tensor:
        """Return the attention output, [b, N, d_model], given states of the same shape."""
        kind, new = self._kind, inputs.new(hidden.shape[1])
        down = functional.linear(hidden, self._down, self._down_bias)
        inputs.lap(laps, LATENTS)
        *query_latents_list, latents = down.split(self._widths, -1)
        latents, rotated_keys = latents.split([kind.latent, kind.rope_dim], -1)
        cache.keys[:, 0, new, : kind.latent] = self._latent_norm.forward(latents)
        cache.keys[:, 0, new, kind.latent :] = rotate(rotated_keys, inputs.rotation)
        query_latents = (
            self._query_norm.forward(query_latents_list[0]) if query_latents_list else hidden
        )
        laps.lap(BETWEEN)
        queries = functional.linear(query_latents, self._query)
        inputs.lap(laps, QUERY)
        queries = queries.unflatten(-1, (kind.heads, -1))
        unrotated, rotated = queries.split([kind.nope_dim, kind.rope_dim], -1)
        rotated = rotate(rotated.transpose(1, 2), inputs.rotation).transpose(1, 2)
        laps.lap(BETWEEN)
        positions = self._positions(hidden, query_latents, inputs, cache, laps)
        unrotated = by_head(unrotated, self._keys)
        inputs.lap(laps, ABSORB)
        queries = torch.cat((unrotated, rotated), -1)
        if isinstance(inputs.query_scales, Tensor):
            queries = queries * inputs.query_scales.unsqueeze(-1)
        laps.lap(BETWEEN)
        out = latent_runner(inputs).attend_to(queries, cache.keys, positions)
        inputs.lap(laps, LATENT)
        out = by_head(out, self._values)
        inputs.lap(laps, RELEASE)
        out = functional.linear(out.flatten(2), self._output, self._output_bias)
        inputs.lap(laps, OUTPUT)
        return out

    def _positions(
        self,
        hidden: Tensor,
        query_latents: Tensor,
        inputs: AttentionInputs,
        cache: Cache,
        laps: Laps,
    ) -> Tensor | None:
        """Return the positions that each query attends to, None for all."""
        if self._indexer is not None and cache.index_keys is not None:
            self._selection.positions = self._indexer.select(
                hidden, query_latents, inputs, cache.index_keys, laps
            )
        return self._selection.positions if self._kind.selected else None
