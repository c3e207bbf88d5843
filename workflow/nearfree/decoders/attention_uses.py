"""Attention of a decoder's layers, by kind: its products and its call, each as a module.

Latent attention is decoded absorbed: products of each head take queries into the latent's space and
values out of it, as two of each layer. Attention to entries is one module with all of its products,
as public tables measure it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from nearfree.backends.names import BackendRelease
from nearfree.backends.records import BY_NAME
from nearfree.core.modules.attention_layer import DECODE, VERIFY
from nearfree.core.modules.indexer import LOGITS, SELECT
from nearfree.core.modules.mla import ABSORBED
from nearfree.decoders.attention_kinds import (
    Compressed,
    DeltaNet,
    Grouped,
    Kind,
    Latent,
    Mamba2,
    ShortConv,
)
from nearfree.decoders.decoder import Decoder

QKV, ATTENTION, OUTPUT = "qkv projection", "attention", "output projection"
HEAD_GATES, OUTPUT_GATE = "head gates", "output gate"
LATENTS, QUERY, LATENT = "latent projection", "query projection", "latent attention"
ABSORB, RELEASE = "key absorption", "value release"
INDEX_QUERY, INDEX_KEY, INDEXER = "index query projection", "index key projection", "indexer"
SELECTION, LAYER = "index selection", "attention layer"
"""The modules of attention. Source of those of a latent: vllm 0.33.0,
vllm/model_executor/layers/attention/mla_attention.py and models/deepseek_v2.py."""
DELTA_IN, DELTA_GATES, DELTA_OUT = "state input", "state gates", "state output"
DELTA_NET, MAMBA, CONVOLUTION = "gated delta net", "Mamba-2 state", "short convolution"
STATE_CALLS = (DELTA_NET, MAMBA, CONVOLUTION)
"""Passes over a state."""
CALLS = (ATTENTION, LATENT, INDEXER, SELECTION, LAYER, *STATE_CALLS)
"""Those that read a cache or a state; all others are products."""


ENTRIES = 128
"""Positions of an entry of the layers whose curves speak of those with a window alone."""


class Part(NamedTuple):
    """A module of a layer, and what its kind says of it: fields of its setting, its window."""

    role: str
    fields: dict[str, Any]


def parts_of(decoder: Decoder, context: int, kind: Kind, backend: BackendRelease) -> Iterator[Part]:
    """Yield the modules of a layer of a kind, in the order in which they run.

    Parameters
    ----------
    decoder
        A rank's shard.
    context
        Positions L in the cache of each request; what a kind sees of them at most is its own.
    backend
        What runs attention.
    """
    if isinstance(kind, Grouped):
        yield from _grouped(decoder, context, kind, backend)
    elif isinstance(kind, Compressed):
        yield _compressed(decoder.d_model, context, kind)
    elif isinstance(kind, DeltaNet):
        yield from _delta_net(decoder, kind)
    elif isinstance(kind, Mamba2):
        yield from _mamba2(decoder, kind)
    elif isinstance(kind, ShortConv):
        yield from _short_conv(decoder.d_model, kind)
    else:
        yield from _latent(decoder.d_model, context, kind, backend)


def _product(role: str, inputs: int, outputs: int) -> Part:
    return Part(role, {"module": "gemm", "d_model": inputs, "d_ff": outputs})


def _grouped(
    decoder: Decoder, context: int, kind: Grouped, backend: BackendRelease
) -> Iterator[Part]:
    """Yield the modules of attention with grouped queries.

    Engines load the weights of keys that are values twice, and multiply by both: vllm 0.33.0,
    vllm/model_executor/models/gemma4.py:85-130; sglang 0.5.23,
    sglang/srt/models/gemma4_causal.py:1338-1347.
    """
    if kind.selected:
        yield _in_blocks(decoder.d_model, context, kind)
        return
    record, again = BY_NAME[backend.name], 0
    if record.in_model is None and kind.keys_are_values and not kind.shares:
        again = kind.kv_heads * kind.values
    yield _product(QKV, decoder.entering, kind.made + again)
    yield Part(
        ATTENTION,
        {
            "module": "attention",
            "context": min(context, kind.most or context),
            "window": kind.window,
            "heads": kind.heads,
            "kv_heads": kind.kv_heads,
            "head_dim": kind.called_dim,
            "api": record.api,
            "page_size": record.page_size,
        },
    )
    if kind.head_gates:  # vllm 0.33.0, vllm/model_executor/models/step3p5.py, Step3p5Attention
        yield _product(HEAD_GATES, decoder.entering, kind.heads)
    if kind.wide_gates:  # vllm 0.33.0, vllm/model_executor/models/afmoe.py, AfmoeAttention
        yield _product(OUTPUT_GATE, decoder.entering, kind.inputs)
    yield _product(OUTPUT, kind.inputs, decoder.d_model)


def _in_blocks(d_model: int, context: int, kind: Grouped) -> Part:
    """Return a layer of attention to selected blocks, with all of its products.

    Positions of a request are rows that choose and attend each for itself, and read the indexer's
    keys together. Source: vllm 0.33.0, vllm/models/minimax_m3/common/ops/index_topk.py:797-893 and
    sparse_attn.py:562-665.
    """
    return Part(
        LAYER,
        {
            "module": "attention_layer",
            "context": context,
            "d_model": d_model,
            "heads": kind.heads,
            "kv_heads": kind.kv_heads,
            "head_dim": kind.head_dim,
            "selected": kind.selected,
            "index_heads": kind.index_heads,
            "index_dim": kind.index_dim,
            "projected": kind.projected(d_model),
            "api": VERIFY,
        },
    )


def _latent(d_model: int, context: int, kind: Latent, backend: BackendRelease) -> Iterator[Part]:
    """Yield the modules of latent attention, its latents made whole on each rank.

    Absorbed, a head's product of [N, nope] by [nope, latent] has the weights and FLOPs of one
    matrix [nope, heads x latent], and its way back those of [heads x latent, value].
    Source: vllm 0.33.0, vllm/model_executor/models/deepseek_v2.py (fused_qkv_a_proj is replicated,
    q_b_proj and q_proj are cut by heads; the indexer's wq_b, wk and weights_proj are replicated);
    models/kimi_k3/nvidia/mla.py:205-240 (a gate is one product with the latents, cut by heads).
    """
    query = kind.heads * (kind.nope_dim + kind.rope_dim)
    gate = kind.inputs if kind.gate else 0
    yield _product(LATENTS, d_model, (kind.query_rank or 0) + kind.cached + gate)
    yield _product(QUERY, kind.query_rank or d_model, query)
    if kind.index_heads and kind.index_dim:
        width = kind.index_heads * kind.index_dim
        yield _product(INDEX_QUERY, kind.query_rank or d_model, width)
        yield _product(INDEX_KEY, d_model, kind.index_dim + kind.index_heads)
        sizes = {"heads": kind.index_heads, "head_dim": kind.index_dim, "context": context}
        apart = BY_NAME[backend.name].engine is not None  # in a kernel of its own
        yield Part(INDEXER, {"module": "indexer", "api": LOGITS if apart else None, **sizes})
        if apart:
            yield Part(SELECTION, {"module": "indexer", "api": SELECT, **sizes})
    yield _product(ABSORB, kind.nope_dim, kind.heads * kind.latent)
    yield Part(
        LATENT,
        {
            "module": "mla",
            "context": context,
            "heads": kind.heads,
            "latent": kind.latent,
            "rope_dim": kind.rope_dim,
            "nope_dim": kind.nope_dim,
            "value_dim": kind.value_dim,
            "selected": kind.selected,
            "api": ABSORBED,
            "page_size": BY_NAME[backend.name].page_size,
        },
    )
    yield _product(RELEASE, kind.heads * kind.latent, kind.value_dim)
    yield _product(OUTPUT, kind.inputs, d_model)


def _compressed(d_model: int, context: int, kind: Compressed) -> Part:
    """Return a layer of attention to entries, with all of its products.

    One with a window alone is one whose entries stand for 128 positions each, all attended to, at
    no more positions than its window: it has no entry to speak of, and its own products.
    """
    alone = kind.span is None
    return Part(
        LAYER,
        {
            "module": "attention_layer",
            "context": min(context, kind.window) if alone else context,
            "d_model": d_model,
            "heads": kind.heads,
            "latent": kind.width,
            "span": kind.span or ENTRIES,
            "selected": kind.selected,
            "index_heads": kind.index_heads,
            "index_dim": kind.index_dim,
            "projected": kind.projected(d_model),
            "api": DECODE,
        },
    )


def _delta_net(decoder: Decoder, kind: DeltaNet) -> Iterator[Part]:
    """Yield the modules of a gated delta net: three products about one pass over the state.

    Queries, keys, values and the output's gate are one product, both gates of a head another.
    Of Kimi's delta attention the first holds the rates and the narrow rows of both gates, whole on
    each rank, and the other makes these wide; of a full gate it holds all rows.
    Source: vllm 0.32.0, vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:514-532;
    sglang 0.5.23, sglang/srt/models/kimi_linear.py:299-328; vllm 0.33.0,
    vllm/models/kimi_k3/nvidia/kda.py:640-670.
    """
    if kind.rank and kind.full_gate:
        wide = kind.mixed + kind.inputs + kind.heads + kind.rank
        yield _product(DELTA_IN, decoder.d_model, wide)
        yield _product(DELTA_GATES, kind.rank, kind.inputs)
    elif kind.rank:
        wide = kind.mixed + kind.heads + 2 * kind.rank
        yield _product(DELTA_IN, decoder.d_model, wide)
        yield _product(DELTA_GATES, kind.rank, 2 * kind.inputs)
    else:
        yield _product(DELTA_IN, decoder.d_model, kind.mixed + kind.inputs)
        yield _product(DELTA_GATES, decoder.d_model, 2 * kind.heads)
    yield Part(
        DELTA_NET,
        {
            "module": "delta_net",
            "heads": kind.heads,
            "kv_heads": kind.key_heads,
            "head_dim": kind.key_dim,
            "value_dim": kind.value_dim,
            "conv": kind.conv,
            "kv_dtype": None if kind.state == decoder.dtype else kind.state,
        },
    )
    yield _product(DELTA_OUT, kind.inputs, decoder.d_model)


def _mamba2(decoder: Decoder, kind: Mamba2) -> Iterator[Part]:
    """Yield the modules of a Mamba-2 mixer: two products about one pass over the state.

    The gate of the output, what the convolution takes and a step of each head are one product.
    Source: vllm 0.33.0, vllm/model_executor/layers/mamba/mamba_mixer2.py:359-388 and 498-506.
    """
    yield _product(DELTA_IN, decoder.d_model, kind.mixed + kind.inputs + kind.heads)
    yield Part(
        MAMBA,
        {
            "module": "mamba2",
            "heads": kind.heads,
            "kv_heads": kind.groups,
            "head_dim": kind.state_dim,
            "value_dim": kind.head_dim,
            "conv": kind.conv,
            "kv_dtype": None if kind.state == decoder.dtype else kind.state,
        },
    )
    yield _product(DELTA_OUT, kind.inputs, decoder.d_model)


def _short_conv(d_model: int, kind: ShortConv) -> Iterator[Part]:
    """Yield the modules of a short convolution: two products about one pass over rows.

    Both gates and the row that is convolved are one product. Source: vllm 0.33.0,
    vllm/model_executor/layers/mamba/short_conv.py:66-79; sglang 0.5.23,
    sglang/srt/models/lfm2.py (Lfm2ShortConv).
    """
    yield _product(DELTA_IN, d_model, 3 * kind.channels)
    yield Part(CONVOLUTION, {"module": "short_conv", "d_model": kind.channels, "conv": kind.conv})
    yield _product(DELTA_OUT, kind.inputs, d_model)


class Layers(NamedTuple):
    """A module with the layers that run it; `base` is its role without kind and share."""

    role: str
    base: str
    fields: dict[str, Any]
    layers: tuple[int, ...]


def attention_layers(decoder: Decoder, context: int, backend: BackendRelease) -> Iterator[Layers]:
    """Yield the modules of attention of all kinds, each with the layers that run it.

    What is alike is one module whatever its kind, but for attention with grouped queries, whose
    kinds stay apart where the context is too short to tell them. Where a role has several, each is
    named by its kind and share: "attention, window 128, 18 of 36 layers".
    """
    found: dict[str, dict[Any, tuple[Kind, dict[str, Any], tuple[int, ...]]]] = {}
    for kind in decoder.attention:
        for role, fields in parts_of(decoder, context, kind, backend):
            alike = found.setdefault(role, {})
            key = kind if role == ATTENTION else tuple(fields.items())
            first, same, layers = alike.get(key, (kind, fields, ()))
            alike[key] = first, same, tuple(sorted((*layers, *kind.layers)))
    for base in sorted(found, key=ORDER.index):
        several = len(found[base]) > 1
        for kind, fields, layers in found[base].values():
            share = f"{base}, {kind.words}, {len(layers)} of {decoder.layers} layers"
            yield Layers(share if several else base, base, fields, layers)


ORDER = (
    QKV, LATENTS, QUERY, INDEX_QUERY, INDEX_KEY, INDEXER, SELECTION, ABSORB, ATTENTION, LATENT,
    RELEASE, HEAD_GATES, OUTPUT_GATE, OUTPUT, LAYER, DELTA_IN, DELTA_GATES, DELTA_NET, MAMBA,
    CONVOLUTION, DELTA_OUT,
)  # fmt: skip
"""The modules of attention, in the order in which they first run."""


def base_of(role: str) -> str:
    """Return what a module is in a model, whatever its kind and share."""
    return role.partition(",")[0]


LATENT_KEY, GROUPED_OUTPUT = "kv_a_proj_with_mqa", "attn.wo_a"
"""Names of matrices by which a model's attention is known: of a latent, and to entries."""
_MATRICES: dict[str, str | None] = {
    **dict.fromkeys(("o_proj", "out_proj", "dense", "attn_out"), OUTPUT),
    **dict.fromkeys(("q_a_proj", LATENT_KEY), LATENTS),
    "q_b_proj": QUERY,
    "gate_proj": OUTPUT_GATE,
    "indexer.wq_b": INDEX_QUERY,
    **dict.fromkeys(("indexer.wk", "indexer.weights_proj", "kv_b_proj", "g_proj"), None),
}
"""Modules by the ends of their matrices' names; None where weights are taken out of their format as
they are loaded: mla_attention.py:416 and deepseek_v2.py:710-718 and 860 of vllm 0.33.0."""


_STATES = {
    **dict.fromkeys(("in_proj_qkvz", "in_proj_qkv", "in_proj_z", "in_proj"), DELTA_IN),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), DELTA_IN),
    **dict.fromkeys(("out_proj", "o_proj"), DELTA_OUT),
}
"""Products of a state's mixer; gates of a delta net are a hundredth of them, and quantisers leave
them."""
_MIXERS = (".linear_attn", ".mamba", ".mixer", ".self_attn", ".conv")
"""Names of what has a state; Nemotron-H calls the pieces of all its layers by the third, Kimi's
models call what attends by the last, too."""


def state_role(name: str) -> str | None:
    """Return the role of a matrix of what keeps a state, None where it enters no large product."""
    mixer, _, leaf = name.rpartition(".")
    return _STATES.get(leaf) if mixer.endswith(_MIXERS) else None


def role_of(name: str, *, latent: bool, compressed: bool = False) -> str | None:
    """Return the role of a matrix of attention by its name, None where it enters no product.

    `latent` says that its model's keys and values come of a latent, `compressed` that it attends to
    entries: all products are one module then, and what engines leave in the plain format whatever
    the rest is in, compressors and the weights of index heads, says nothing of its format.
    """
    if ".linear_attn." in name:
        return state_role(name)
    if compressed:
        plain = ".compressor." in name or name.endswith(".weights_proj")
        return None if plain else LAYER
    if not latent and name.endswith(".g_proj"):
        return OUTPUT_GATE
    ends = [end for end in _MATRICES if name.endswith(f".{end}")]
    return _MATRICES[ends[0]] if ends else QUERY if latent else QKV
