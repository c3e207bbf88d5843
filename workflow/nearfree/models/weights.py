"""Weights by the names that Hugging Face gives them: random from a seed, or given."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from nearfree.errors import ConfigError
from nearfree.kernels import Place
from nearfree.kernels.tensors import filled

Weights = Callable[[str, tuple[int, ...]], Tensor]
"""Returns the weight of a name and shape; those of products are [..., out, in].

The experts of a layer are two weights, `mlp.experts.gate_up_proj` [E, 2 d_ff, d_model] and
`mlp.experts.down_proj` [E, d_model, d_ff], as transformers 5 holds them.
"""


class Names(NamedTuple):
    """The names in which the families differ."""

    embedding: str = "model.embed_tokens"
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Query, key and value, or the one weight that holds all three."""
    output: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"
    shared: str = "shared_expert"


_LING = Names(
    "model.word_embeddings",
    "attention",
    ("query_key_value",),
    "dense",
    "query_layernorm",
    "key_layernorm",
    "shared_experts",
)
NAMES = dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe"), _LING)
"""By model type; all others have those of `Names()`.
Source: the modules of transformers 5.23, inclusionAI/Ling-V2 and inclusionAI/dFactory."""


def random_weights(dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Weights:
    """Return normal random weights of variance 1 / in; those of norms are one, biases zero.

    A forward that asks for them in the same order gets the same: the seed is torch's own, set now.
    """
    torch.manual_seed(seed)
    place = Place(device=device)

    def weight(name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) > 1:
            return filled(place, dtype, *shape, scale=shape[-1] ** -0.5)
        value = 1.0 if name.endswith("norm.weight") else 0.0
        return torch.full(shape, value, dtype=dtype, device=device)

    return weight


def given_weights(
    tensors: Mapping[str, Tensor], dtype: torch.dtype, device: str = "cpu"
) -> Weights:
    """Return the weights of a mapping, such as a `state_dict` of transformers.

    A weight raises ConfigError if the mapping has none of its name, or one of another shape.
    """

    def weight(name: str, shape: tuple[int, ...]) -> Tensor:
        found = tensors.get(name)
        if found is None:
            raise ConfigError(f"no weight {name}", remedy="Give the weights of the same model")
        if tuple(found.shape) != shape:
            raise ConfigError(
                f"the weight {name} has the shape {tuple(found.shape)} in place of {shape}",
                remedy="Give the weights of the same model",
            )
        return found.detach().to(device, dtype)

    return weight


def joined(parts: list[Tensor]) -> Tensor:
    """Return weights of one input as one product's, first outputs first."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
