"""Layers that only one model type has."""

from collections.abc import Sequence
from typing import Any

from nearfree.decoders.decoder import Ffn, head_width, unwindowed
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import (
    FUSED,
    GATED,
    Names,
    all_layers,
    ffn,
    first_sharing_layer,
    gemma4_moe,
    moe,
    moe_rule,
)
from nearfree.decoders.layouts.mixers import Heads, gqa, heads, window_of
from nearfree.decoders.layouts.pieces import (
    Layer,
    Matrix,
    Piece,
    Plan,
    by_kind,
    combined,
    in_every_layer,
    joined,
    linear,
    norms,
    one_per_period,
    vector,
)
from nearfree.errors import Refusals

BOTH: dict[str, Any] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
"""Arguments of attention whose four products have a bias if `attention_bias` says so."""
WINDOW = window_of("sliding_window")


_WITHOUT, _INPUTS = "Give a model of Gemma 4 without it", "hidden_size_per_layer_input"


def gemma4_attention(keys: Keys, layers: int) -> Layer:
    """Read Gemma 4's attention, whose layers without a window have different heads.

    Source: Gemma4TextAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/gemma4.py:577-580, reads `per_layer_config`.
    """
    layer_types = keys.each("layer_types") if keys.has("layer_types") else ()
    if len(layer_types) >= layers and layer_types[layers - 1] == "sliding_attention":
        why = "ends with a window, and its class takes full_attention there"
        raise keys.wrong("layer_types", why)
    keys_are_values = keys.flag("attention_k_eq_v")

    def global_heads(keys: Keys) -> Heads:
        queries, by_layer = keys.whole("num_attention_heads"), "per_layer_config"
        if keys.has(by_layer):
            global_layers = [
                layer
                for layer in range(layers)
                if layer_types[layer : layer + 1] == ["full_attention"]
            ]
            return Heads(queries, *_heads_by_layer(keys.inner(by_layer), keys, global_layers))
        width = keys.whole("global_head_dim")
        kv_heads = "num_global_key_value_heads" if keys_are_values else "num_key_value_heads"
        return Heads(queries, keys.whole(kv_heads), width, width)

    def kinds(*, shares: bool) -> Plan:
        windowed = gqa(window=WINDOW, norm=True, shares=shares, **BOTH)
        full = gqa(shape=global_heads, values=not keys_are_values, norm=True, shares=shares, **BOTH)
        return by_kind("layer_types", {"sliding_attention": windowed, "full_attention": full})

    first = first_sharing_layer(keys, layers)
    if first == layers:
        return kinds(shares=False)(keys, layers)
    caching = {str(kind) for kind in layer_types[: max(first, 0)]}
    without = sorted({str(kind) for kind in layer_types} - caching)
    if without:
        why = f"leaves no layer of {without[0]!r:.40} that caches what the others share"
        raise keys.wrong("num_kv_shared_layers", why)
    own, others = kinds(shares=False)(keys, layers), kinds(shares=True)(keys, layers)
    return lambda layer: (own if layer < first else others)(layer)


def _heads_by_layer(
    per_layer: Keys, keys: Keys, global_layers: Sequence[int]
) -> tuple[int, int, int]:
    """Return key heads, head width and value width from `per_layer_config`.

    Files that transformers has saved again have that key, with the same entry for each layer
    without a window.
    """
    layers = [name.lstrip("0") or "0" for name in per_layer.names()]
    configs = [per_layer.inner(name) for name in per_layer.names()]
    known = {"num_key_value_heads", "head_dim"}
    uniform = all(
        config.values == configs[0].values and config.values.keys() <= known for config in configs
    )
    if not (configs and uniform and sorted(layers) == sorted(map(str, global_layers))):
        why = "does not say the same of each layer without a window, and of these alone"
        raise keys.wrong("per_layer_config", why)
    config = configs[0]
    kv_heads = config.whole("num_key_value_heads", default=keys.whole("num_key_value_heads"))
    head_dim = config.whole("head_dim")
    return kv_heads, head_dim, head_dim


def gemma4_ffn(keys: Keys, layers: int) -> Layer:
    """Read the Dense FFNs whose widths `gemma4_moe` returns."""
    layout, narrow = gemma4_moe(keys, layers), ffn()(keys, layers)
    if not layout.widths:
        return narrow
    wide = ffn()(keys.replaced("intermediate_size", layout.d_ff), layers)
    first = first_sharing_layer(keys, layers)
    return lambda layer: (narrow if layer < first else wide)(layer)


def gemma4_experts(keys: Keys, layers: int) -> Layer:
    """Read the experts that run beside the Dense FFN. Source: Gemma4TextDecoderLayer."""
    if not keys.flag("enable_moe_block"):
        return in_every_layer(Piece(()))
    names = Names(module="", experts="experts", form=FUSED, router="router.proj")
    extra_norms = norms(
        "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2", "router.scale",
    )  # fmt: skip
    experts = moe(
        moe_rule(all_layers, top_k="top_k_experts"),
        names._replace(router_vector="router.per_expert_scale"),
    )
    return combined(experts, extra_norms)(keys, layers)


def gemma4_inputs(keys: Keys, layers: int) -> Layer:  # noqa: ARG001 (one signature for all)
    """Read the products that add a per-layer input. Source: Gemma4TextDecoderLayer."""
    d_model, width = keys.whole("hidden_size"), keys.whole(_INPUTS, least=0, default=0)
    if not width:
        return in_every_layer(Piece(()))
    key, vocabulary = "vocab_size_per_layer_input", keys.whole("vocab_size")
    if keys.has(key) and keys.whole(key) != vocabulary:
        raise keys.wrong(key, f"differs from vocab_size {vocabulary}, which is not read", _WITHOUT)
    gate = linear("per_layer_input_gate", "other", d_model, width)
    back = linear("per_layer_projection", "other", width, d_model)
    return in_every_layer(Piece((*gate, *back, *vector("post_per_layer_input_norm", d_model))))


def gemma4_tables(keys: Keys) -> Sequence[Matrix]:
    """Return the weights that make all per-layer inputs of a token. Source: Gemma4TextModel."""
    width = keys.whole(_INPUTS, least=0, default=0)
    if not width:
        return ()
    d_model, vocabulary = keys.wholes("hidden_size", "vocab_size")
    all_widths = keys.whole("num_hidden_layers") * width
    return (
        *linear("model.embed_tokens_per_layer", "embedding", all_widths, vocabulary),
        *linear("model.per_layer_model_projection", "other", d_model, all_widths),
        *vector("model.per_layer_projection_norm", width),
    )


def hy_v3_attention(keys: Keys, layers: int) -> Layer:
    """Read Hunyuan 3's attention, whose queries and keys are normalised.

    Source: HYV3Attention of transformers 5.23, which reads no flag; vllm 0.33.0,
    vllm/model_executor/models/hy_v3.py:260, and sglang 0.5.23, sglang/srt/models/hunyuan_v3.py:251,
    default to false.
    """
    if not keys.flag(keys.one_of("qk_norm", "use_qk_norm")):
        raise keys.wrong("qk_norm", "is one that engines disagree on: false")
    return gqa(norm=True, **BOTH)(keys, layers)


def laguna_attention(keys: Keys, layers: int) -> Layer:
    """Read Laguna's attention, whose number of heads may differ by layer.

    Source: LagunaAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/laguna.py:297-357 and 476-496 (no gates; sinks of windows).
    """
    key, gating_key = "num_attention_heads_per_layer", "gating"
    gating = keys.values.get(gating_key, True)
    if not (isinstance(gating, bool) or gating in ("per-head", "per-element")):
        raise keys.wrong(gating_key, "is none of true, false, per-head and per-element")
    uniform_counts = [keys.whole("num_attention_heads")] * layers
    counts = keys.list_of(key, int) if keys.has(key) else uniform_counts
    if len(counts) != layers:
        raise keys.wrong(key, f"has {len(counts)} entries for {layers} layers")
    if min(counts) < 1:
        raise keys.wrong(key, "has layers without heads")
    gates: dict[str, Any] = {"gate": "g_proj" if gating else ""}
    gates["wide_gate"] = gating == "per-element"

    def layer_with(queries: int) -> Layer:
        shape = lambda keys: heads(keys.replaced("num_attention_heads", queries))  # noqa: E731
        options = {"shape": shape, "norm": True, **gates, **BOTH}
        windowed = gqa(window=WINDOW, sinks="swa_attention_sink_enabled", **options)
        kinds = {"sliding_attention": windowed, "full_attention": gqa(**options)}
        return by_kind("layer_types", kinds, all_see_all)(keys, layers)

    layer_by_queries = {queries: layer_with(queries) for queries in sorted(set(counts))}
    return lambda layer: layer_by_queries[counts[layer]](layer)


def all_see_all(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001
    """Return the kinds of layers of a file without `layer_types`: full attention in each."""
    return ["full_attention"] * layers


def xielu_parameters(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read the two weights of Apertus' activation. Source: XIELUActivation of transformers 5.23."""
    numbers = ("mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n")
    return in_every_layer(Piece(tuple(part for name in numbers for part in vector(name, 1, "ffn"))))


def indexer_layers(keys: Keys, layers: int) -> Sequence[str]:
    """Return for each layer of GLM's DSA whether it has an indexer. Source: GlmMoeDsaConfig."""
    if keys.has("index_topk_pattern"):
        return [
            {"F": "full", "S": "shared"}.get(str(letter), str(letter))
            for letter in keys.each("index_topk_pattern")
        ]
    step = keys.whole("index_topk_freq", default=1)
    offset = keys.whole("index_skip_topk_offset", least=0, default=2)
    return ["shared" if max(layer - offset + 1, 0) % step else "full" for layer in range(layers)]


def chunked_layers(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kinds of Llama 4's layers, chunked or full. Source: Llama4TextConfig."""
    if keys.has("no_rope_layers") and keys.each("no_rope_layers"):
        marks = keys.each("no_rope_layers")
        return ["chunked_attention" if mark else "full_attention" for mark in marks]
    period = "no_rope_layer_interval"
    return one_per_period(period, "full_attention", "chunked_attention")(keys, layers)


def _step_heads(keys: Keys) -> Heads:
    """Return the heads of Step 3's layers with a window.

    Source: Step3p7TextConfig of transformers 5.23, which reads only their number of queries; vllm
    0.33.0, vllm/model_executor/models/step3p5.py, also reads key heads and the head width.
    """
    usual, key, refusals = heads(keys), "num_sliding_attention_heads", Refusals()
    other = keys.inner("attention_other_setting")
    for name, size in (("num_attention_groups", usual.kv_heads), ("head_dim", usual.head_dim)):
        with refusals.collect():
            if other.whole(name, default=size) != size:
                raise other.wrong(name, f"is not {size}, as of other layers: engines disagree")
    refusals.check()
    if keys.has(key):
        return usual._replace(queries=keys.whole(key))
    return usual._replace(queries=other.whole("num_attention_heads", default=usual.queries))


def hunyuan_window(keys: Keys, layers: int) -> int | None:
    """Return None, for Hunyuan's models, whose layers see all positions and share no cache.

    Source: HunYuanMoEV1Attention of transformers 5.23, which reads neither flag; vllm 0.33.0,
    vllm/model_executor/models/hunyuan_v1.py (HunYuanCrossAttention), reads both.
    """
    refusals = Refusals()
    with refusals.collect():
        if not keys.empty("use_cla"):
            raise keys.wrong("use_cla", "lets layers share a cache, which is not read")
    with refusals.collect():
        if keys.has("use_qk_norm") and not keys.flag("use_qk_norm"):
            raise keys.wrong("use_qk_norm", "is one that engines disagree on: set or left out")
    refusals.check()
    return unwindowed(keys, layers)


STEP_3 = by_kind(
    "layer_types",
    {
        "sliding_attention": gqa(shape=_step_heads, window=WINDOW, norm=True, gate="g_proj"),
        "full_attention": gqa(norm=True, gate="g_proj"),
    },
    all_see_all,
)
"""Attention with one gate per head. Source: Step3p7TextAttention of transformers 5.23."""


def _blocks(keys: Keys, layers: int) -> list[Keys]:
    """Return the keys of each layer of Llama-Nemotron."""
    blocks = keys.inners("block_configs")
    if len(blocks) < layers:
        raise keys.wrong("block_configs", f"has {len(blocks)} entries for {layers} layers")
    return blocks[:layers]


def _decilm_width(keys: Keys, ffn_keys: Keys) -> int:
    """Return the width of a layer's FFN. Source: `_ffn_mult_to_intermediate_size` of `decilm`'s."""
    width = int(2 * ffn_keys.number("ffn_mult", most=1e3) * keys.whole("hidden_size") / 3)
    return (width + 255) // 256 * 256


def decilm_ffn(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Llama-Nemotron, whose widths an architecture search chose by layer."""
    ffns = [block.inner("ffn") for block in _blocks(keys, layers)]
    widths = [_decilm_width(keys, ffn_keys) for ffn_keys in ffns if not ffn_keys.flag("no_op")]
    counted = tuple((width, widths.count(width)) for width in sorted(set(widths), reverse=True))
    return Ffn(
        counted[0][0] if counted else None,
        dense=len(widths),
        widths=counted if len(counted) > 1 else (),
    )


def decilm(keys: Keys, layers: int) -> Layer:
    """Read Llama-Nemotron's layers: each has its own attention and FFN, or lacks one or both.

    Source: DeciLMForCausalLM of nvidia/Llama-3_3-Nemotron-Super-49B-v1; vllm 0.33.0,
    vllm/model_executor/models/nemotron_nas.py, runs the same.
    """
    blocks = _blocks(keys, layers)
    queries, d_model = keys.whole("num_attention_heads"), keys.whole("hidden_size")

    def attention(attention_keys: Keys) -> Plan:
        group = attention_keys.whole("n_heads_in_group")
        width = head_width(keys)
        kv_heads = queries // group
        if not kv_heads or queries % group:
            raise attention_keys.wrong("n_heads_in_group", f"does not divide {queries} heads")
        shape = lambda keys: Heads(queries, kv_heads, width, width)  # noqa: E731, ARG005
        return combined(norms("input_layernorm"), gqa(shape=shape, **BOTH))

    def dense_ffn(ffn_keys: Keys) -> Piece:
        d_ff = _decilm_width(keys, ffn_keys)
        bias = keys.flag("mlp_bias")
        return Piece(tuple(GATED.parts("mlp", "ffn", d_model, d_ff, bias=bias)))

    layer_pieces: list[Piece] = []
    for block in blocks:
        pieces = []
        attention_keys, ffn_keys = block.inner("attention"), block.inner("ffn")
        for piece_keys in (attention_keys, ffn_keys):
            if piece_keys.flag("replace_with_linear"):
                raise piece_keys.wrong("replace_with_linear", "is not read")
        if not attention_keys.flag("no_op"):
            pieces.append(attention(attention_keys)(keys, layers)(0))
        if not ffn_keys.flag("no_op"):
            pieces.append(dense_ffn(ffn_keys))
            pieces.append(norms("post_attention_layernorm")(keys, layers)(0))
        layer_pieces.append(joined(pieces))
    return lambda layer: layer_pieces[layer]


def hyper_connections(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read DeepSeek V4's hyper connections. Source: DeepseekV4HyperConnection."""
    streams = keys.whole("hc_mult")
    mix_outputs, width = (2 + streams) * streams, streams * keys.whole("hidden_size")
    parts: list[Matrix] = []
    for connection in ("hc_attn", "hc_ffn"):
        parts += linear(f"{connection}_fn", "other", width, mix_outputs)
        parts += [
            *vector(f"{connection}_base", mix_outputs, "other"),
            *vector(f"{connection}_scale", 3, "other"),
        ]
    return in_every_layer(Piece(tuple(parts)))


def hyper_head(keys: Keys) -> Sequence[Matrix]:
    """Return the weights that merge the streams at the end. Source: DeepseekV4HyperHead."""
    streams = keys.whole("hc_mult")
    return (
        *linear("hc_head_fn", "other", streams * keys.whole("hidden_size"), streams),
        *vector("hc_head_base", streams, "other"),
        *vector("hc_head_scale", 1, "other"),
    )
