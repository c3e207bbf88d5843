"""What memory a drafter takes beside its model: a model, a head, or the model's own layer."""

from collections.abc import Sequence

from msgspec import UNSET, structs

from nearfree.core.precision import ELEMENT_BYTES, Precision
from nearfree.decoders.attention_kinds import Grouped, Kind
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.draft_heads import own_layer
from nearfree.decoders.engines import VLLM, engine_of
from nearfree.decoders.kept import kept_of
from nearfree.decoders.weights import cache_layer
from nearfree.derive.memory import Memory, cached_bytes
from nearfree.derive.predict.forecast.deployment import Deployment


def beside_drafters(
    asked: Sequence[Deployment], drafting: Sequence[Deployment], *, own: bool
) -> list[Deployment]:
    """Return deployments whose memory holds what drafts, too, as far as its size is known.

    Parameters
    ----------
    drafting
        Models that draft, by batch size as `asked`; none where no model drafts.
    own
        Whether the model's own layer drafts.
    """
    found = []
    for place, each in enumerate(asked):
        memory = each.memory
        if memory is not None and own:
            memory = memory.with_drafter(_own_memory(memory, each))
        elif memory is not None and drafting:
            memory = _without_chunks(memory, each, drafting[place])
            if drafter := drafting[place].memory:
                memory = memory.with_drafter(drafter)
        found.append(structs.replace(each, memory=memory))
    return found


def _own_memory(memory: Memory, deployment: Deployment) -> Memory:
    """Return what a model's own layer takes, which lies on one stage.

    Its FFN and its cache are its own; all else is as much as the model has for a layer.
    """
    formats, decoder = deployment.formats, deployment.decoder
    every, one = _ffn_bytes(decoder, formats), _ffn_bytes(own_layer(decoder), formats)
    weights = max(memory.weights_bytes - every, 0.0) / decoder.layers + one
    if deployment.drafts_plain:
        weights *= ELEMENT_BYTES[formats.plain] / ELEMENT_BYTES[deployment.main.weights]
    cached = _own_cache_bytes(deployment)
    share = (weights + cached) / (memory.weights_bytes + memory.kv_bytes)
    beside = (memory.activations_bytes + memory.engine_bytes) / memory.gpus
    return structs.replace(
        memory,
        weights_bytes=round(weights),
        kv_bytes=round(cached),
        rank_bytes=round(share * deployment.parallel.pp * memory.persistent_bytes + beside),
    )


def _ffn_bytes(decoder: Decoder, formats: Precision) -> float:
    """Return the bytes of all FFNs of a model as stored."""
    matrices = 2 if decoder.gated is False else 3
    widths = sum(width * layers for width, layers in decoder.dense_ffns)
    found = widths * decoder.d_model * ELEMENT_BYTES[formats.ffn.weights]
    if experts := decoder.experts:
        routed = experts.experts * experts.d_ff * (experts.latent or decoder.d_model)
        shared = experts.shared_d_ff * decoder.d_model
        found += decoder.moe_layers * (
            routed * ELEMENT_BYTES[formats.experts.weights]
            + shared * ELEMENT_BYTES[formats.shared_experts.weights]
        )
    return matrices * found


def _own_cache_bytes(deployment: Deployment) -> float:
    """Return what the cache of a model's own layer takes on all GPUs."""
    (kind,) = own_layer(deployment.decoder).attention
    engine = engine_of(deployment.engine.name)
    windowed = engine.keeps_windows(deployment.decoder.model_type)
    return _cache_bytes(deployment, kind, windowed=windowed)


def _cache_bytes(deployment: Deployment, kind: Kind, *, windowed: bool) -> float:
    """Return what a layer caches of positions on all GPUs."""
    formats, tp = deployment.formats, deployment.parallel.tp
    sizes = ELEMENT_BYTES[formats.kv], ELEMENT_BYTES[formats.plain]
    positions = deployment.context + 1
    rank = sum(
        cached_bytes(cache_layer(each), positions, tp, *sizes, windowed=windowed)
        for each in kept_of(kind)
    )
    return deployment.batch * tp * rank


def _without_chunks(memory: Memory, deployment: Deployment, drafter: Deployment) -> Memory:
    """Return what a model takes beside a head that drafts for it.

    vLLM then caches all positions of layers that see a chunk of them (vllm 0.33.0,
    vllm/config/vllm.py:2235-2245; since 0.14.0, the oldest read that has the rule).
    """
    if deployment.engine.name != VLLM.name or drafter.decoder.states is UNSET:
        return memory
    more = sum(
        len(kind.layers)
        * (
            _cache_bytes(deployment, kind, windowed=False)
            - _cache_bytes(deployment, kind, windowed=True)
        )
        for kind in deployment.decoder.attention
        if isinstance(kind, Grouped) and kind.chunk
    )
    parallel, batch = deployment.parallel, deployment.batch
    most = -(-batch // parallel.dp) / batch / parallel.tp
    rank, capacity = memory.rank_bytes + round(more * most / parallel.pp), memory.capacity_bytes
    return structs.replace(
        memory,
        kv_bytes=memory.kv_bytes + round(more),
        peak_bytes=memory.peak_bytes + round(more),
        rank_bytes=rank,
        fits=None if capacity is None else rank <= capacity / memory.gpus,
    )
