"""One layer of a decoder: attention and FFN, each behind a norm."""

from typing import NamedTuple

from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.models.expert_backends import Running
from nearfree.models.layers import Attention, DenseFfn, Norm
from nearfree.models.moe import MoeFfn
from nearfree.models.weights import Names, Weights


class Layer(NamedTuple):
    """One layer: attention and FFN, each behind a norm and added to what went in."""

    attention_norm: Norm
    attention: Attention
    ffn_norm: Norm
    ffn: DenseFfn | MoeFfn


class Build(NamedTuple):
    """What a layer is made from."""

    decoder: Decoder
    details: Details
    weights: Weights
    names: Names
    running: Running | None

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
        if self.running and decoder.experts and details.router and index in details.moe_at:
            return MoeFfn(
                decoder,
                self.weights,
                self.names,
                prefix,
                experts=decoder.experts,
                rule=details.router,
                shared_gate=details.shared_gate,
                running=self.running,
            )
        return DenseFfn(self.weights, prefix, decoder.d_model, decoder.d_ff or 0)
