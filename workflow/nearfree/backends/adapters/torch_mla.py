"""Latent attention in torch on a CPU, over a cache of latents, and the indexer of sparse selection.

Queries are taken into the space of the latent: all heads of a position share one key of latent and
rotated elements, whose first ones are the value, and are the rows of one product.
"""

import torch
from torch import Tensor


def absorbed(
    queries: Tensor, cache: Tensor, latent: int, scale: float, mask: Tensor | None
) -> Tensor:
    """Return attention [b, N, heads, latent] over a cache of latents.

    Parameters
    ----------
    queries
        [b, N, heads, latent + rope_dim].
    cache
        [b, positions, latent + rope_dim]; or those of each query, [b, N, selected, ...].
    latent
        Elements of a latent.
    scale
        What logits are multiplied by.
    mask
        What is added to logits, [N, positions] or [b, N, selected]; None where all see all.
    """
    batch, n, heads, width = queries.shape
    rows = queries.reshape(batch, n * heads, width) if cache.ndim == 3 else queries
    logits = (rows @ cache.transpose(-1, -2)).view(batch, n, heads, -1)
    logits = logits.mul_(scale) if mask is None else logits.mul_(scale).add_(mask.unsqueeze(-2))
    shares = logits.softmax(-1, dtype=torch.float32).to(cache.dtype)
    out = shares.view(*rows.shape[:-1], -1) @ cache[..., :latent]
    return out.view(batch, n, heads, latent)


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
        As in `absorbed`, [N, positions].
    """
    batch, n, heads, width = queries.shape
    products = queries.reshape(batch, n * heads, width).float() @ keys.transpose(1, 2).float()
    near = products.relu_().view(batch, n, heads, -1)
    scores = (weights.float().unsqueeze(-2) @ near).squeeze(-2)
    return scores if mask is None else scores + mask


def chosen(scores: Tensor, selected: int) -> Tensor | None:
    """Return the positions with the highest scores, [b, N, selected]; None where all are."""
    return None if scores.shape[-1] <= selected else scores.topk(selected, -1).indices


def gathered(cache: Tensor, positions: Tensor) -> Tensor:
    """Return the latents of each query's positions, [b, N, selected, width]."""
    batch = torch.arange(len(cache), device=cache.device)[:, None, None]
    return cache[batch, positions]
