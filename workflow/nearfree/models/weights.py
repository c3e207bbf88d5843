"""Weights by the names that Hugging Face gives them, random from a seed."""

from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import filled

Part = tuple[str, tuple[int, ...]]
"""The name and shape of a weight."""


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


class RandomWeights:
    """Normal random weights of variance 1 / in; those of norms are one, biases zero.

    A forward that asks for them in the same order gets the same: the seed is torch's own, set now.
    With `kept`, what was made once is what is given again. Weights of products are [..., out, in].
    The experts of a layer are two weights, `mlp.experts.gate_up_proj` [E, 2 d_ff, d_model] and
    `mlp.experts.down_proj` [E, d_model, d_ff], as transformers 5 holds them.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        device: str = "cpu",
        seed: int = 0,
        kept: MutableMapping[tuple[object, ...], Tensor] | None = None,
        key: tuple[object, ...] = (),
    ) -> None:
        """Set the seed; `key` tells the weights of models and copies apart in `kept`."""
        torch.manual_seed(seed)
        self._dtype, self._execution = dtype, ExecutionContext(device=device)
        self._kept: MutableMapping[tuple[object, ...], Tensor] = {} if kept is None else kept
        self._key = (*key, str(dtype), seed)

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the weight of a name and shape."""
        key = (*self._key, name, *shape)
        if key not in self._kept:
            self._kept[key] = self._made(name, shape)
        return self._kept[key]

    def joined(self, parts: Sequence[Part]) -> Tensor:
        """Return weights of one input as one product's, first outputs first."""
        names, shapes = zip(*parts, strict=True)
        return self("+".join(names), (sum(shape[0] for shape in shapes), *shapes[0][1:]))

    def _made(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) > 1:
            return filled(self._execution, self._dtype, *shape, scale=shape[-1] ** -0.5)
        value = 1.0 if name.endswith("norm.weight") else 0.0
        return torch.full(shape, value, dtype=self._dtype, device=self._execution.device)
