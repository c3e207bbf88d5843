"""The modules of a decoder's forward, each as a setting with its count per forward."""

from functools import partial
from typing import Any

from msgspec import Struct, structs

from nearfree.backends.names import BackendRelease
from nearfree.backends.records import engine_backend
from nearfree.core.modules.attention_layer import ATTENTION_LAYER
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.core.modules.stream_mixing import STREAM_MIXING
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.core.precision import PLAIN, Dtype, Precision, uniform
from nearfree.core.routing_names import Routing
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.decoders.altup import altup_products
from nearfree.decoders.decoder import Decoder, Experts, with_state_dtype
from nearfree.decoders.layouts.pieces import OF_ATTENTION
from nearfree.decoders.ranks.attention_uses import ATTENTION as ATTENTION  # noqa: PLC0414
from nearfree.decoders.ranks.attention_uses import (
    CALLS,
    DELTA_IN,
    DELTA_OUT,
    EXPANSION,
    INDEX_QUERY,
    INDEXER,
    LATENTS,
    LAYER,
    OUTPUT_GATE,
    QUERY,
    SELECTION,
    STATE_CALLS,
    attention_layers,
    base_of,
)
from nearfree.decoders.ranks.attention_uses import OUTPUT as OUTPUT  # noqa: PLC0414
from nearfree.decoders.ranks.attention_uses import QKV as QKV  # noqa: PLC0414
from nearfree.decoders.ranks.engines import engine_of
from nearfree.decoders.ranks.shards import shard
from nearfree.errors import ConfigError

BETWEEN, HOST = "between", "host"
"""Parts of a step that are no modules. BETWEEN: embedding, norms, rotations, writes to the cache,
and sums. HOST: the engine's work on the host, such as scheduling, sampling and output."""
DENSE, ROUTER, MOE, SHARED = "Dense FFN", "router", MOE_FFN.title, "shared experts"
INPUTS, INPUT_GATE, INPUT_OUTPUT = "layer inputs", "layer input gate", "layer input projection"
LATENT_IN, LATENT_OUT = "expert latent", "expert latent output"
MIXING = STREAM_MIXING.title
HEAD = "LM head"
"""The modules of a forward after attention, in the order in which they first run."""
STATES = "states projection"
"""The first module of a drafter's head."""
MATRICES = {
    **dict.fromkeys(
        (QKV, LATENTS, QUERY, EXPANSION, INDEX_QUERY, OUTPUT_GATE, OUTPUT, DELTA_IN, DELTA_OUT),
        OF_ATTENTION,
    ),
    **dict.fromkeys((DENSE, LATENT_IN, LATENT_OUT), "ffn"),
    ROUTER: "router",
    MOE: "experts",
    SHARED: "shared_experts",
    HEAD: "lm_head",
}
"""The kind of matrices that a module multiplies by, as a precision names it. Matrices of all other
modules are in the model's element type."""
_OUTSIDE_LAWS = (INDEXER, SELECTION, *STATE_CALLS)
"""Calls that the paper's laws do not cover."""
_INDEX_FORMAT: Dtype = "float8"
"""The dtype in which indexers compare and cache: vllm 0.33.0, vllm/model_executor/layers/
sparse_attn_indexer.py."""


class Laps:
    """A lap timer to which a forward reports its modules; this one ignores the reports."""

    def lap(self, role: str) -> None:
        """Record that the work since the previous lap belongs to the module `role`."""


NO_LAPS = Laps()
_TORCH = BackendRelease("torch")
"""The backend of all modules except attention, routed experts and quantised products of engines."""


class ModuleUse(Struct, frozen=True, kw_only=True):
    """One module of a forward.

    `role` is its role in the model, `count` the number of times that a forward runs it. `main`
    marks the modules that the paper's law covers: attention, and the FFN of most layers. All
    requests are divided among `groups` of ranks; the setting has the requests of one group. A
    position of attention sees the last `window` positions, all if it is None. The GPUs of a
    collective are on `nodes` nodes (None: on as few as hold them), of which one has `fewest`.
    """

    role: str
    count: int
    setting: Setting
    backend_version: str | None
    main: bool = False
    groups: int = 1
    window: int | None = None
    nodes: int | None = None
    fewest: int | None = None


def requests(batch: int, groups: int) -> int:
    """Return the number of requests in the group of ranks with most of them."""
    return -(-batch // groups)


def modules(
    decoder: Decoder,
    *,
    batch: int,
    context: int,
    attention: BackendRelease,
    moe: BackendRelease | None,
    routing: Routing | None,
    dense: BackendRelease | None = None,
    precision: Precision | None = None,
    parallel: Parallel = ONE_GPU,
) -> tuple[ModuleUse, ...]:
    """Return the modules of the slowest rank's forward, in the order in which they first run.

    Query, key and value are one product. The LM head computes the logits of all positions. The
    per-layer inputs of all layers are one product, sharded over ranks as in vLLM. The projection of
    states for a drafter's head is one product, too, replicated on every rank. Embeddings, norms,
    rotations, activations and sums are left out. Over several GPUs each module has the sizes of a
    rank's shard and runs the same kernels. A forward passes the pipeline stages one after the
    other, so all layers count: the slowest stage limits the throughput of forwards, not their
    latency. Products into and out of the latent of routed experts are replicated on every rank
    (vllm 0.33.0, vllm/model_executor/models/nemotron_h.py:196-212).

    Parameters
    ----------
    batch
        Requests b, at least one.
    context
        Positions L in the KV cache of each request; a model's window may limit them.
    moe
        The backend of the routed experts; needed only if there are any.
    routing
        The distribution of tokens over experts; needed only if there are any.
    dense
        The backend of dense products with quantised weights; torch if None.
    precision
        The formats of weights, activations and cache; all in the decoder's dtype if None.
    parallel
        How the model is spread over GPUs: sizes that `refusals` accepts for the engine of `moe`.

    Raises
    ------
    ConfigError
        The decoder has experts, and `moe` or `routing` is None.
    """
    engine, formats = engine_of(moe.name if moe else None), precision or uniform(decoder.dtype)
    whole, part = decoder, shard(decoder, parallel, engine)
    decoder = with_state_dtype(
        structs.replace(part.decoder, dtype=formats.plain), engine.state_dtype
    )
    use = partial(_use, precision=formats, batch=batch)
    multiply = partial(_product, precision=formats, batch=batch, dense=dense or _TORCH)
    gemm = partial(multiply, module="gemm")
    d_model, gated = decoder.d_model, decoder.gated is not False
    ffn = partial(multiply, module="dense_ffn", d_model=d_model, gated=gated, groups=part.ffn)
    uses = list[ModuleUse]()
    if decoder.states:
        width = decoder.states.width * max(decoder.states.layers, 2)
        uses.append(gemm(STATES, 1, d_model=width, d_ff=d_model, groups=part.attention))
    call = partial(use, backend=attention)
    for role, base, fields, layers in attention_layers(decoder, context, attention):
        backend = _block_attention(moe) if decoder.in_blocks and base == LAYER else attention
        make = multiply
        if base in CALLS:
            make = partial(use, backend=backend, main=base not in _OUTSIDE_LAWS)
        make = partial(make, base=base, groups=part.attention, **fields)
        for own_formats, sharing in formats.split_by_format(base, layers):
            name = role
            if own_formats is not formats:
                name = _name_with_format(role, own_formats, len(sharing), decoder.layers)
            uses += [make(name, len(sharing), precision=own_formats)] if sharing else []
    for (width, count), (d_ff, _) in zip(whole.dense_ffns, decoder.dense_ffns, strict=True):
        several = len(whole.dense_ffns) > 1
        name = f"{DENSE}, {width} wide, {count} of {decoder.layers} layers" if several else DENSE
        uses.append(ffn(name, count, base=DENSE, main=not decoder.moe_layers, d_ff=d_ff))
    if decoder.experts:
        experts, moe_layers = decoder.experts, decoder.moe_layers
        latent, product = experts.latent or None, partial(gemm, groups=part.ready)
        outputs = experts.experts + (experts.idle or 0)
        uses.append(product(ROUTER, moe_layers, d_model=d_model, d_ff=outputs))
        if latent:
            uses.append(product(LATENT_IN, moe_layers, d_model=d_model, d_ff=latent))
        uses.append(
            use(
                MOE,
                moe_layers,
                backend=_required(moe, whole, experts),
                main=True,
                module=MOE_FFN.name,
                d_model=latent or d_model,
                d_ff=experts.d_ff,
                experts=experts.experts,
                top_k=experts.top_k,
                ep=part.ep,
                routing=routing,
                gated=None if gated else False,
            )
        )
        if latent:
            uses.append(product(LATENT_OUT, moe_layers, d_model=latent, d_ff=d_model))
        if experts.shared_d_ff:
            d_ff = experts.shared_d_ff
            uses.append(ffn(SHARED, moe_layers, d_ff=d_ff, groups=part.ready))
    if decoder.layer_inputs:
        width = decoder.layer_inputs
        all_inputs = -(-decoder.layers * width // parallel.tp)
        uses += [
            gemm(INPUTS, 1, d_model=d_model, d_ff=all_inputs, groups=part.ffn),
            gemm(INPUT_GATE, decoder.layers, d_model=d_model, d_ff=width, groups=part.ffn),
            gemm(INPUT_OUTPUT, decoder.layers, d_model=width, d_ff=d_model, groups=part.ffn),
        ]
    uses += [
        gemm(role, count, d_model=inputs, d_ff=outputs, groups=part.ffn)
        for role, count, inputs, outputs in altup_products(
            decoder.altup or None, d_model, decoder.layers, parallel.tp
        )
    ]
    if decoder.streams:  # once for attention and once for the FFN
        mixing = {"module": STREAM_MIXING.name, "d_model": d_model, "streams": decoder.streams}
        groups = part.attention
        uses.append(call(MIXING, 2 * decoder.layers, groups=groups, **mixing))
    uses.append(gemm(HEAD, 1, d_model=d_model, d_ff=decoder.vocabulary, groups=part.ffn))
    return tuple(uses)


def _block_attention(moe: BackendRelease | None) -> BackendRelease:
    """Return the backend of attention to selected blocks: the engine's own, else torch."""
    engine = engine_of(moe.name if moe else None)
    own = engine_backend(engine.name, ATTENTION_LAYER.name)
    return BackendRelease(own.name, moe.version if moe else None) if own else _TORCH


def _use(
    role: str,
    count: int,
    *,
    backend: BackendRelease,
    precision: Precision,
    batch: int,
    base: str = "",
    main: bool = False,
    groups: int = 1,
    window: int | None = None,
    **fields: Any,
) -> ModuleUse:
    formats = _formats(base or role, precision)
    setting = Setting(backend=backend.name, batch=requests(batch, groups), **formats, **fields)
    check_setting(setting)
    return ModuleUse(
        role=role,
        count=count,
        setting=setting,
        backend_version=backend.version,
        main=main,
        groups=groups,
        window=window,
    )


def _name_with_format(role: str, formats: Precision, layers: int, of: int) -> str:
    """Return the name of a product in layers whose weights have a format of their own."""
    weights = formats.formats_of(MATRICES[QKV], base_of(role)).weights
    return f"{role}, weights in {weights}, {layers} of {of} layers"


def _product(
    role: str,
    count: int,
    *,
    precision: Precision,
    dense: BackendRelease,
    base: str = "",
    **fields: Any,
) -> ModuleUse:
    """Return a dense product: run by the engine if its weights are quantised, else by torch."""
    matrices = MATRICES.get(base or role)
    formats = matrices and precision.formats_of(matrices, base or role)
    quantised = formats and formats.weights not in PLAIN
    backend = dense if quantised else _TORCH
    return _use(role, count, backend=backend, precision=precision, base=base, **fields)


def layer_format(precision: Precision) -> Dtype:
    """Return the format under which curves record an attention layer: mxfp8 as float8 blocks."""
    weights = layer_weights(precision)
    return "float8_block" if weights == "mxfp8" else weights


def layer_weights(precision: Precision) -> Dtype:
    """Return the format that the weights of an attention layer are stored in."""
    return precision.formats_of(MATRICES[QKV], LAYER).weights


def _formats(role: str, precision: Precision) -> dict[str, Any]:
    """Return a setting's formats; weights and cache are given only if they differ from `dtype`."""
    if role in (INDEXER, SELECTION):
        return {"dtype": _INDEX_FORMAT}
    if role in STATE_CALLS:  # other fields give the dtype of the state
        return {"dtype": precision.plain}
    if role == LAYER:
        weights, kv = layer_format(precision), precision.kv
        return {"dtype": weights, "kv_dtype": None if kv == weights else kv}
    if role in CALLS:
        kv = precision.kv
        return {"dtype": precision.plain, "kv_dtype": None if kv == precision.plain else kv}
    if role not in MATRICES:
        return {"dtype": precision.plain}
    weights, activations = precision.formats_of(MATRICES[role], role)
    return {"dtype": activations, "weights": None if weights == activations else weights}


def _required(moe: BackendRelease | None, decoder: Decoder, experts: Experts) -> BackendRelease:
    if moe is None:
        raise ConfigError(
            f"{decoder.name} has {experts.experts} experts, and no backend is given for them",
            remedy="Give --moe, such as --moe vllm==0.20.2",
        )
    return moe
