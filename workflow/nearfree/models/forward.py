"""A decoder's forward in torch: N new positions of every request over a KV cache of L."""

from typing import NamedTuple

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import filled, pages_of
from nearfree.core.routing_names import ModelRouting
from nearfree.core.setting import Mask
from nearfree.decoders.attention_kinds import Grouped, Latent, Run
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.decoders.modules import BETWEEN, HEAD, UNTOLD, Laps
from nearfree.errors import ConfigError, EvidenceError
from nearfree.models.attention import AttentionMask, AttentionRunner, make_attention_runner
from nearfree.models.build import Build, LayerInputs
from nearfree.models.expert_runners import make_expert_runner
from nearfree.models.kinds import (
    LayerKind,
    kind_of_layers,
    layer_kinds,
    roles_of,
    weights_of_queries,
)
from nearfree.models.latent import LatentRunner
from nearfree.models.layers import NAMES, Cache, Names, Places, RandomWeights
from nearfree.models.rotation import Turns


class DecoderForward:
    """A decoder with everything allocated, for any number of positions up to `most`.

    `caches` has one a layer, another's where it shares that, in whole pages where attention reads
    pages: random until something is written into them. Their first L positions are read, those from
    L on written by each forward.

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
        self._form = details.form or None
        caches = {} if kept is None else kept
        execution = ExecutionContext(device=device, shared=caches)
        kinds = layer_kinds(decoder, details)
        runners = [
            _runner(each, attention, mask=mask, context=context, dtype=dtype, execution=execution)
            for each in kinds
        ]
        turns = Turns(context, most, dtype, device)
        self._places = [
            Places(
                runner,
                roles_of(decoder, each, attention),
                turns.of(each.form.rope),
                turns.of(each.form.index_rope),
                weights_of_queries(each, context, most, dtype, device),
            )
            for each, runner in zip(kinds, runners, strict=True)
        ]
        self._kind_of = kind_of_layers(kinds)
        experts, rule = decoder.experts, details.router
        runner = (
            make_expert_runner(
                moe,
                experts,
                routing,
                dtype,
                execution,
                on_inputs=bool(rule and rule.on_inputs),
                plain=not self._form or self._form.plain_experts,
            )
            if experts
            else None
        )
        names = NAMES.get(decoder.model_type, Names())
        vocabulary = (decoder.vocabulary, decoder.d_model)
        self._embedding = weights(f"{names.embedding}.weight", vocabulary)
        build = Build(decoder, details, weights, names, runner)
        self.layers = [
            build.layer(index, kinds[self._kind_of[index]]) for index in range(decoder.layers)
        ]
        self._inputs = (
            LayerInputs(
                weights,
                layers=decoder.layers,
                width=decoder.layer_inputs,
                d_model=decoder.d_model,
                vocabulary=decoder.vocabulary,
                eps=details.norm_eps,
            )
            if decoder.layer_inputs
            else None
        )
        self._norm = build.norm("model.norm")
        self._head = self._embedding if details.tied else weights("lm_head.weight", vocabulary)
        room = _Room(batch, context, most, attention, dtype, execution)
        self.caches: list[Cache] = []
        alike: dict[Run, Cache] = {}
        for index, at in sorted(self._kind_of.items()):
            of = structs.replace(kinds[at].kind, layers=())
            if isinstance(of, Grouped) and of.shares:
                self.caches.append(alike[structs.replace(of, shares=False)])
            else:
                alike[of] = room.cache(index, of, runners[at])
                self.caches.append(alike[of])

    @property
    def keys(self) -> list[Tensor]:
        """The keys of each layer's cache."""
        return [cache.keys for cache in self.caches]

    @property
    def values(self) -> list[Tensor]:
        """The values of each layer's cache."""
        return [cache.values for cache in self.caches]

    def forward(self, tokens: Tensor, laps: Laps = UNTOLD) -> Tensor:
        """Return the logits [b, N, vocabulary] of tokens [b, N] at positions L to L + N - 1.

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
        hidden = functional.embedding(tokens, self._embedding)
        if self._form and self._form.embedding_scale:
            hidden = hidden * torch.tensor(self._form.embedding_scale, dtype=hidden.dtype)
        told = [each.upto(tokens.shape[1]) for each in self._places]
        own = None if self._inputs is None else self._inputs.forward(tokens, hidden, laps)
        for index, layer in enumerate(self.layers):
            places = told[self._kind_of[index]]
            hidden = layer.attend(hidden, places, self.caches[index], laps)
            hidden = layer.feed(hidden, laps, None if own is None else own[index])
        states = self._norm.forward(hidden)
        laps.lap(BETWEEN)
        logits = functional.linear(states, self._head)
        if self._form and self._form.logits_cap:
            cap = self._form.logits_cap
            logits = logits.div_(cap).tanh_().mul_(cap)
        laps.lap(HEAD)
        return logits

    def places(self, index: int, n: int) -> Places:
        """Return what a layer, counted from 0, is told of N positions."""
        return self._places[self._kind_of[index]].upto(n)


def _runner(
    kind: LayerKind,
    attention: str,
    *,
    mask: Mask,
    context: int,
    dtype: torch.dtype,
    execution: ExecutionContext,
) -> AttentionRunner:
    """Return what runs the attention of a kind of layers."""
    of = kind.kind
    if isinstance(of, Grouped):
        sight = AttentionMask(mask, context, of.window, of.chunk)
        return make_attention_runner(attention, sight, dtype, execution, of)
    if attention != "torch_sdpa" or execution.device == "cuda":
        raise EvidenceError(
            f"{attention} on {execution.device} is not run with latent attention",
            remedy="Choose torch_sdpa on a CPU",
        )
    return LatentRunner(AttentionMask(mask, context), of, kind.form.scale)


class _Room(NamedTuple):
    """What decides the size of a layer's cache."""

    batch: int
    context: int
    most: int
    attention: str
    dtype: torch.dtype
    execution: ExecutionContext

    def cache(self, index: int, kind: Run, runner: AttentionRunner) -> Cache:
        """Return a layer's cache, laid out in memory as attention reads it."""
        if isinstance(kind, Latent):
            keys = self._kept("keys", index, 1, kind.latent + kind.rope_dim, runner)
            own = self._kept("index", index, 1, kind.index_dim, runner) if kind.index_dim else None
            return Cache(keys, keys[..., : kind.latent], own if own is None else own[:, 0])
        sizes = kind.kv_heads, kind.head_dim, runner
        return Cache(self._kept("keys", index, *sizes), self._kept("values", index, *sizes))

    def _kept(
        self, what: str, index: int, heads: int, width: int, runner: AttentionRunner
    ) -> Tensor:
        batch, dtype, page = self.batch, self.dtype, runner.page_size
        length = self.context + self.most
        room, caches = pages_of(length, page) * page, self.execution.shared
        key = (what, index, self.attention, str(dtype), heads, width, batch, length)
        if key not in caches:
            if runner.positions_first:
                made = filled(self.execution, dtype, batch, room, heads, width).transpose(1, 2)
            else:
                made = filled(self.execution, dtype, batch, heads, room, width)
            caches[key] = made
        return caches[key]
