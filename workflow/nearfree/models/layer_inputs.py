"""Inputs of each layer's own, made of a token and of its state before the first layer."""

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.decoders.modules import BETWEEN, INPUTS, Laps
from nearfree.models.layers import Norm, RandomWeights


class LayerInputs:
    """A table of tokens and one product of states, for all layers at once.

    Both are added and divided by sqrt(2), the product once normalised. Source:
    Gemma4TextModel.project_per_layer_inputs of transformers 5.23.
    """

    def __init__(
        self,
        weights: RandomWeights,
        *,
        layers: int,
        width: int,
        d_model: int,
        vocabulary: int,
        eps: float,
    ) -> None:
        """Take the weights of `layers` inputs of `width` elements each."""
        every = layers * width
        self._table = weights("model.embed_tokens_per_layer.weight", (vocabulary, every))
        self._product = weights("model.per_layer_model_projection.weight", (every, d_model))
        self._norm = Norm(weights, "model.per_layer_projection_norm", width, eps)
        self._sizes = layers, width

    def forward(self, tokens: Tensor, hidden: Tensor, laps: Laps) -> Tensor:
        """Return inputs [layers, b, N, width] of tokens [b, N] and states [b, N, d_model]."""
        (_, width), d_model = self._sizes, hidden.shape[-1]
        of_tokens = functional.embedding(tokens, self._table)
        of_tokens = of_tokens * torch.tensor(width**0.5, dtype=hidden.dtype)
        laps.lap(BETWEEN)
        made = functional.linear(hidden, self._product)
        laps.lap(INPUTS)
        of_states = self._norm.forward((made * d_model**-0.5).unflatten(-1, self._sizes))
        inputs = (of_states + of_tokens.unflatten(-1, self._sizes)) * 2.0**-0.5
        return inputs.movedim(2, 0)
