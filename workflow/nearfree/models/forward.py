"""A decoder's forward in torch: N new positions of every request over a KV cache of L."""

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import filled, pages_of
from nearfree.core.setting import Mask, ModelRouting
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.decoders.modules import BETWEEN, HEAD, UNTOLD, Laps
from nearfree.errors import ConfigError
from nearfree.models.attention import AttentionMask, make_attention_runner
from nearfree.models.layers import NAMES, Attention, DenseFfn, Names, Norm, RandomWeights, rotation
from nearfree.models.moe import ExpertRunner, MoeFfn, make_expert_runner


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
    weights: RandomWeights
    names: Names
    expert_runner: ExpertRunner | None

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
        if self.expert_runner and decoder.experts and details.router and index in details.moe_at:
            return MoeFfn(
                decoder,
                self.weights,
                self.names,
                prefix,
                experts=decoder.experts,
                rule=details.router,
                shared_gate=details.shared_gate,
                expert_runner=self.expert_runner,
            )
        return DenseFfn(self.weights, prefix, decoder.d_model, decoder.d_ff or 0)


class DecoderForward:
    """A decoder with everything allocated, for any number of positions up to `most`.

    `keys` and `values` are the caches, one a layer, [b, kv_heads, L + most, head_dim], in whole
    pages where attention reads pages: random until something is written into them. Their first L
    positions are read, those from L on written by each forward.

    What depends on N is made at its first forward and kept: after that no forward waits for the
    device, so that a CUDA graph can hold it.
    """

    def __init__(
        self,
        decoder: Decoder,
        details: Details,
        weights: RandomWeights,
        *,
        batch: int,
        context: int,
        most: int,
        dtype: torch.dtype,
        device: str = "cpu",
        mask: Mask = "causal",
        routing: ModelRouting = "router",
        attention: str = "torch_sdpa",
        moe: str = "torch_padded",
        kept: dict[tuple[object, ...], Tensor] | None = None,
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
        attention
            What runs attention: torch_sdpa, flash_attn, flash_attn_3, flashinfer_fa2 or
            flashinfer_fa3.
        moe
            What runs experts: torch_padded, torch_grouped, vllm or sglang.
        kept
            Caches and workspaces that forwards of one shape have in common, which never run at the
            same time.

        Raises
        ------
        EvidenceError
            The device lacks memory, its attention runs no such dtype or mask, `attention` or `moe`
            is none of those, or the host would wait for a GPU in the middle of a forward.
        """
        self._decoder, self._batch, self._most = decoder, batch, most
        attention_mask = AttentionMask(mask, context, decoder.window)
        caches = {} if kept is None else kept
        execution = ExecutionContext(device=device, shared=caches)
        self._attention_runner = make_attention_runner(attention, attention_mask, dtype, execution)
        experts = decoder.experts
        runner = make_expert_runner(moe, experts, routing, dtype, execution) if experts else None
        self._rotation = rotation(details.rope, context, most, dtype, device)
        names = NAMES.get(decoder.model_type, Names())
        vocabulary = (decoder.vocabulary, decoder.d_model)
        self._embedding = weights(f"{names.embedding}.weight", vocabulary)
        build = Build(decoder, details, weights, names, runner)
        self.layers = [build.layer(index) for index in range(decoder.layers)]
        self._norm = Norm(weights, "model.norm", decoder.d_model, details.norm_eps)
        self._head = self._embedding if details.tied else weights("lm_head.weight", vocabulary)
        shape = (attention, str(dtype), decoder.kv_heads, decoder.head_dim, batch, context + most)
        for key in product(("keys", "values"), range(decoder.layers)):
            if (*key, *shape) not in caches:
                caches[(*key, *shape)] = self._cache(dtype, execution, context)
        self.keys, self.values = (
            [caches[name, index, *shape] for index in range(decoder.layers)]
            for name in ("keys", "values")
        )

    def _cache(self, dtype: torch.dtype, execution: ExecutionContext, context: int) -> Tensor:
        """Return a layer's keys or values, laid out in memory as attention reads them."""
        page = self._attention_runner.page_size
        room = pages_of(context + self._most, page) * page
        batch, heads, width = self._batch, self._decoder.kv_heads, self._decoder.head_dim
        if self._attention_runner.positions_first:
            return filled(execution, dtype, batch, room, heads, width).transpose(1, 2)
        return filled(execution, dtype, batch, heads, room, width)

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
        by = self._rotation[0][:n], self._rotation[1][:n]
        hidden = functional.embedding(tokens, self._embedding)
        runner = self._attention_runner
        for layer, *cache in zip(self.layers, self.keys, self.values, strict=True):
            states = layer.attention_norm.forward(hidden)
            laps.lap(BETWEEN)
            hidden = hidden + layer.attention.forward(
                states, by, runner, (cache[0], cache[1]), laps
            )
            states = layer.ffn_norm.forward(hidden)
            laps.lap(BETWEEN)
            hidden = hidden + layer.ffn.forward(states, laps)
        states = self._norm.forward(hidden)
        laps.lap(BETWEEN)
        logits = functional.linear(states, self._head)
        laps.lap(HEAD)
        return logits
