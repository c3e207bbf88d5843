"""A decoder's forward in torch: N new positions of every request over a KV cache of L."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import filled, pages_of
from nearfree.core.routing_names import ModelRouting
from nearfree.core.setting import Mask
from nearfree.decoders.attention_kinds import Grouped, Latent, Runnable
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.decoders.ranks.modules import BETWEEN, HEAD, NO_LAPS, Laps
from nearfree.errors import ConfigError, EvidenceError
from nearfree.models.attention import AttentionMask, AttentionRunner, make_attention_runner
from nearfree.models.build import Build, LayerInputs
from nearfree.models.expert_runners import make_expert_runner
from nearfree.models.kinds import (
    LayerKind,
    kind_by_layer,
    layer_kinds,
    query_scales,
    roles_of,
)
from nearfree.models.latent import LatentRunner
from nearfree.models.layers import NAMES, AttentionInputs, Cache, Names, RandomWeights
from nearfree.models.moe import Routing
from nearfree.models.rotation import RotationTables


class DecoderForward:
    """A decoder with all tensors allocated, for any number of positions up to `max_positions`.

    `caches` has one cache per layer; a layer that shares has that of another layer. Caches consist
    of whole pages if attention reads pages, and are random until they are written. A forward reads
    their first L positions and writes those from L on.

    Tensors that depend on N are made in its first forward and kept: later forwards do not wait for
    the device, so that a CUDA graph can hold them.
    """

    def __init__(
        self,
        decoder: Decoder,
        details: Details,
        weights: RandomWeights,
        *,
        batch: int,
        context: int,
        max_positions: int,
        dtype: torch.dtype,
        device: str = "cpu",
        mask: Mask = "causal",
        routing: ModelRouting = "router",
        attention: str = "torch_sdpa",
        moe: str = "torch_padded",
        shared: dict[tuple[object, ...], Tensor] | None = None,
    ) -> None:
        """Create the weights, layer by layer, and allocate the caches.

        Parameters
        ----------
        weights
            Its weights, in `dtype` and on `device`.
        batch, context, max_positions
            Requests b, positions L in the cache of each request, and the largest N.
        routing
            The distribution of tokens over experts.
        attention
            The backend of attention: torch_sdpa, flash_attn, flash_attn_3, flashinfer_fa2 or
            flashinfer_fa3.
        moe
            The backend of experts: torch_padded, torch_grouped, vllm or sglang.
        shared
            Caches and workspaces that forwards of one shape share; they never run at the same time.

        Raises
        ------
        EvidenceError
            The device lacks memory, its attention does not run this dtype or mask, `attention` or
            `moe` is none of those backends, or the host would wait for a GPU in the middle of a
            forward.
        """
        self._decoder, self._batch, self._max_positions = decoder, batch, max_positions
        self._form = details.form or None
        shared_tensors = {} if shared is None else shared
        execution = ExecutionContext(device=device, shared=shared_tensors)
        kinds = layer_kinds(decoder, details)
        runners = [
            _runner(kind, attention, mask=mask, context=context, dtype=dtype, execution=execution)
            for kind in kinds
        ]
        tables = RotationTables(context, max_positions, dtype, device)
        self._kind_inputs = [
            AttentionInputs(
                runner,
                roles_of(decoder, kind, attention),
                tables.table(kind.form.rope),
                tables.table(kind.form.index_rope),
                query_scales(kind, context, max_positions, dtype, device),
            )
            for kind, runner in zip(kinds, runners, strict=True)
        ]
        self._kind_by_layer = kind_by_layer(kinds)
        experts, rule = decoder.experts, details.router
        routed = None
        if experts:
            runner = make_expert_runner(
                moe,
                experts,
                routing,
                dtype,
                execution,
                on_inputs=bool(rule and rule.on_inputs),
                plain=not self._form or self._form.plain_experts,
            )
            routed = Routing(experts, rule, runner) if rule else None
        names = NAMES.get(decoder.model_type, Names())
        vocabulary = (decoder.vocabulary, decoder.d_model)
        self._embedding = weights(f"{names.embedding}.weight", vocabulary)
        build = Build(decoder, details, weights, names, routed)
        self.layers = [
            build.layer(index, kinds[self._kind_by_layer[index]]) for index in range(decoder.layers)
        ]
        self._layer_inputs = (
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
        cache_space = _CacheSpace(batch, context, max_positions, attention, dtype, execution)
        self.caches = cache_space.caches(kinds, runners)

    @property
    def keys(self) -> list[Tensor]:
        """The keys of each layer's cache."""
        return [cache.keys for cache in self.caches]

    @property
    def values(self) -> list[Tensor]:
        """The values of each layer's cache."""
        return [cache.values for cache in self.caches]

    def forward(self, tokens: Tensor, laps: Laps = NO_LAPS) -> Tensor:
        """Return the logits [b, N, vocabulary] of tokens [b, N] at positions L to L + N - 1.

        Raises
        ------
        ConfigError
            There are other than b requests, or other than 1 to `max_positions` positions.
        """
        if (
            tokens.ndim != 2
            or len(tokens) != self._batch
            or not 0 < tokens.shape[1] <= self._max_positions
        ):
            raise ConfigError(
                f"tokens of shape {tuple(tokens.shape)} are not "
                f"[{self._batch}, 1 to {self._max_positions}]",
                remedy="Give the numbers of requests and positions that the forward was made for",
            )
        hidden = functional.embedding(tokens, self._embedding)
        if self._form and self._form.embedding_scale:
            hidden = hidden * torch.tensor(self._form.embedding_scale, dtype=hidden.dtype)
        kind_inputs = [inputs.truncated(tokens.shape[1]) for inputs in self._kind_inputs]
        layer_inputs: Tensor | list[None] = [None] * len(self.layers)
        if self._layer_inputs is not None:
            layer_inputs = self._layer_inputs.forward(tokens, hidden, laps)
        for index, layer in enumerate(self.layers):
            inputs = kind_inputs[self._kind_by_layer[index]]
            hidden = layer.attend(hidden, inputs, self.caches[index], laps)
            hidden = layer.feed(hidden, laps, layer_inputs[index])
        states = self._norm.forward(hidden)
        laps.lap(BETWEEN)
        logits = functional.linear(states, self._head)
        if self._form and self._form.logits_cap:
            cap = self._form.logits_cap
            logits = logits.div_(cap).tanh_().mul_(cap)
        laps.lap(HEAD)
        return logits


def _runner(
    kind: LayerKind,
    attention: str,
    *,
    mask: Mask,
    context: int,
    dtype: torch.dtype,
    execution: ExecutionContext,
) -> AttentionRunner:
    """Return the runner of the attention of a kind of layers."""
    attention_kind = kind.attention
    if isinstance(attention_kind, Grouped):
        window, chunk = attention_kind.window, attention_kind.chunk
        attention_mask = AttentionMask(mask, context, window, chunk)
        return make_attention_runner(attention, attention_mask, dtype, execution, attention_kind)
    if attention != "torch_sdpa" or execution.device == "cuda":
        raise EvidenceError(
            f"{attention} on {execution.device} is not run with latent attention",
            remedy="Choose torch_sdpa on a CPU",
        )
    return LatentRunner(AttentionMask(mask, context), attention_kind, kind.form.scale)


class _CacheSpace(NamedTuple):
    """The sizes that determine a layer's cache."""

    batch: int
    context: int
    max_positions: int
    attention: str
    dtype: torch.dtype
    execution: ExecutionContext

    def caches(
        self, kinds: tuple[LayerKind, ...], runners: Sequence[AttentionRunner]
    ) -> list[Cache]:
        """Return the cache of each layer; a layer that shares has that of an earlier layer."""
        caches: list[Cache] = []
        cache_by_kind: dict[Runnable, Cache] = {}
        for layer, index in sorted(kind_by_layer(kinds).items()):
            kind = structs.replace(kinds[index].attention, layers=())
            if isinstance(kind, Grouped) and kind.shares:
                caches.append(cache_by_kind[structs.replace(kind, shares=False)])
            else:
                cache_by_kind[kind] = self.cache(layer, kind, runners[index])
                caches.append(cache_by_kind[kind])
        return caches

    def cache(self, layer: int, kind: Runnable, runner: AttentionRunner) -> Cache:
        """Return a layer's cache, laid out in memory as attention reads it."""
        if isinstance(kind, Latent):
            keys = self._shared_cache("keys", layer, 1, kind.latent + kind.rope_dim, runner)
            index_keys = None
            if kind.index_dim:
                index_keys = self._shared_cache("index", layer, 1, kind.index_dim, runner)[:, 0]
            return Cache(keys, keys[..., : kind.latent], index_keys)
        sizes = kind.kv_heads, kind.head_dim, runner
        return Cache(
            self._shared_cache("keys", layer, *sizes), self._shared_cache("values", layer, *sizes)
        )

    def _shared_cache(
        self, name: str, layer: int, heads: int, width: int, runner: AttentionRunner
    ) -> Tensor:
        batch, dtype, page = self.batch, self.dtype, runner.page_size
        length = self.context + self.max_positions
        positions, shared_tensors = pages_of(length, page) * page, self.execution.shared
        key = (name, layer, self.attention, str(dtype), heads, width, batch, length)
        if key not in shared_tensors:
            if runner.positions_first:
                cache = filled(self.execution, dtype, batch, positions, heads, width).transpose(
                    1, 2
                )
            else:
                cache = filled(self.execution, dtype, batch, heads, positions, width)
            shared_tensors[key] = cache
        return shared_tensors[key]
