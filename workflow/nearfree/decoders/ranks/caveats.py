"""Caveats of a decoder's T(N): what it leaves out, and where curves of similar work stand in."""

from collections.abc import Iterator

from msgspec import UNSET

from nearfree.decoders.attention_kinds import Compressed, Grouped
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.attention_uses import ENTRIES
from nearfree.decoders.state_kinds import DeltaNet, ShortConv, State

_WIDEST = 256
"""Width of the widest head of FlashAttention 3, in elements."""


def caveats(decoder: Decoder) -> tuple[str, ...]:
    """Return a sentence for each part of a forward that is left out or approximated.

    Engines verify drafts with each position as a row of its own (vllm 0.32.0,
    vllm/models/deepseek_v4/sparse_mla.py:138), but public curves of decoding whole layers have one
    position of each of several requests.
    """
    sentences = (
        *sorted(_wide_keys(decoder)),
        *_wide_heads(decoder),
        *_biased(decoder),
        *_chunks(decoder),
        *_layers(decoder),
        *_kinds(decoder),
        *_idle(decoder),
        *_beside(decoder),
    )
    return tuple(dict.fromkeys(sentences))


def _wide_keys(decoder: Decoder) -> Iterator[str]:
    for kind in decoder.attention:
        if isinstance(kind, Grouped) and kind.value_dim:
            yield (
                f"attention with keys of {kind.head_dim} elements and values of {kind.value_dim} "
                f"is timed as of {kind.called_dim} for both, whose bytes and FLOPs are the same; "
                "on Blackwell engines, and on Hopper vLLM from 0.22.0 on where heads have sinks, "
                "run FlashAttention 4 for it, whose tile for such heads is not read"
            )


def _wide_heads(decoder: Decoder) -> Iterator[str]:
    """Yield the kernel of wide heads on Hopper: vllm/model_executor/models/config.py of 0.24.0."""
    wide = {kind.head_dim for kind in decoder.attention if isinstance(kind, Grouped)}
    if max(wide, default=0) > _WIDEST:
        yield (
            f"on Hopper vLLM runs heads of {max(wide)} elements from 0.24.0 on by FlashAttention "
            "4, whose tile for such heads is not read"
        )


def _biased(decoder: Decoder) -> Iterator[str]:
    if any(isinstance(kind, Grouped) and kind.alibi for kind in decoder.attention):
        yield (
            "the bias of logits by distance (ALiBi) is not timed; vLLM runs it by FlashAttention "
            "2, and whether by FlashInfer on data-centre Blackwell is not read"
        )


def _chunks(decoder: Decoder) -> Iterator[str]:
    for kind in decoder.attention:
        if isinstance(kind, Grouped) and kind.chunk:
            yield (
                f"{len(kind.layers)} of {decoder.layers} layers are timed as if a request had "
                f"filled its chunk of {kind.chunk} positions where the context is as long; "
                "elsewhere in a chunk it sees fewer positions, half of them on average"
            )


def _layers(decoder: Decoder) -> Iterator[str]:
    if decoder.residual_block is not UNSET:
        yield (
            f"the attention of layers to the outputs of each {decoder.residual_block} layers "
            "before them is not timed"
        )
    if decoder.altup:
        yield (
            f"of the mixing of {decoder.altup.states} states before and behind each layer the "
            "products are timed, and what adds them up by row is not"
        )
        yield (
            "layers that attend to the cache of others make queries alone, as in vLLM 0.33.0: "
            "older releases and SGLang make keys and values, too, which they drop, and SGLang's "
            "cache has room for all layers"
        )
    if any(isinstance(kind, Compressed) for kind in decoder.attention):
        yield (
            "attention layers of several positions are timed as one position of as many "
            "requests, whose index keys and entries no two share"
        )
    if decoder.in_blocks:
        yield (
            "attention layers over selected blocks are timed as one position of as many requests, "
            "less the index keys that positions of one request read together"
        )


def _kinds(decoder: Decoder) -> Iterator[str]:
    for kind in decoder.attention:
        if isinstance(kind, ShortConv):
            yield (
                f"{len(kind.layers)} of {decoder.layers} layers ({kind.words}) are timed by two "
                "products and the bytes of their rows, which no curve holds; their gates are left "
                "to what is between modules"
            )
        elif isinstance(kind, State):
            yield (
                f"{len(kind.layers)} of {decoder.layers} layers ({kind.words}) are timed by the "
                "bytes of their states, one more written for each further position, which no "
                "curve of several positions holds; their norms and gates are left out"
            )
    if any(isinstance(kind, Grouped) and kind.expansion for kind in decoder.attention):
        yield (
            "latents of queries and those of keys and values are timed as one product: vLLM runs "
            "two"
        )
    if decoder.model_type == "olmo_hybrid":
        yield (
            "both gates of a gated delta net are timed as one product: vLLM runs two, each with as "
            "many outputs as there are heads of values"
        )
    if any(isinstance(kind, DeltaNet) and kind.channel_gates for kind in decoder.attention):
        yield (
            "queries, keys, values and gates of delta attention are timed as one product, as in "
            "SGLang: vLLM runs three"
        )
    for kind in decoder.attention:
        if isinstance(kind, Compressed) and kind.span is None:
            yield (
                f"{len(kind.layers)} of {decoder.layers} layers ({kind.words}) are timed as layers "
                f"with entries of {ENTRIES} positions, which they do not have"
            )


def _idle(decoder: Decoder) -> Iterator[str]:
    if decoder.experts and decoder.experts.idle:
        yield (
            f"positions are taken to choose {decoder.experts.idle} idle experts as often as "
            f"others, which leaves each {decoder.experts.top_k} that compute"
        )


def _beside(decoder: Decoder) -> Iterator[str]:
    """Yield the parts of a layer that engines run in parallel, or sum as one.

    Source: vllm 0.33.0, vllm/envs.py:2136 and vllm/model_executor/models/cohere2_moe.py:476-520;
    sglang 0.5.23, sglang/srt/models/cohere2_moe.py:420-449 and step3_vl.py:336-400.
    """
    if decoder.model_type == "step3_text":
        yield (
            "over several GPUs the Dense FFN beside the experts has an all-reduce of its own, as "
            "in vLLM: SGLang has one for both"
        )
    if decoder.model_type == "cohere2_moe":
        yield (
            "a layer's attention and FFN are timed one after the other: vLLM from 0.33.0 on runs "
            "them in parallel in steps of up to 256 tokens, SGLang in steps of one position"
        )
