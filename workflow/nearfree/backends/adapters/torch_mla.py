"""Latent attention in torch on a CPU, over a cache of latents, and the indexer of sparse selection.

Queries are taken into the space of the latent: all heads of a position share one key of latent and
rotated elements, whose first ones are the value, and are the query rows of one head.
"""

import torch
from torch import Tensor
from torch.nn import functional


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
