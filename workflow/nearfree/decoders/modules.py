"""The modules that a decoder's forward runs, each as a setting, and how often each runs."""

from functools import partial
from typing import Any

from msgspec import Struct, structs

from nearfree.backends.names import BackendRelease
from nearfree.backends.records import engine_backend
from nearfree.core.modules.attention_layer import ATTENTION_LAYER
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.core.precision import PLAIN, Dtype, Precision, uniform
from nearfree.core.routing_names import Routing
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.decoders.attention_uses import ATTENTION as ATTENTION  # noqa: PLC0414
from nearfree.decoders.attention_uses import (
    CALLS,
    DELTA_IN,
    DELTA_OUT,
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
from nearfree.decoders.attention_uses import OUTPUT as OUTPUT  # noqa: PLC0414
from nearfree.decoders.attention_uses import QKV as QKV  # noqa: PLC0414
from nearfree.decoders.decoder import Decoder, Experts, keeping_states
from nearfree.decoders.engines import engine_of
from nearfree.decoders.shards import shard
from nearfree.errors import ConfigError

BETWEEN, HOST = "between", "host"
"""What is no module: embedding, norms, rotations, writing to the cache, and sums; and what the host
of an engine takes of a step: scheduling, sampling, bringing tokens to requests."""
DENSE, ROUTER, MOE, SHARED = "Dense FFN", "router", "MoE FFN", "shared experts"
INPUTS, INPUT_GATE, INPUT_OUTPUT = "layer inputs", "layer input gate", "layer input projection"
LATENT_IN, LATENT_OUT = "expert latent", "expert latent output"
MIXING = "mixing of streams"
HEAD = "LM head"
"""The modules of a forward behind attention, in the order in which they first run."""
STATES = "states projection"
"""The first module of a drafter's head."""
MATRICES = {
    **dict.fromkeys(
        (QKV, LATENTS, QUERY, INDEX_QUERY, OUTPUT_GATE, OUTPUT, DELTA_IN, DELTA_OUT), "attention"
    ),
    **dict.fromkeys((DENSE, LATENT_IN, LATENT_OUT), "ffn"),
    ROUTER: "router",
    MOE: "experts",
    SHARED: "shared_experts",
    HEAD: "lm_head",
}
"""The kind of matrices that a module multiplies by, as a precision names it; all others are in
the model's own element type."""
_BESIDE = (INDEXER, SELECTION, *STATE_CALLS)
"""Calls that the paper's laws do not speak of."""
_INDEX_FORMAT: Dtype = "float8"
"""In what numbers indexers compare and cache: vllm 0.33.0, vllm/model_executor/layers/
sparse_attn_indexer.py."""


class Laps:
    """What a forward reports its modules to; this one keeps nothing."""

    def lap(self, role: str) -> None:
        """Take in that all since the lap before belongs to a module."""


UNTOLD = Laps()
_TORCH = BackendRelease("torch")
"""What runs all but attention, the routed experts and an engine's products of quantised weights."""


class ModuleUse(Struct, frozen=True, kw_only=True):
    """One module of a forward.

    `role` says what it is in the model, `count` how often a forward runs it. `main` holds for the
    modules that the paper's law speaks of: attention, and the FFN of most layers. Its setting has
    the requests of one of the `groups` of ranks that share all requests. A position of attention
    sees the last `window` ones, all where it is None. The GPUs of a collective lie on `nodes`, on
    as few as hold them where it is None, and `fewest` of them on one.
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
    """Return the requests of the group of ranks that has most."""
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

    Query, key and value are one product. The LM head computes the logits of all positions.
    Inputs of layers' own are made at once; a rank makes its part, as vLLM's does. A drafter's head
    makes its states whole on every rank, at once too.
    Embeddings, norms, rotations, activations and sums are left out. Over several GPUs each module
    has the sizes of a rank's shard and runs the same kernels. Pipeline stages run one after the
    other for a forward, so all layers count: the slowest stage limits how many forwards are under
    way, not how long one takes. Products into the latent of routed experts and out of it are whole
    on every rank (vllm 0.33.0, vllm/model_executor/models/nemotron_h.py:196-212).

    Parameters
    ----------
    decoder
        The model.
    batch
        Requests b, at least one.
    context
        Positions L in the KV cache of each; a model's window shortens it.
    attention
        What runs attention.
    moe
        What runs the routed experts; not asked for where there are none.
    routing
        How tokens fall on experts; not asked for where there are none.
    dense
        What runs the dense products of quantised weights; torch if None.
    precision
        In what numbers it computes; all in the decoder's own dtype if None.
    parallel
        How it is spread over GPUs: sizes that the engine of `moe` can cut, as `refusals` says.

    Raises
    ------
    ConfigError
        The decoder has experts, and `moe` or `routing` is None.
    """
    engine, formats = engine_of(moe.name if moe else None), precision or uniform(decoder.dtype)
    whole, part = decoder, shard(decoder, parallel, engine)
    decoder = keeping_states(structs.replace(part.decoder, dtype=formats.plain), engine.states)
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
        taken = _own_layer(moe) if decoder.in_blocks and base == LAYER else attention
        run = multiply
        if base in CALLS:
            run = partial(use, backend=taken, main=base not in _BESIDE)
        run = partial(run, base=base, groups=part.attention, **fields)
        for own, alike in formats.split_by_format(base, layers):
            name = role if own is formats else _named(role, own, len(alike), decoder.layers)
            uses += [run(name, len(alike), precision=own)] if alike else []
    for (width, many), (d_ff, _) in zip(whole.dense_ffns, decoder.dense_ffns, strict=True):
        several = len(whole.dense_ffns) > 1
        name = f"{DENSE}, {width} wide, {many} of {decoder.layers} layers" if several else DENSE
        uses.append(ffn(name, many, base=DENSE, main=not decoder.moe_layers, d_ff=d_ff))
    if decoder.experts:
        experts, moe_layers = decoder.experts, decoder.moe_layers
        latent, product = experts.latent or None, partial(gemm, groups=part.ready)
        uses.append(product(ROUTER, moe_layers, d_model=d_model, d_ff=experts.experts))
        if latent:
            uses.append(product(LATENT_IN, moe_layers, d_model=d_model, d_ff=latent))
        uses.append(
            use(
                MOE,
                moe_layers,
                backend=_required(moe, whole, experts),
                main=True,
                module="moe_ffn",
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
        every = -(-decoder.layers * width // parallel.tp)
        uses += [
            gemm(INPUTS, 1, d_model=d_model, d_ff=every, groups=part.ffn),
            gemm(INPUT_GATE, decoder.layers, d_model=d_model, d_ff=width, groups=part.ffn),
            gemm(INPUT_OUTPUT, decoder.layers, d_model=width, d_ff=d_model, groups=part.ffn),
        ]
    if decoder.streams:  # before and behind attention and the FFN
        mixed = {"module": "stream_mixing", "d_model": d_model, "streams": decoder.streams}
        groups = part.attention
        uses.append(call(MIXING, 2 * decoder.layers, groups=groups, **mixed))
    uses.append(gemm(HEAD, 1, d_model=d_model, d_ff=decoder.vocabulary, groups=part.ffn))
    return tuple(uses)


def _own_layer(moe: BackendRelease | None) -> BackendRelease:
    """Return what runs attention to selected blocks, whatever runs the rest: the engine's own."""
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


def _named(role: str, formats: Precision, layers: int, of: int) -> str:
    """Return what a product of some layers is called whose weights are in a format of their own."""
    weights = formats.formats_of("attention", base_of(role)).weights
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
    """Return dense products: an engine's own where weights are quantised, torch's elsewhere."""
    matrices = MATRICES.get(base or role)
    formats = matrices and precision.formats_of(matrices, base or role)
    quantised = formats and formats.weights not in PLAIN
    backend = dense if quantised else _TORCH
    return _use(role, count, backend=backend, precision=precision, base=base, **fields)


def layer_format(precision: Precision) -> Dtype:
    """Return the format by which curves know an attention layer: mxfp8 as blocks of float8."""
    weights = precision.formats_of("attention", LAYER).weights
    return "float8_block" if weights == "mxfp8" else weights


def _formats(role: str, precision: Precision) -> dict[str, Any]:
    """Return a setting's formats: those that are not its element type are said beside it."""
    if role in (INDEXER, SELECTION):
        return {"dtype": _INDEX_FORMAT}
    if role in STATE_CALLS:  # its fields say what its state is in
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
            f"{decoder.name} has {experts.experts} experts, and what runs them is not said",
            remedy="Give --moe, such as --moe vllm==0.20.2",
        )
    return moe
