"""Memory of deployments with a drafter: a draft model, a head, or the model's own layer."""

from collections.abc import Sequence

from msgspec import UNSET, structs

from nearfree.core.precision import ELEMENT_BYTES, Precision
from nearfree.decoders.attention_kinds import Grouped, Kind
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.draft_heads import mtp_layer
from nearfree.decoders.layouts.cache import caches_of
from nearfree.decoders.ranks.engines import VLLM, engine_of
from nearfree.derive.memory import Memory, cached_bytes
from nearfree.derive.predict.forecast.deployment import Deployment


def with_drafters(
    deployments: Sequence[Deployment], drafters: Sequence[Deployment], *, own: bool
) -> list[Deployment]:
    """Return deployments with the drafter's memory added, as far as it is known.

    Parameters
    ----------
    drafters
        Deployments of the draft model or head, in the order of `deployments`; empty without one.
    own
        Whether the model's own layer drafts.
    """
    with_drafters = []
    for place, deployment in enumerate(deployments):
        memory = deployment.memory
        if memory and own:
            memory = memory.with_drafter(_own_memory(memory, deployment))
        elif memory and drafters:
            memory = _without_chunks(memory, deployment, drafters[place])
            if drafter := drafters[place].memory:
                memory = memory.with_drafter(drafter)
        with_drafters.append(structs.replace(deployment, memory=memory))
    return with_drafters


def _own_memory(memory: Memory, deployment: Deployment) -> Memory:
    """Return the memory of a model's own draft layer, which lies on one pipeline stage.

    Its FFN and its cache are computed; its other weights are taken as the model's mean per layer.
    """
    formats, decoder = deployment.formats, deployment.decoder
    all_ffn, layer_ffn = _ffn_bytes(decoder, formats), _ffn_bytes(mtp_layer(decoder), formats)
    weights = max(memory.weights_bytes - all_ffn, 0.0) / decoder.layers + layer_ffn
    if deployment.drafts_plain:
        weights *= ELEMENT_BYTES[formats.plain] / ELEMENT_BYTES[deployment.main.weights]
    (kind,) = mtp_layer(decoder).attention
    windowed = engine_of(deployment.engine.name).bounds_cache(decoder.model_type)
    cache_bytes = _cache_bytes(deployment, kind, windowed=windowed)
    share = (weights + cache_bytes) / (memory.weights_bytes + memory.kv_bytes)
    transient = (memory.activations_bytes + memory.engine_bytes) / memory.gpus
    return structs.replace(
        memory,
        weights_bytes=round(weights),
        kv_bytes=round(cache_bytes),
        rank_bytes=round(share * deployment.parallel.pp * memory.persistent_bytes + transient),
    )


def _ffn_bytes(decoder: Decoder, formats: Precision) -> float:
    """Return the bytes of all FFNs of a model as stored."""
    matrices = 2 if decoder.gated is False else 3
    widths = sum(width * layers for width, layers in decoder.dense_ffns)
    size = widths * decoder.d_model * ELEMENT_BYTES[formats.ffn.weights]
    if experts := decoder.experts:
        routed = experts.experts * experts.d_ff * (experts.latent or decoder.d_model)
        shared = experts.shared_d_ff * decoder.d_model
        size += decoder.moe_layers * (
            routed * ELEMENT_BYTES[formats.experts.weights]
            + shared * ELEMENT_BYTES[formats.shared_experts.weights]
        )
    return matrices * size


def _cache_bytes(deployment: Deployment, kind: Kind, *, windowed: bool) -> float:
    """Return the cache bytes of one layer on all GPUs."""
    formats, tp = deployment.formats, deployment.parallel.tp
    sizes = ELEMENT_BYTES[formats.kv], ELEMENT_BYTES[formats.plain]
    positions = deployment.context + 1
    rank = sum(
        cached_bytes(layer, positions, tp, *sizes, windowed=windowed) for layer in caches_of(kind)
    )
    return deployment.batch * tp * rank


def _without_chunks(memory: Memory, deployment: Deployment, drafter: Deployment) -> Memory:
    """Return the memory of a model whose drafter is a head.

    vLLM then caches all positions of layers with chunked attention (vllm 0.33.0,
    vllm/config/vllm.py:2235-2245; since 0.14.0, the oldest release read that has the rule).
    """
    if deployment.engine.name != VLLM.name or drafter.decoder.states is UNSET:
        return memory
    added_bytes = sum(
        len(kind.layers)
        * (
            _cache_bytes(deployment, kind, windowed=False)
            - _cache_bytes(deployment, kind, windowed=True)
        )
        for kind in deployment.decoder.attention
        if isinstance(kind, Grouped) and kind.chunk
    )
    parallel, batch = deployment.parallel, deployment.batch
    rank_share = -(-batch // parallel.dp) / batch / parallel.tp
    return structs.replace(
        memory,
        kv_bytes=memory.kv_bytes + round(added_bytes),
        rank_bytes=memory.rank_bytes + round(added_bytes * rank_share / parallel.pp),
    )
