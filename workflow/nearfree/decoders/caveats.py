"""What T(N) of a decoder's forward leaves out, and where the curves are of something near it."""

from collections.abc import Iterator

from msgspec import UNSET

from nearfree.decoders.attention_kinds import Compressed, Grouped, ShortConv, State
from nearfree.decoders.attention_uses import ENTRIES
from nearfree.decoders.decoder import Decoder

_WIDEST = 256
"""Elements of the widest head of FlashAttention 3."""


def caveats(decoder: Decoder) -> tuple[str, ...]:
    """Return what is left out of a forward, or stands for something near it, each once.

    An engine decodes as many positions as it drafts, each as a row of its own (vllm 0.32.0,
    vllm/models/deepseek_v4/sparse_mla.py:138); public curves of decoding whole layers are of one
    position of each of several requests.
    """
    said = (
        *sorted(_wide_keys(decoder)),
        *_wide_heads(decoder),
        *_chunks(decoder),
        *_layers(decoder),
        *_kinds(decoder),
        *_beside(decoder),
    )
    return tuple(dict.fromkeys(said))


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
    """Yield what runs wide heads on Hopper: vllm/model_executor/models/config.py of 0.24.0."""
    wide = {kind.head_dim for kind in decoder.attention if isinstance(kind, Grouped)}
    if max(wide, default=0) > _WIDEST:
        yield (
            f"on Hopper vLLM runs heads of {max(wide)} elements from 0.24.0 on by FlashAttention "
            "4, whose tile for such heads is not read"
        )


def _chunks(decoder: Decoder) -> Iterator[str]:
    for kind in decoder.attention:
        if isinstance(kind, Grouped) and kind.chunk:
            yield (
                f"{len(kind.layers)} of {decoder.layers} layers are timed as if a request had "
                f"filled its chunk of {kind.chunk} positions where the context is as long: at any "
                "other place in a chunk it sees fewer, half of them in the mean"
            )


def _layers(decoder: Decoder) -> Iterator[str]:
    if decoder.residual_block is not UNSET:
        yield f"what layers take of each {decoder.residual_block} layers before them is not timed"
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
    for kind in decoder.attention:
        if isinstance(kind, Compressed) and kind.span is None:
            yield (
                f"{len(kind.layers)} of {decoder.layers} layers ({kind.words}) are taken for ones "
                f"with entries of {ENTRIES} positions, of which they have none"
            )


def _beside(decoder: Decoder) -> Iterator[str]:
    """Yield which parts of a layer run beside each other.

    Source: vllm 0.33.0, vllm/envs.py:2136 and vllm/model_executor/models/cohere2_moe.py:476-520;
    sglang 0.5.23, sglang/srt/models/cohere2_moe.py:420-449.
    """
    if decoder.model_type == "cohere2_moe":
        yield (
            "a layer's attention and FFN are timed one after the other: vLLM from 0.33.0 on runs "
            "them beside each other in steps of up to 256 tokens, SGLang in those of one position"
        )
