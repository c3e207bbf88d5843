"""Modules of attention in a decoder's layers, by kind: its products and its attention call.

Latent attention is decoded in absorbed form: two products per layer, batched by head, project
queries into the latent space and values out of it. Attention to entries is one module with all of
its products, because public tables measure it so.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from nearfree.backends.names import BackendRelease
from nearfree.backends.records import BY_NAME
from nearfree.core.modules.attention import ATTENTION as ATTENTION_CALL
from nearfree.core.modules.attention_layer import ATTENTION_LAYER, DECODE, VERIFY
from nearfree.core.modules.delta_net import DELTA_NET as DELTA_STATE
from nearfree.core.modules.indexer import INDEXER as INDEXING
from nearfree.core.modules.indexer import LOGITS, SELECT
from nearfree.core.modules.mamba2 import MAMBA2
from nearfree.core.modules.mla import ABSORBED, MLA
from nearfree.core.modules.short_conv import SHORT_CONV
from nearfree.decoders.attention_kinds import Compressed, Grouped, Kind, Latent
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.state_kinds import DeltaNet, Mamba2, ShortConv

QKV, ATTENTION, OUTPUT = "qkv projection", ATTENTION_CALL.title, "output projection"
HEAD_GATES, OUTPUT_GATE = "head gates", "output gate"
LATENTS, QUERY, LATENT = "latent projection", "query projection", MLA.title
ABSORB, RELEASE = "key absorption", "value release"
EXPANSION = "key and value expansion"
INDEX_QUERY, INDEX_KEY, INDEXER = "index query projection", "index key projection", INDEXING.title
SELECTION, LAYER = "index selection", ATTENTION_LAYER.title
"""The modules of attention. Source for latent attention: vllm 0.33.0,
vllm/model_executor/layers/attention/mla_attention.py and models/deepseek_v2.py."""
DELTA_IN, DELTA_GATES, DELTA_OUT = "state input", "state gates", "state output"
DELTA_NET, MAMBA, CONVOLUTION = DELTA_STATE.title, MAMBA2.title, SHORT_CONV.title
STATE_CALLS = (DELTA_NET, MAMBA, CONVOLUTION)
"""Modules that update a state."""
CALLS = (ATTENTION, LATENT, INDEXER, SELECTION, LAYER, *STATE_CALLS)
"""Modules that read a cache or a state; all others are products."""


_SELECTING = ("selected", "index_heads", "index_dim")
ENTRIES = 128
"""Span of an entry, in positions, in the curves that stand in for layers with only a window."""


class Part(NamedTuple):
    """A module of a layer: its role, and the fields of its setting, with its window."""

    role: str
    fields: dict[str, Any]


def parts_of(decoder: Decoder, context: int, kind: Kind, backend: BackendRelease) -> Iterator[Part]:
    """Yield the modules of a layer of a kind, in the order in which they run.

    Parameters
    ----------
    decoder
        A rank's shard.
    context
        Positions L in the cache of each request; a kind's window may limit how many it sees.
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


def _sizes(kind: Kind, *names: str) -> dict[str, Any]:
    """Return fields of a kind that a setting has under the same names."""
    return {name: getattr(kind, name) for name in names}


def _grouped(
    decoder: Decoder, context: int, kind: Grouped, backend: BackendRelease
) -> Iterator[Part]:
    """Yield the modules of grouped-query attention.

    Where keys are values, engines load their weights twice and multiply by both: vllm 0.33.0,
    vllm/model_executor/models/gemma4.py:85-130; sglang 0.5.23,
    sglang/srt/models/gemma4_causal.py:1338-1347.
    """
    if kind.selected:
        yield _in_blocks(decoder.d_model, context, kind)
        return
    record, value_outputs = BY_NAME[backend.name], 0
    if record.in_model is None and kind.keys_are_values and not kind.shares:
        value_outputs = kind.kv_heads * kind.values
    first = LATENTS if kind.expansion else QKV
    yield _product(first, decoder.entering, kind.made + value_outputs)
    if kind.query_rank:  # vllm 0.33.0, vllm/model_executor/models/step3_text.py, wq
        yield _product(QUERY, kind.query_rank, kind.queries)
    if kind.expansion:  # vllm 0.33.0, vllm/model_executor/models/minicpm3.py, kv_b_proj
        width = kind.head_dim - kind.expansion.rope_dim + kind.expansion.value_dim
        yield _product(EXPANSION, kind.expansion.latent, kind.heads * width)
    yield Part(
        ATTENTION,
        {
            "module": ATTENTION_CALL.name,
            "context": min(context, kind.most or context),
            **_sizes(kind, "window", "heads", "kv_heads"),
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

    Each position of a request is a row that selects and attends separately; the rows read the
    index keys together. Source: vllm 0.33.0,
    vllm/models/minimax_m3/common/ops/index_topk.py:797-893 and sparse_attn.py:562-665.
    """
    return Part(
        LAYER,
        {
            "module": ATTENTION_LAYER.name,
            "context": context,
            "d_model": d_model,
            **_sizes(kind, "heads", "kv_heads", "head_dim", *_SELECTING),
            "projected": kind.projected(d_model),
            "api": VERIFY,
        },
    )


def _latent(d_model: int, context: int, kind: Latent, backend: BackendRelease) -> Iterator[Part]:
    """Yield the modules of latent attention; each rank makes all latents.

    In absorbed form the heads' products of [N, nope] by [nope, latent] have the weights and FLOPs
    of one matrix [nope, heads x latent], and those back have the ones of [heads x latent, value].
    Source: vllm 0.33.0, vllm/model_executor/models/deepseek_v2.py (fused_qkv_a_proj is replicated,
    q_b_proj and q_proj are sharded by heads; the indexer's wq_b, wk and weights_proj are
    replicated); models/kimi_k3/nvidia/mla.py:205-240 (a gate is one product with the latents,
    sharded by heads).
    """
    query_outputs = kind.heads * (kind.nope_dim + kind.rope_dim)
    gate_outputs = kind.inputs if kind.gate else 0
    yield _product(LATENTS, d_model, (kind.query_rank or 0) + kind.cached + gate_outputs)
    yield _product(QUERY, kind.query_rank or d_model, query_outputs)
    if kind.index_heads and kind.index_dim:
        index_outputs = kind.index_heads * kind.index_dim
        yield _product(INDEX_QUERY, kind.query_rank or d_model, index_outputs)
        yield _product(INDEX_KEY, d_model, kind.index_dim + kind.index_heads)
        sizes = {"heads": kind.index_heads, "head_dim": kind.index_dim, "context": context}
        has_selection_kernel = BY_NAME[backend.name].engine is not None
        yield Part(
            INDEXER,
            {"module": INDEXING.name, "api": LOGITS if has_selection_kernel else None, **sizes},
        )
        if has_selection_kernel:
            yield Part(SELECTION, {"module": INDEXING.name, "api": SELECT, **sizes})
    yield _product(ABSORB, kind.nope_dim, kind.heads * kind.latent)
    yield Part(
        LATENT,
        {
            "module": MLA.name,
            "context": context,
            **_sizes(kind, "heads", "latent", "rope_dim", "nope_dim", "value_dim", "selected"),
            "api": ABSORBED,
            "page_size": BY_NAME[backend.name].page_size,
        },
    )
    yield _product(RELEASE, kind.heads * kind.latent, kind.value_dim)
    if kind.head_gates:  # vllm 0.33.0, vllm/model_executor/models/bailing_moe_v3.py, g_proj
        yield _product(HEAD_GATES, d_model, kind.heads)
    yield _product(OUTPUT, kind.inputs, d_model)


def _compressed(d_model: int, context: int, kind: Compressed) -> Part:
    """Return a layer of attention to entries, with all of its products.

    A layer with only a window is described as one whose entries stand for 128 positions each, all
    attended to, with the window as the longest context: so it has hardly any entries, and its own
    products.
    """
    window_only = kind.span is None
    return Part(
        LAYER,
        {
            "module": ATTENTION_LAYER.name,
            "context": min(context, kind.window) if window_only else context,
            "d_model": d_model,
            "heads": kind.heads,
            "latent": kind.width,
            "span": kind.span or ENTRIES,
            **_sizes(kind, *_SELECTING),
            "projected": kind.projected(d_model),
            "api": DECODE,
        },
    )


def _delta_net(decoder: Decoder, kind: DeltaNet) -> Iterator[Part]:
    """Yield the modules of a gated delta net: three products and one update of the state.

    Queries, keys, values and the output's gate are one product, both gates of a head another. In
    Kimi's delta attention the first product also makes the rates and the low-rank rows of both
    gates, replicated on each rank, and the second expands these; a full gate is in the first. With
    gates per channel SGLang has one product for all (fused_qkvbfg_proj).
    Source: vllm 0.32.0, vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:514-532;
    sglang 0.5.23, sglang/srt/models/kimi_linear.py:299-328 and bailing_moe_v3.py; vllm 0.33.0,
    vllm/models/kimi_k3/nvidia/kda.py:640-670.
    """
    if kind.rank and kind.full_gate:
        outputs = kind.mixed + kind.inputs + kind.heads + kind.rank
        yield _product(DELTA_IN, decoder.d_model, outputs)
        yield _product(DELTA_GATES, kind.rank, kind.inputs)
    elif kind.channel_gates:
        yield _product(DELTA_IN, decoder.d_model, kind.mixed + kind.heads + 2 * kind.inputs)
    elif kind.rank:
        outputs = kind.mixed + kind.heads + 2 * kind.rank
        yield _product(DELTA_IN, decoder.d_model, outputs)
        yield _product(DELTA_GATES, kind.rank, 2 * kind.inputs)
    else:
        yield _product(DELTA_IN, decoder.d_model, kind.mixed + kind.inputs)
        yield _product(DELTA_GATES, decoder.d_model, 2 * kind.heads)
    yield Part(
        DELTA_NET,
        {
            "module": DELTA_STATE.name,
            "heads": kind.heads,
            "kv_heads": kind.key_heads,
            "head_dim": kind.key_dim,
            **_sizes(kind, "value_dim", "conv"),
            "kv_dtype": None if kind.state == decoder.dtype else kind.state,
        },
    )
    yield _product(DELTA_OUT, kind.inputs, decoder.d_model)


def _mamba2(decoder: Decoder, kind: Mamba2) -> Iterator[Part]:
    """Yield the modules of a Mamba-2 mixer: two products and one update of the state.

    One product makes the output's gate, the inputs of the convolution and a step size per head.
    Source: vllm 0.33.0, vllm/model_executor/layers/mamba/mamba_mixer2.py:359-388 and 498-506.
    """
    yield _product(DELTA_IN, decoder.d_model, kind.mixed + kind.inputs + kind.heads)
    yield Part(
        MAMBA,
        {
            "module": MAMBA2.name,
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
    """Yield the modules of a short convolution: two products and one pass over rows.

    One product makes both gates and the row that is convolved. Source: vllm 0.33.0,
    vllm/model_executor/layers/mamba/short_conv.py:66-79; sglang 0.5.23,
    sglang/srt/models/lfm2.py (Lfm2ShortConv).
    """
    yield _product(DELTA_IN, d_model, 3 * kind.channels)
    yield Part(
        CONVOLUTION, {"module": SHORT_CONV.name, "d_model": kind.channels, "conv": kind.conv}
    )
    yield _product(DELTA_OUT, kind.inputs, d_model)


class Layers(NamedTuple):
    """A module with the layers that run it; `base` is its role without kind and layer count."""

    role: str
    base: str
    fields: dict[str, Any]
    layers: tuple[int, ...]


def attention_layers(decoder: Decoder, context: int, backend: BackendRelease) -> Iterator[Layers]:
    """Yield the modules of attention of all kinds, each with the layers that run it.

    Equal modules of several kinds are merged, except the calls of grouped-query attention: their
    kinds stay separate even if the context is too short for their windows to differ. Where a role
    has several modules, each name gives its kind and layers: "attention, window 128, 18 of 36
    layers".
    """
    by_role: dict[str, dict[Any, tuple[Kind, dict[str, Any], tuple[int, ...]]]] = {}
    for kind in decoder.attention:
        for role, fields in parts_of(decoder, context, kind, backend):
            modules = by_role.setdefault(role, {})
            key = kind if role == ATTENTION else tuple(fields.items())
            first_kind, same_fields, layers = modules.get(key, (kind, fields, ()))
            modules[key] = first_kind, same_fields, tuple(sorted((*layers, *kind.layers)))
    for base in sorted(by_role, key=ORDER.index):
        several = len(by_role[base]) > 1
        for kind, fields, layers in by_role[base].values():
            full_name = f"{base}, {kind.words}, {len(layers)} of {decoder.layers} layers"
            yield Layers(full_name if several else base, base, fields, layers)


ORDER = (
    QKV, LATENTS, QUERY, EXPANSION, INDEX_QUERY, INDEX_KEY, INDEXER, SELECTION, ABSORB, ATTENTION,
    LATENT, RELEASE, HEAD_GATES, OUTPUT_GATE, OUTPUT, LAYER, DELTA_IN, DELTA_GATES, DELTA_NET,
    MAMBA, CONVOLUTION, DELTA_OUT,
)  # fmt: skip
"""The modules of attention, in the order in which they first run."""


def base_of(role: str) -> str:
    """Return a module's role without kind and layer count."""
    return role.partition(",")[0]


LATENT_QUERIES = "wq"
"""The name of a matrix that makes queries from a latent, which then is what q_proj makes."""
LATENT_KEY, GROUPED_OUTPUT = "kv_a_proj_with_mqa", "attn.wo_a"
"""Names of matrices that show latent attention, and attention to entries."""
_MATRICES: dict[str, str | None] = {
    **dict.fromkeys(("o_proj", "out_proj", "c_proj", "dense", "attn_out"), OUTPUT),
    **dict.fromkeys(("q_a_proj", LATENT_KEY), LATENTS),
    **dict.fromkeys(("q_b_proj", LATENT_QUERIES), QUERY),
    "gate_proj": OUTPUT_GATE,
    "indexer.wq_b": INDEX_QUERY,
    **dict.fromkeys(("indexer.wk", "indexer.weights_proj", "kv_b_proj", "g_proj"), None),
}
"""Modules by the ends of their matrices' names. None: the weights are converted from their format
on load, by mla_attention.py:416 and deepseek_v2.py:710-718 and 860 of vllm 0.33.0."""


_STATE_PRODUCTS = {
    **dict.fromkeys(("in_proj_qkvz", "in_proj_qkv", "in_proj_z", "in_proj"), DELTA_IN),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), DELTA_IN),
    **dict.fromkeys(("out_proj", "o_proj"), DELTA_OUT),
}
"""Products of state mixers. The gates of a delta net are a hundredth of them, and quantisers leave
them out."""
_MIXERS = (".linear_attn", ".mamba", ".mixer", ".self_attn", ".conv")
"""Names of state mixers. Nemotron-H uses the third for the pieces of all its layers, and Kimi's
models use `.self_attn` for attention, too."""


def state_role(name: str) -> str | None:
    """Return the role of a matrix of a state mixer, None where it enters no large product."""
    mixer, _, leaf = name.rpartition(".")
    return _STATE_PRODUCTS.get(leaf) if mixer.endswith(_MIXERS) else None


def role_of(name: str, *, latent: bool, compressed: bool = False) -> str | None:
    """Return the role of a matrix of attention by its name, None where it enters no product.

    `latent` says that the model has latent attention, `compressed` that it attends to entries. In
    the latter all products are one module; compressors and the weights of index heads do not count
    for its format, because engines always keep them unquantised.
    """
    if ".linear_attn." in name:
        return state_role(name)
    if compressed:
        unquantised = ".compressor." in name or name.endswith(".weights_proj")
        return None if unquantised else LAYER
    if not latent and name.endswith(".g_proj"):
        return OUTPUT_GATE
    ends = [end for end in _MATRICES if name.endswith(f".{end}")]
    return _MATRICES[ends[0]] if ends else QUERY if latent else QKV
