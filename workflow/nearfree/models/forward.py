"""A decoder's forward in torch: N new positions of every request over a KV cache of L."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.decoders.laps import BETWEEN, HEAD, UNTOLD, Laps
from nearfree.errors import ConfigError
from nearfree.kernels import Place
from nearfree.kernels.tensors import filled
from nearfree.models.layers import Attention, DenseFfn, Norm
from nearfree.models.moe import MoeFfn
from nearfree.models.rotary import turn
from nearfree.models.sight import Sight
from nearfree.models.weights import NAMES, Names, Weights
from nearfree.settings import Mask, ModelRouting


class Layer(NamedTuple):
    """One layer: attention and FFN, each behind a norm and added to what went in."""

    attention_norm: Norm
    attention: Attention
    ffn_norm: Norm
    ffn: DenseFfn | MoeFfn


class DecoderForward:
    """A decoder with everything allocated, for any number of positions up to `most`.

    `keys` and `values` are the caches, one a layer, [b, kv_heads, L + most, head_dim]: random
    until something is written into them. Their first L positions are read, those from L on
    written by each forward.
    """

    def __init__(
        self,
        decoder: Decoder,
        details: Details,
        weights: Weights,
        *,
        batch: int,
        context: int,
        most: int,
        dtype: torch.dtype,
        device: str = "cpu",
        mask: Mask = "causal",
        routing: ModelRouting = "router",
        moe: str = "torch_padded",
    ) -> None:
        """Take the weights, layer by layer, and allocate the caches.

        Parameters
        ----------
        decoder, details
            The model, as `read_decoder` and `read_details` return it.
        weights
            Its weights, in `dtype` and on `device`.
        batch, context, most
            Requests b, positions L in the cache of each, and the largest N.
        mask
            Which of the new positions see each other.
        routing
            How tokens fall on experts.
        moe
            What runs experts: torch_padded or torch_grouped.

        Raises
        ------
        EvidenceError
            The device lacks memory, its attention runs no such dtype or mask, or `moe` is none of
            those.
        ConfigError
            A given weight is missing, or has another shape.
        """
        self._decoder, self._batch, self._most = decoder, batch, most
        self._sight = Sight(mask, context, decoder.window, dtype, device)
        self._turn = turn(details.rope, context, most, dtype, device)
        names = NAMES.get(decoder.model_type, Names())
        vocabulary = (decoder.vocabulary, decoder.d_model)
        self._embedding = weights(f"{names.embedding}.weight", vocabulary)
        build = _Build(decoder, details, weights, names, routing, moe)
        self.layers = [build.layer(index) for index in range(decoder.layers)]
        self._norm = Norm(weights, "model.norm", decoder.d_model, details.norm_eps)
        self._head = self._embedding if details.tied else weights("lm_head.weight", vocabulary)
        self.keys, self.values = (
            [self._cache(dtype, device, context) for _ in self.layers] for _ in range(2)
        )

    def _cache(self, dtype: torch.dtype, device: str, context: int) -> Tensor:
        """Return a layer's keys or values; in memory a GPU's positions lie before its heads."""
        batch, room, width = self._batch, context + self._most, self._decoder.head_dim
        place, heads = Place(device=device), self._decoder.kv_heads
        if device == "cuda":
            return filled(place, dtype, batch, room, heads, width).transpose(1, 2)
        return filled(place, dtype, batch, heads, room, width)

    def forward(self, tokens: Tensor, laps: Laps = UNTOLD) -> Tensor:
        """Return the logits [b, N, vocabulary] of tokens [b, N] at positions L to L + N - 1.

        Parameters
        ----------
        tokens
            Of the new positions, [b, N].
        laps
            Told of each module that has run.

        Raises
        ------
        ConfigError
            There are other than b requests, or other than 1 to `most` positions.
        """
        if tokens.ndim != 2 or len(tokens) != self._batch or not 0 < tokens.shape[1] <= self._most:
            raise ConfigError(
                f"tokens of shape {tuple(tokens.shape)} are not [{self._batch}, 1 to {self._most}]",
                remedy="Give as many as the forward was made for",
            )
        n = tokens.shape[1]
        by = self._turn[0][:n], self._turn[1][:n]
        hidden = functional.embedding(tokens, self._embedding)
        for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            states = layer.attention_norm.forward(hidden)
            laps.lap(BETWEEN)
            cache = keys, values
            hidden = hidden + layer.attention.forward(states, by, self._sight, cache, laps)
            states = layer.ffn_norm.forward(hidden)
            laps.lap(BETWEEN)
            hidden = hidden + layer.ffn.forward(states, laps)
        states = self._norm.forward(hidden)
        laps.lap(BETWEEN)
        logits = functional.linear(states, self._head)
        laps.lap(HEAD)
        return logits


class _Build(NamedTuple):
    """What a layer is made from."""

    decoder: Decoder
    details: Details
    weights: Weights
    names: Names
    routing: ModelRouting
    moe: str

    def layer(self, index: int) -> Layer:
        """Return a layer, counted from 0."""
        at, eps = f"model.layers.{index}", self.details.norm_eps
        d_model, weights = self.decoder.d_model, self.weights
        return Layer(
            Norm(weights, f"{at}.input_layernorm", d_model, eps),
            Attention(self.decoder, self.details, weights, self.names, at),
            Norm(weights, f"{at}.post_attention_layernorm", d_model, eps),
            self._ffn(index, f"{at}.mlp"),
        )

    def _ffn(self, index: int, prefix: str) -> DenseFfn | MoeFfn:
        decoder, details = self.decoder, self.details
        if decoder.experts and details.router and index in details.moe_at:
            return MoeFfn(
                decoder,
                self.weights,
                self.names,
                prefix,
                experts=decoder.experts,
                rule=details.router,
                shared_gate=details.shared_gate,
                routing=self.routing,
                backend=self.moe,
            )
        return DenseFfn(self.weights, prefix, decoder.d_model, decoder.d_ff or 0)
