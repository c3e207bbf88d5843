"""Memory of a deployment: its weights as stored, its cache, and the rest of a forward's memory.

Weights, cache and activations follow from the model's files and from how GPUs share them; what the
engine keeps for itself is a stated allowance. The GPU that holds most decides whether it fits.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache

from msgspec import Struct, structs

from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.core.precision import ELEMENT_BYTES, Dtype, Precision
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.layouts.pieces import CacheLayer
from nearfree.decoders.model_file import ModelFile
from nearfree.decoders.ranks.engines import VLLM, Engine
from nearfree.decoders.ranks.holding import Heads, Holding, head_share
from nearfree.decoders.stored.parts import Weights
from nearfree.units import BYTES_PER_GB

PAGE_POSITIONS = 16
"""Positions per page of the cache: vLLM's default block size on GPUs."""
PROMPT_TOKENS = 8192
"""Prompt tokens that engines process in one forward, whose activations exceed those of a decode
forward: vLLM's default of `max_num_batched_tokens` when it serves on cards of 70 GB and more."""
ENGINE_BYTES = 1_500_000_000
"""Allowance per GPU for the driver's context, workspaces of libraries and captured graphs."""
COLLECTIVE_BYTES = (8 + 16 + 8 + 128) << 20
"""Allowance for buffers of collectives on each of several GPUs: the buffers of vLLM's own
all-reduce for intermediate results, for its inputs and for its ranks' pointers, and the largest
buffer of torch's symmetric memory. Source: vllm 0.33.0, in
vllm/distributed/device_communicators: custom_all_reduce.py:138-145 and 295-318,
all_reduce_utils.py:58-83."""
EXPERT_MULTIPLES = (256, 128)
"""vLLM pads the rows of mxfp4 experts, and a rank's part of their width, to multiples of these, for
Marlin and FlashInfer's TRTLLM: mxfp4_round_up_hidden_size_and_intermediate_size of vllm 0.33.0,
vllm/model_executor/layers/fused_moe/oracle/mxfp4.py:837-873."""
_LOGIT_BYTES = 4
_HIDDEN_STATES = 4
"""Hidden states that are alive besides a layer's activations: the residual sum, its norm, and a
copy of each."""
MAX_GPUS, _MAX_BATCH, _MAX_CONTEXT = 1 << 10, 1 << 20, 1 << 30


class Memory(Struct, frozen=True, kw_only=True):
    """The memory of a deployment on all its `gpus` GPUs together, in bytes, and what fits there.

    What several GPUs hold counts once per GPU. `rank_bytes` is the memory of the GPU that holds
    most. `capacity_bytes` is the memory of all GPUs, None where the platform's memory is not known.
    `gpus_needed` is the smallest power of two of GPUs that hold the same model under pure tensor
    parallelism, with whole experts on each if need be; None if none does. `largest_batch` is the
    largest at this context, `largest_context` the largest at this batch: 0 where nothing fits, None
    where memory sets no limit.
    """

    gpus: int
    weights_bytes: int
    kv_bytes: int
    activations_bytes: int
    engine_bytes: int
    rank_bytes: int
    capacity_bytes: int | None = None
    gpus_needed: int | None = None
    largest_batch: int | None = None
    largest_context: int | None = None
    notes: tuple[str, ...] = ()
    """Weights that are not counted, and cache that may come on top of the count."""
    drafter_bytes: int = 0
    """Weights and cache of the drafter; `fits` counts them, the largest sizes do not."""

    @property
    def peak_bytes(self) -> int:
        """The sum of all parts."""
        weights_and_cache = self.weights_bytes + self.kv_bytes + self.drafter_bytes
        return weights_and_cache + self.activations_bytes + self.engine_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the GPU that holds most has room for it; None where its memory is not known."""
        room = self.capacity_bytes
        return None if room is None else self.rank_bytes <= room / self.gpus

    @property
    def persistent_bytes(self) -> float:
        """Weights and cache of the GPU that holds most: its memory between forwards."""
        return self.rank_bytes - (self.activations_bytes + self.engine_bytes) / self.gpus

    def with_drafter(self, drafter: "Memory") -> "Memory":
        """Return this memory plus the weights and cache of a drafter on the same GPUs."""
        return structs.replace(
            self,
            drafter_bytes=drafter.weights_bytes + drafter.kv_bytes,
            rank_bytes=self.rank_bytes + round(drafter.persistent_bytes),
        )


class Needs(Struct, frozen=True, kw_only=True, eq=False):
    """Memory of a model in one precision, in bytes: weights, and what a request or a token takes.

    `weights` carry their bytes in that precision. Instances are compared by identity.
    """

    weights: tuple[Weights, ...]
    cache: tuple[CacheLayer, ...]
    layers: int
    heads: Heads
    experts: int
    vocabulary: int
    cache_element: float
    """Bytes of an element of the cache."""
    plain_element: float
    """Bytes of an element in the plain format: that of states, unless they name their own."""
    hidden: float
    """Bytes per token of hidden states, which every GPU of a group holds."""
    activations: float
    """Bytes per token of a layer's activations, sharded as the layer is."""
    logits: float
    """Bytes per position whose logits are computed."""
    model_type: str = ""
    expert: tuple[int, int] | None = None
    """d_model and d_ff of a routed expert; None without experts, or where they are not known."""
    notes: tuple[str, ...] = ()
    engine: int = ENGINE_BYTES
    prompt_tokens: int = PROMPT_TOKENS

    def cache_bytes(self, context: int, tp: int, *, windowed: bool) -> float:
        """Return the cache bytes of one request's positions on one of `tp` ranks."""
        sizes = self.cache_element, self.plain_element
        return sum(
            cached_bytes(layer, context, tp, *sizes, windowed=windowed) for layer in self.cache
        )

    def state_bytes(self, engine: Engine, tp: int) -> float:
        """Return the bytes of one request's states in all layers on one of `tp` ranks.

        They do not depend on the request's length.
        """
        total = 0.0
        for layer in self.cache:
            matrices, dtype = layer.matrices or 0, layer.matrix_dtype or engine.state_dtype
            element = ELEMENT_BYTES[dtype] if dtype else self.plain_element
            size = (layer.state_elements - matrices) * self.plain_element + matrices * element
            total += layer.layers * (size if layer.whole else size / tp)
        return total


def cached_bytes(
    layer: CacheLayer, context: int, tp: int, element: float, plain: float, *, windowed: bool
) -> float:
    """Return the bytes that one of `tp` ranks caches of one request's positions, in whole pages.

    Parameters
    ----------
    layer
        Layers of one kind, whose cache is sharded by heads.
    context
        The positions; unless layers are `windowed` all are cached, however short the window.
    element, plain
        Bytes of an element of the cache, and of one in the plain format.
    """
    positions = min(context, layer.window or context) if windowed else context
    share = 1.0 if layer.whole else head_share(layer.heads, tp)
    pages = -(-positions // PAGE_POSITIONS)
    return layer.layers * pages * PAGE_POSITIONS * _position_bytes(layer, element, plain) * share


def _position_bytes(layer: CacheLayer, element: float, plain: float) -> float:
    """Return the bytes that one layer caches of one position."""
    if layer.whole:
        return layer.elements * plain
    if layer.dtype:
        return layer.elements * ELEMENT_BYTES[layer.dtype]
    extra = (layer.more or 0.0) if element == ELEMENT_BYTES["float8"] else 0.0
    return layer.elements * element + extra


class Load(Struct, frozen=True, kw_only=True):
    """The memory of a deployment's GPUs that does not grow with requests, and what shares it.

    `weights` are bytes on all GPUs. `stages` has, per pipeline stage, the weight bytes of a rank
    and the share of all layers. `states` are bytes per request and rank of all layers' states;
    `windowed` says whether the engine drops positions that left a layer's window.
    """

    parallel: Parallel
    weights: float
    stages: tuple[tuple[float, float], ...]
    engine: int
    states: float = 0.0
    windowed: bool = True


@cache
def static_load(
    needs: Needs, parallel: Parallel = ONE_GPU, engine: Engine = VLLM, *, padded: bool = False
) -> Load:
    """Return the load of a deployment's GPUs, with the cache spread evenly over the layers.

    Of the weights outside of layers, the first stage holds all but the LM head and those behind the
    last layer, which the last stage holds; both hold a tied LM head. Source: vllm 0.33.0,
    vllm/model_executor/models/llama.py:378-397 and 502-517.
    """
    kind, vocabulary = needs.model_type, needs.vocabulary
    holding = Holding(parallel, engine, needs.heads, needs.experts, vocabulary, kind)
    padding = _padding_factor(needs.expert, parallel) if padded and needs.expert else 1.0
    tied = not any(weights.kind == "lm_head" for weights in needs.weights)
    total, loads = 0.0, list[tuple[float, float]]()
    stages = holding.stages(needs.layers)
    for number, layers in enumerate(stages):
        first, last = number == 0, number == len(stages) - 1
        rank = 0.0
        for weights in needs.weights:
            share = _stage_share(weights, layers, first=first, last=last, tied=tied)
            part = share * weights.size_bytes
            part *= padding if weights.kind == "experts" else 1.0
            rank += part * holding.share(weights.how, weights.kind)
            total += part * holding.copies(weights.how, weights.kind)
        loads.append((rank, len(layers) / needs.layers))
    buffers = COLLECTIVE_BYTES if parallel.ranks > 1 else 0
    return Load(
        parallel=parallel,
        weights=total,
        stages=tuple(dict.fromkeys(loads)),
        engine=needs.engine + buffers,
        states=needs.state_bytes(engine, parallel.tp),
        windowed=engine.bounds_cache(kind),
    )


def _padding_factor(expert: tuple[int, int], parallel: Parallel) -> float:
    """Return the elements of a padded expert over those of the expert as stored."""
    (rows, width), (row_multiple, width_multiple) = expert, EXPERT_MULTIPLES
    part = -(-width // parallel.moe_tp)
    padded_width = -(-part // width_multiple) * width_multiple * parallel.moe_tp
    return (-(-rows // row_multiple) * row_multiple) * padded_width / (rows * width)


def _stage_share(weights: Weights, layers: range, *, first: bool, last: bool, tied: bool) -> float:
    """Return the share of some weights that a pipeline stage holds."""
    if weights.layers:
        return sum(layer in layers for layer in weights.layers) / len(weights.layers)
    if weights.kind == "embedding":
        return 1.0 if first or (last and tied) else 0.0
    return 1.0 if (last if weights.kind in ("lm_head", "norm", "other") else first) else 0.0


def _activation_bytes(needs: Needs, load: Load, requests: int) -> float:
    """Return the bytes of a rank's activations and logits in a forward."""
    tokens = max(requests, needs.prompt_tokens)
    activations = tokens * (needs.hidden + needs.activations / load.parallel.tp)
    return activations + requests * needs.logits


def _request_bytes(needs: Needs, load: Load, context: int) -> float:
    """Return a rank's cache and states of one request; the position itself is cached, too."""
    cached = needs.cache_bytes(context + 1, load.parallel.tp, windowed=load.windowed)
    return cached + load.states


def _rank_bytes(needs: Needs, load: Load, batch: int, context: int) -> int:
    """Return the memory of the GPU that holds most."""
    requests = -(-batch // load.parallel.dp)
    cached = requests * _request_bytes(needs, load, context)
    persistent = max([weights + cached * layers for weights, layers in load.stages])
    return round(persistent) + round(_activation_bytes(needs, load, requests)) + load.engine


@cache
def needs(model: ModelFile, precision: Precision | None) -> Needs | None:
    """Return the memory needs of a model; None where its weights or precision are not known.

    A `precision` of None is that of the model's files.
    """
    stored = precision or model.around
    if not model.weights or stored is None:
        return None
    kv: Dtype = stored.kv
    plain_element = ELEMENT_BYTES[stored.plain]
    experts = model.decoder and model.decoder.experts
    return Needs(
        weights=model.stored(precision),
        cache=model.cache,
        layers=model.layers,
        heads=model.heads,
        experts=model.experts,
        vocabulary=model.vocabulary,
        cache_element=ELEMENT_BYTES[kv],
        plain_element=plain_element,
        hidden=_HIDDEN_STATES * model.d_model * plain_element,
        activations=model.widest * plain_element,
        logits=model.vocabulary * (_LOGIT_BYTES + plain_element),
        model_type=model.model_type,
        expert=(model.d_model, experts.d_ff) if experts and not experts.latent else None,
        notes=(*model.notes, *_record_notes(model, kv)),
    )


def _record_notes(model: ModelFile, kv: Dtype) -> Iterator[str]:
    """Yield a note where an engine's record of a selected latent in float8 exceeds its elements.

    Source: MLAAttentionSpec of vllm 0.33.0, vllm/v1/kv_cache_interface.py; sglang 0.5.23,
    sglang/srt/mem_cache/memory_pool.py (the pool of DSA).
    """
    kinds = model.decoder.attention if model.decoder else ()
    latent = next((kind for kind in kinds if isinstance(kind, Latent) and kind.selected), None)
    if latent is not None and kv == "float8":
        record = latent.latent + latent.latent // 128 * 4 + 2 * latent.rope_dim
        yield (
            f"a position of selected latents in float8 counts {latent.cached} bytes: FlashMLA, "
            f"which engines run for it below compute capability 10.0, keeps {record}"
        )


@cache
def memory(
    needs: Needs,
    memory_gb: float | None,
    *,
    parallel: Parallel = ONE_GPU,
    engine: Engine = VLLM,
    batch: int = 1,
    context: int = 4096,
    padded: bool = False,
) -> Memory:
    """Return the memory of a deployment at N = 1 and whether it fits.

    Data parallelism splits the batch: each group holds the cache of its own requests. `batch` are
    the requests whose caches lie on the GPUs; pipeline stages are all busy only with as many
    batches in flight as there are stages.

    Parameters
    ----------
    memory_gb
        A GPU's memory in decimal GB, None where it is not known.
    parallel, engine
        How GPUs share the model, and the engine whose rules say what each of them holds.
    context
        L; the position itself is cached, too.
    padded
        Whether experts are padded to EXPERT_MULTIPLES.
    """
    load = static_load(needs, parallel, engine, padded=padded)
    request = _request_bytes(needs, load, context) * parallel.tp
    activations = round(_activation_bytes(needs, load, -(-batch // parallel.dp)))
    total = Memory(
        gpus=parallel.gpus,
        weights_bytes=round(load.weights),
        kv_bytes=round(batch * request),
        activations_bytes=activations * parallel.gpus,
        engine_bytes=load.engine * parallel.gpus,
        rank_bytes=_rank_bytes(needs, load, batch, context),
        notes=needs.notes,
    )
    if memory_gb is None:
        return total
    room = memory_gb * BYTES_PER_GB

    def fits(load: Load, length: int = context) -> bool:
        return _rank_bytes(needs, load, batch, length) <= room

    sufficient = (
        gpus
        for gpus in (1 << power for power in range(MAX_GPUS.bit_length()))
        if fits(static_load(needs, Parallel(tp=gpus), engine, padded=padded))
    )
    return structs.replace(
        total,
        capacity_bytes=round(parallel.gpus * room),
        gpus_needed=next(sufficient, None),
        largest_batch=_largest_batch(needs, load, room, context),
        largest_context=_largest(lambda length: fits(load, length), _MAX_CONTEXT),
    )


@cache
def _largest_batch(needs: Needs, load: Load, room: float, context: int) -> int | None:
    """Return the largest batch whose caches fit in `room` bytes; one search serves all batches."""
    return _largest(lambda batch: _rank_bytes(needs, load, batch, context) <= room, _MAX_BATCH)


def _largest(holds: Callable[[int], bool], limit: int) -> int | None:
    """Return the largest number for which `holds`, by bisection; None if it holds at `limit`.

    `holds` must be true up to some number and false beyond it.
    """
    if holds(limit):
        return None
    return bisect_left(range(1, limit), x=True, key=lambda number: not holds(number))
