"""The layers of a decoder, built from its weights, and their per-layer inputs."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.gates import Gate
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.decoders.ranks.modules import BETWEEN, INPUT_GATE, INPUT_OUTPUT, INPUTS, Laps
from nearfree.models.kinds import LayerKind
from nearfree.models.latent import LatentAttention, Selection
from nearfree.models.layers import (
    Attention,
    AttentionInputs,
    Cache,
    DenseFfn,
    Names,
    Norm,
    RandomWeights,
)
from nearfree.models.moe import MoeFfn, ParallelExperts, Routing, gate_of


class LayerInputs:
    """Per-layer inputs: a token embedding and a projection of states, for all layers at once.

    The projection is normalised; the sum of both is divided by sqrt(2). Source:
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
        """Create the weights for `layers` inputs of `width` elements each."""
        all_widths = layers * width
        self._table = weights("model.embed_tokens_per_layer.weight", (vocabulary, all_widths))
        self._product = weights("model.per_layer_model_projection.weight", (all_widths, d_model))
        self._norm = Norm(weights, "model.per_layer_projection_norm", width, eps)
        self._sizes = layers, width

    def forward(self, tokens: Tensor, hidden: Tensor, laps: Laps) -> Tensor:
        """Return inputs [layers, b, N, width] of tokens [b, N] and states [b, N, d_model]."""
        (_, width), d_model = self._sizes, hidden.shape[-1]
        embedded = functional.embedding(tokens, self._table)
        embedded = embedded * torch.tensor(width**0.5, dtype=hidden.dtype)
        laps.lap(BETWEEN)
        projected = functional.linear(hidden, self._product)
        laps.lap(INPUTS)
        normed = self._norm.forward((projected * d_model**-0.5).unflatten(-1, self._sizes))
        inputs = (normed + embedded.unflatten(-1, self._sizes)) * 2.0**-0.5
        return inputs.movedim(2, 0)


class LayerInput:
    """Adds a per-layer input to a layer's states. Source: Gemma4TextDecoderLayer."""

    def __init__(
        self,
        weights: RandomWeights,
        prefix: str,
        d_model: int,
        width: int,
        *,
        gate: Gate,
        norm: Norm,
    ) -> None:
        self._gate_weight = weights(f"{prefix}.per_layer_input_gate.weight", (width, d_model))
        self._output = weights(f"{prefix}.per_layer_projection.weight", (d_model, width))
        self._gate, self._norm = gate, norm

    def forward(self, hidden: Tensor, layer_input: Tensor, laps: Laps) -> Tensor:
        """Return states [b, N, d_model], given states of that shape and inputs [b, N, width]."""
        laps.lap(BETWEEN)
        gates = functional.linear(hidden, self._gate_weight)
        laps.lap(INPUT_GATE)
        inner = self._gate(torch.cat((gates, layer_input), -1))
        laps.lap(BETWEEN)
        out = functional.linear(inner, self._output)
        laps.lap(INPUT_OUTPUT)
        return hidden + self._norm.forward(out)


class Layer(NamedTuple):
    """One layer: attention and FFN, each after a norm and with a residual connection.

    Optionally their outputs are normalised, experts run beside the Dense FFN, a per-layer input is
    added, and the layer's output is multiplied by a weight.
    """

    attention_norm: Norm
    attention: Attention | LatentAttention
    ffn_norm: Norm
    ffn: DenseFfn | MoeFfn
    after_attention: Norm | None = None
    after_ffn: Norm | None = None
    parallel_experts: ParallelExperts | None = None
    weight: Tensor | None = None
    layer_input: LayerInput | None = None

    def attend(self, hidden: Tensor, inputs: AttentionInputs, cache: Cache, laps: Laps) -> Tensor:
        """Return the states after attention, [b, N, d_model], given the layer's input."""
        states = self.attention_norm.forward(hidden)
        laps.lap(BETWEEN)
        out = self.attention.forward(states, inputs, cache, laps)
        return hidden + (out if self.after_attention is None else self.after_attention.forward(out))

    def feed(self, hidden: Tensor, laps: Laps, layer_input: Tensor | None = None) -> Tensor:
        """Return the layer's output, given the states after attention and a per-layer input."""
        states = self.ffn_norm.forward(hidden)
        laps.lap(BETWEEN)
        out = self.ffn.forward(states, laps)
        if self.parallel_experts is not None:
            out = self.parallel_experts.forward(hidden, out, laps)
        out = hidden + (out if self.after_ffn is None else self.after_ffn.forward(out))
        if self.layer_input is not None and layer_input is not None:
            out = self.layer_input.forward(out, layer_input, laps)
        return out if self.weight is None else out * self.weight


class Build:
    """Builds a decoder's layers from its weights."""

    def __init__(
        self,
        decoder: Decoder,
        details: Details,
        weights: RandomWeights,
        names: Names,
        routing: Routing | None,
    ) -> None:
        self._decoder, self._details, self._weights = decoder, details, weights
        self._names, self._routing, self._form = names, routing, details.form or None
        self._selection = Selection()

    def norm(self, name: str) -> Norm:
        """Return a norm over the width of the model."""
        from_one = bool(self._form and self._form.norms_from_one)
        width, eps = self._decoder.d_model, self._details.norm_eps
        return Norm(self._weights, name, width, eps, from_one=from_one)

    def layer(self, index: int, kind: LayerKind) -> Layer:
        """Return a layer, counted from 0, of a kind."""
        prefix, four_norms = f"model.layers.{index}", bool(self._form and self._form.four_norms)
        before_ffn = "pre_feedforward_layernorm" if four_norms else "post_attention_layernorm"
        weight = self._form and self._form.layer_weight
        return Layer(
            self.norm(f"{prefix}.input_layernorm"),
            self._attention(kind, prefix),
            self.norm(f"{prefix}.{before_ffn}"),
            self._ffn(index, prefix),
            self.norm(f"{prefix}.post_attention_layernorm") if four_norms else None,
            self.norm(f"{prefix}.post_feedforward_layernorm") if four_norms else None,
            self._parallel_experts(index, prefix),
            self._weights(f"{prefix}.layer_scalar", (1,)) if weight else None,
            self._layer_input(prefix),
        )

    def _layer_input(self, prefix: str) -> LayerInput | None:
        width, gate = self._decoder.layer_inputs, gate_of(self._form, routed=False)
        if not width:
            return None
        norm = self.norm(f"{prefix}.post_per_layer_input_norm")
        return LayerInput(self._weights, prefix, self._decoder.d_model, width, gate=gate, norm=norm)

    def _attention(self, kind: LayerKind, prefix: str) -> Attention | LatentAttention:
        d_model, details, weights = self._decoder.d_model, self._details, self._weights
        if isinstance(kind.attention, Latent):
            return LatentAttention(
                kind.attention, d_model, weights, prefix, details=details, selection=self._selection
            )
        return Attention(
            kind.attention,
            d_model,
            weights,
            prefix,
            form=kind.form,
            details=details,
            names=self._names,
        )

    def _ffn(self, index: int, layer_prefix: str) -> DenseFfn | MoeFfn:
        decoder, details = self._decoder, self._details
        prefix = f"{layer_prefix}.{self._names.feed}"
        if self._routing and index in details.moe_at and not decoder.beside:
            return MoeFfn(
                decoder, details, self._weights, self._names, prefix, routing=self._routing
            )
        gate = gate_of(self._form, routed=False)
        return DenseFfn(self._weights, prefix, decoder.d_model, decoder.d_ff or 0, gate=gate)

    def _parallel_experts(self, index: int, prefix: str) -> ParallelExperts | None:
        decoder, details = self._decoder, self._details
        if not (self._routing and decoder.beside and index in details.moe_at):
            return None
        return ParallelExperts(decoder, details, self._weights, prefix, self._routing)
