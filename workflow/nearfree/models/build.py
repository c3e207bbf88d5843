"""The layers of a decoder, built from its weights, and inputs of their own."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.gates import Gate
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.decoders.modules import BETWEEN, INPUT_GATE, INPUT_OUTPUT, INPUTS, Laps
from nearfree.models.expert_runners import ExpertRunner
from nearfree.models.kinds import LayerKind
from nearfree.models.latent import Chosen, LatentAttention
from nearfree.models.layers import (
    Attention,
    Cache,
    DenseFfn,
    Names,
    Norm,
    Places,
    RandomWeights,
)
from nearfree.models.moe import Beside, MoeFfn, gate_of


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


class OwnInput:
    """What takes an input of a layer's own into its states. Source: Gemma4TextDecoderLayer."""

    def __init__(
        self, weights: RandomWeights, at: str, d_model: int, width: int, *, gate: Gate, norm: Norm
    ) -> None:
        self._gate_weight = weights(f"{at}.per_layer_input_gate.weight", (width, d_model))
        self._output = weights(f"{at}.per_layer_projection.weight", (d_model, width))
        self._gate, self._norm = gate, norm

    def forward(self, hidden: Tensor, own: Tensor, laps: Laps) -> Tensor:
        """Return states [b, N, d_model], given as many and inputs [b, N, width]."""
        laps.lap(BETWEEN)
        gates = functional.linear(hidden, self._gate_weight)
        laps.lap(INPUT_GATE)
        inner = self._gate(torch.cat((gates, own), -1))
        laps.lap(BETWEEN)
        out = functional.linear(inner, self._output)
        laps.lap(INPUT_OUTPUT)
        return hidden + self._norm.forward(out)


class Layer(NamedTuple):
    """One layer: attention and FFN, each behind a norm and added to what went in.

    What leaves them may be normalised, experts may run beside the FFN, an input of its own may be
    taken in, and what leaves the layer may be multiplied by a weight.
    """

    attention_norm: Norm
    attention: Attention | LatentAttention
    ffn_norm: Norm
    ffn: DenseFfn | MoeFfn
    after_attention: Norm | None = None
    after_ffn: Norm | None = None
    beside: Beside | None = None
    weight: Tensor | None = None
    own: OwnInput | None = None

    def attend(self, hidden: Tensor, places: Places, cache: Cache, laps: Laps) -> Tensor:
        """Return what leaves the attention, [b, N, d_model], given what enters the layer."""
        states = self.attention_norm.forward(hidden)
        laps.lap(BETWEEN)
        out = self.attention.forward(states, places, cache, laps)
        return hidden + (out if self.after_attention is None else self.after_attention.forward(out))

    def feed(self, hidden: Tensor, laps: Laps, own: Tensor | None = None) -> Tensor:
        """Return what leaves the layer, given what leaves its attention and an input of its own."""
        states = self.ffn_norm.forward(hidden)
        laps.lap(BETWEEN)
        out = self.ffn.forward(states, laps)
        if self.beside is not None:
            out = self.beside.forward(hidden, out, laps)
        out = hidden + (out if self.after_ffn is None else self.after_ffn.forward(out))
        if self.own is not None and own is not None:
            out = self.own.forward(out, own, laps)
        return out if self.weight is None else out * self.weight


class Build:
    """What a decoder's layers are made from."""

    def __init__(
        self,
        decoder: Decoder,
        details: Details,
        weights: RandomWeights,
        names: Names,
        expert_runner: ExpertRunner | None,
    ) -> None:
        self._decoder, self._details, self._weights = decoder, details, weights
        self._names, self._expert_runner, self._form = names, expert_runner, details.form or None
        self._chosen = Chosen()

    def norm(self, name: str) -> Norm:
        """Return a norm over the width of the model."""
        from_one = bool(self._form and self._form.norms_from_one)
        width, eps = self._decoder.d_model, self._details.norm_eps
        return Norm(self._weights, name, width, eps, from_one=from_one)

    def layer(self, index: int, kind: LayerKind) -> Layer:
        """Return a layer, counted from 0, of a kind."""
        at, four = f"model.layers.{index}", bool(self._form and self._form.four_norms)
        before_ffn = "pre_feedforward_layernorm" if four else "post_attention_layernorm"
        weight = self._form and self._form.layer_weight
        return Layer(
            self.norm(f"{at}.input_layernorm"),
            self._attention(kind, at),
            self.norm(f"{at}.{before_ffn}"),
            self._ffn(index, at),
            self.norm(f"{at}.post_attention_layernorm") if four else None,
            self.norm(f"{at}.post_feedforward_layernorm") if four else None,
            self._beside(index, at),
            self._weights(f"{at}.layer_scalar", (1,)) if weight else None,
            self._own(at),
        )

    def _own(self, at: str) -> OwnInput | None:
        width, gate = self._decoder.layer_inputs, gate_of(self._form, routed=False)
        if not width:
            return None
        norm = self.norm(f"{at}.post_per_layer_input_norm")
        return OwnInput(self._weights, at, self._decoder.d_model, width, gate=gate, norm=norm)

    def _attention(self, kind: LayerKind, at: str) -> Attention | LatentAttention:
        d_model, details, weights = self._decoder.d_model, self._details, self._weights
        if isinstance(kind.kind, Latent):
            return LatentAttention(
                kind.kind, d_model, weights, at, details=details, chosen=self._chosen
            )
        return Attention(
            kind.kind, d_model, weights, at, form=kind.form, details=details, names=self._names
        )

    def _ffn(self, index: int, at: str) -> DenseFfn | MoeFfn:
        decoder, details = self._decoder, self._details
        prefix = f"{at}.{self._names.feed}"
        routed = self._expert_runner and index in details.moe_at and not decoder.beside
        if routed and self._expert_runner and decoder.experts and details.router:
            return MoeFfn(
                decoder,
                details,
                self._weights,
                self._names,
                prefix,
                experts=decoder.experts,
                rule=details.router,
                expert_runner=self._expert_runner,
            )
        gate = gate_of(self._form, routed=False)
        return DenseFfn(self._weights, prefix, decoder.d_model, decoder.d_ff or 0, gate=gate)

    def _beside(self, index: int, at: str) -> Beside | None:
        decoder, details = self._decoder, self._details
        if not (decoder.beside and index in details.moe_at):
            return None
        if not (self._expert_runner and decoder.experts and details.router):
            return None
        return Beside(
            decoder,
            details,
            self._weights,
            at,
            experts=decoder.experts,
            rule=details.router,
            expert_runner=self._expert_runner,
        )
