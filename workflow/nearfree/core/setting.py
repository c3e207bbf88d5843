"""Settings: one module in one fixed configuration; each field is declared once, here."""

from functools import partial
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from nearfree.core.bounds import Text
from nearfree.core.names import Name
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive
from nearfree.core.routing_names import Routing
from nearfree.core.setting_field import Field, declared_fields

Module = Literal[
    "gemm", "dense_ffn", "moe_ffn", "attention", "mla", "indexer", "attention_layer", "delta_net",
    "mamba2", "short_conv", "stream_mixing", "collective", "model", "engine",
]  # fmt: skip
"""`gemm`: one matrix product, [rows, d_model] by [d_model, d_ff]. `mla`: attention whose keys and
values are products of one latent. `indexer`: the selection of the positions that a query attends
to. `attention_layer`: a layer's whole attention, from hidden state to output. `delta_net`: a pass
of new positions over the state of a gated delta net; `mamba2`: over that of a Mamba-2 mixer.
`short_conv`: a layer's convolution in place of attention. `stream_mixing`: the merging of a layer's
residual streams before a block and their split after it. `engine`: a whole forward of a real
engine; `model`: a whole forward of this project's own."""
Operation = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine", "send"
]
"""The operation of a collective. `dispatch` sends tokens to the ranks of their experts, `combine`
returns the experts' outputs; `send` goes from one pipeline stage to the next."""
Release = Annotated[str, Meta(pattern=r"^[0-9][0-9A-Za-z.+-]{0,31}$(?!\n)")]
Mask = Literal["causal", "block"]
"""The keys that a new position attends to: `causal` up to its own, `block` all L + N."""

MODULES: tuple[Module, ...] = get_args(Module)
_FFN: tuple[Module, ...] = ("dense_ffn", "moe_ffn", "model")
_EXPERTS: tuple[Module, ...] = ("moe_ffn", "model")
_ATTENTION: tuple[Module, ...] = ("attention", "model")
_LAYER: tuple[Module, ...] = ("attention_layer",)
_LATENT: tuple[Module, ...] = ("mla", *_LAYER)
_STATE: tuple[Module, ...] = ("delta_net", "mamba2")
_CONV: tuple[Module, ...] = ("short_conv",)
_STREAMS: tuple[Module, ...] = ("stream_mixing",)
_HEADED: tuple[Module, ...] = ("attention", "mla", "indexer", *_LAYER, "model")
_ENGINE: tuple[Module, ...] = ("engine",)
_CACHED: tuple[Module, ...] = (*_HEADED, *_ENGINE)
WHOLE: tuple[Module, ...] = ("model", *_ENGINE)
"""The modules that are whole forwards."""
_COLLECTIVE: tuple[Module, ...] = ("collective",)
_ROUTED: tuple[Module, ...] = (*_EXPERTS, *_COLLECTIVE)
_size = partial(Field, "shape", needed=True)
"""Declares a size that the modules with the field must give."""
_width = partial(_size, unit="elements")


class Setting(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """One module in one fixed configuration: everything but the number of positions N.

    A field that the module does not have is None. An attention setting without `mask` is causal.
    `gated` None means the kernels' default form: three matrices for experts, two for the paper's
    Dense FFN. A whole model's `backend` runs its attention.
    """

    module: Annotated[Module, Field("what", f"{', '.join(MODULES[:-1])} or {MODULES[-1]}")]
    backend: Annotated[Text, Field("what", "what ran it")]
    dtype: Annotated[Dtype, Field("what", "element type")]
    weights: Annotated[
        Dtype | None,
        Field(
            "what",
            "format of stored weights, where it is not the element type",
            modules=("gemm", *_FFN),
        ),
    ] = None
    kv_dtype: Annotated[
        Dtype | None,
        Field(
            "what",
            "format of the KV cache or of a state, where it is not the element type; of an engine,"
            " where it is not the engine's own choice",
            label="cache",
            modules=(*_HEADED, *_STATE, *_ENGINE),
        ),
    ] = None
    batch: Annotated[
        Positive, Field("axis", "requests in one forward", letter="b", needed=True)
    ] = 1
    context: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Field("axis", "cached positions a request", letter="L", modules=_CACHED, needed=True),
    ] = None
    d_model: Annotated[
        Positive | None,
        _width(
            "width of the hidden state",
            letter="d_model",
            label="hidden width",
            modules=("gemm", *_FFN, *_LAYER, *_CONV, *_STREAMS, *_COLLECTIVE),
        ),
    ] = None
    d_ff: Annotated[
        Positive | None,
        _width(
            "width of an FFN or expert", letter="d_ff", label="FFN width", modules=("gemm", *_FFN)
        ),
    ] = None
    experts: Annotated[
        Positive | None,
        _size("experts of an MoE layer", letter="E", modules=_ROUTED, spared=_COLLECTIVE),
    ] = None
    top_k: Annotated[
        Positive | None,
        Field(
            "axis",
            "experts that each token goes to",
            letter="k",
            label="experts a token",
            modules=_ROUTED,
            needed=True,
            spared=_COLLECTIVE,
        ),
    ] = None
    routing: Annotated[
        Routing | None,
        Field(
            "axis",
            "balanced, skewed, power_law:EXPONENT, loads:DIGEST or router",
            modules=_ROUTED,
            needed=True,
            spared=_COLLECTIVE,
        ),
    ] = None
    heads: Annotated[
        Positive | None,
        _size(
            "query heads, of a delta net those of values, of a Mamba-2 mixer its own",
            modules=(*_HEADED, *_STATE),
        ),
    ] = None
    kv_heads: Annotated[
        Positive | None,
        _size(
            "key and value heads, of a delta net those of keys, of a Mamba-2 mixer its groups",
            label="KV heads",
            modules=(*_ATTENTION, *_LAYER, *_STATE),
            spared=_LAYER,
        ),
    ] = None
    head_dim: Annotated[
        Positive | None,
        _width(
            "width of a head",
            label="head width",
            modules=("attention", "indexer", *_LAYER, *_STATE, "model"),
            spared=_LAYER,
        ),
    ] = None
    latent: Annotated[
        Positive | None,
        _width(
            "width of the latent that keys and values of all heads are products of",
            modules=_LATENT,
            spared=_LAYER,
        ),
    ] = None
    rope_dim: Annotated[
        Positive | None,
        _width(
            "width of the part of a key that says its position, one for all heads",
            label="rotated width",
            modules=_LATENT,
            spared=_LAYER,
        ),
    ] = None
    nope_dim: Annotated[
        Positive | None,
        _width(
            "width of the part of a head's key that is a product of the latent",
            label="unrotated width",
            modules=("mla",),
        ),
    ] = None
    value_dim: Annotated[
        Positive | None,
        _width("width of a head's value", label="value width", modules=("mla", *_STATE)),
    ] = None
    selected: Annotated[
        Positive | None,
        Field(
            "shape",
            "positions that a query attends to, where an indexer chooses them",
            label="selected positions",
            modules=_LATENT,
        ),
    ] = None
    index_heads: Annotated[
        Positive | None,
        Field("shape", "heads of the layer's indexer, where it has one", modules=_LAYER),
    ] = None
    index_dim: Annotated[
        Positive | None,
        Field(
            "shape",
            "width of the indexer's heads",
            label="index width",
            unit="elements",
            modules=_LAYER,
        ),
    ] = None
    span: Annotated[
        Positive,
        Field(
            "shape",
            "cached positions that one stored entry stands for",
            label="positions an entry",
            modules=("indexer", *_LAYER),
        ),
    ] = 1
    projected: Annotated[
        Positive | None,
        _width("weights of a layer's projections on a rank", label="projections", modules=_LAYER),
    ] = None
    conv: Annotated[
        Positive | None,
        _size(
            "positions that a convolution spans, of its own or before a state",
            label="convolution",
            modules=(*_STATE, *_CONV),
        ),
    ] = None
    streams: Annotated[
        Positive | None, _size("residual streams that a layer mixes", modules=_STREAMS)
    ] = None
    operation: Annotated[
        Operation | None,
        Field("shape", "what a collective does", modules=_COLLECTIVE, needed=True),
    ] = None
    gpus: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        _size("GPUs that take part in a collective", label="GPUs", modules=_COLLECTIVE),
    ] = None
    block_size_m: Annotated[
        Positive | None,
        Field(
            "call",
            "rows of a padded expert block, where the setting fixes it",
            label="block size",
            modules=("moe_ffn",),
        ),
    ] = None
    api: Annotated[
        Name | None,
        Field(
            "call",
            "which call of the backend, where it has several",
            modules=("attention", "mla", "indexer", *_LAYER, *_COLLECTIVE),
        ),
    ] = None
    page_size: Annotated[
        Positive | None,
        Field("call", "positions of a page of the KV cache", modules=("attention", *_LATENT)),
    ] = None
    cuda_graph: Annotated[
        bool,
        Field(
            "call",
            "whether the backend plans for a CUDA graph, which changes its tiles",
            label="CUDA graph",
            modules=("attention",),
        ),
    ] = False
    gated: Annotated[
        bool | None,
        Field(
            "shape",
            "whether an expert or FFN has three matrices, where the setting says it",
            modules=_FFN,
        ),
    ] = None
    mask: Annotated[
        Mask | None,
        Field("call", "causal or block: which keys a new position sees", modules=_HEADED),
    ] = None
    model: Annotated[
        Name | None, Field("what", "the model, where a whole forward is meant", modules=WHOLE)
    ] = None
    model_digest: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9a-f]{12}$(?!\n)")] | None,
        Field("what", "what tells models of one name apart", modules=WHOLE),
    ] = None
    release: Annotated[
        Release | None, Field("what", "the release of an engine", modules=_ENGINE, needed=True)
    ] = None
    file_type: Annotated[
        Name | None,
        Field(
            "what",
            "GGUF's name of the formats that an engine's weights are stored in",
            label="file type",
            modules=_ENGINE,
            needed=True,
        ),
    ] = None
    threads: Annotated[
        Positive | None,
        Field("axis", "CPU threads of an engine's forward", modules=_ENGINE, needed=True),
    ] = None
    repack: Annotated[
        bool | None,
        Field(
            "call",
            "whether an engine may store weights in an order of its own",
            label="repacked",
            modules=_ENGINE,
        ),
    ] = None
    moe: Annotated[
        Name | None,
        Field(
            "what", "what runs a model's routed experts", label="MoE kernels", modules=("model",)
        ),
    ] = None
    tp: Annotated[
        Positive, Field("shape", "GPUs that share each matrix and the heads", modules=("model",))
    ] = 1
    dp: Annotated[
        Positive, Field("shape", "groups that attend to requests of their own", modules=("model",))
    ] = 1
    ep: Annotated[
        Positive, Field("shape", "groups of ranks that have whole experts", modules=_EXPERTS)
    ] = 1
    pp: Annotated[
        Positive, Field("shape", "pipeline stages that share the layers", modules=("model",))
    ] = 1


FIELDS = declared_fields(Setting, MODULES)
"""Every field of a setting by name, in the order of tables."""


STORED = ("weights", "kv_dtype")
"""The fields that name a storage format other than the element type."""
