"""Layers of single model types, which no other has."""

from collections.abc import Sequence
from typing import Any

from nearfree.decoders.decoder import Ffn, head_width, unwindowed
from nearfree.decoders.feeds import (
    FUSED,
    GATED,
    Names,
    everywhere,
    ffn,
    first_sharing,
    gemma4_moe,
    moe,
    some,
)
from nearfree.decoders.keys import Keys
from nearfree.decoders.mixers import Heads, gqa, heads, window_of
from nearfree.decoders.pieces import (
    Layer,
    Part,
    Piece,
    Plan,
    by_kind,
    every,
    joined,
    linear,
    norms,
    same,
    together,
    vector,
)
from nearfree.errors import Refusals

BOTH: dict[str, Any] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
"""Attention whose four products have a bias if the file says so."""
WINDOW = window_of("sliding_window")


_WITHOUT, _INPUTS = "Give a model of Gemma 4 without it", "hidden_size_per_layer_input"


def gemma4_attention(keys: Keys, layers: int) -> Layer:
    """Read attention whose layers without a window have heads of their own.

    Source: Gemma4TextAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/gemma4.py:577-580, reads `per_layer_config`.
    """
    marks = keys.each("layer_types") if keys.has("layer_types") else ()
    if len(marks) >= layers and marks[layers - 1] == "sliding_attention":
        why = "ends with a window, and its class takes full_attention there"
        raise keys.wrong("layer_types", why)
    alone = keys.flag("attention_k_eq_v")

    def shape(keys: Keys) -> Heads:
        queries, again = keys.whole("num_attention_heads"), "per_layer_config"
        if keys.has(again):
            far = [at for at in range(layers) if marks[at : at + 1] == ["full_attention"]]
            return Heads(queries, *_said_again(keys.inner(again), keys, far))
        width = keys.whole("global_head_dim")
        kv_heads = "num_global_key_value_heads" if alone else "num_key_value_heads"
        return Heads(queries, keys.whole(kv_heads), width, width)

    def kinds(*, shares: bool) -> Plan:
        near = gqa(window=WINDOW, norm=True, shares=shares, **BOTH)
        far = gqa(shape=shape, values=not alone, norm=True, shares=shares, **BOTH)
        return by_kind("layer_types", {"sliding_attention": near, "full_attention": far})

    first = first_sharing(keys, layers)
    if first == layers:
        return kinds(shares=False)(keys, layers)
    without = sorted({str(each) for each in marks} - {str(each) for each in marks[: max(first, 0)]})
    if without:
        why = f"leaves no layer of {without[0]!r:.40} that caches what the others share"
        raise keys.wrong("num_kv_shared_layers", why)
    own, others = kinds(shares=False)(keys, layers), kinds(shares=True)(keys, layers)
    return lambda layer: (own if layer < first else others)(layer)


def _said_again(of: Keys, keys: Keys, far: Sequence[int]) -> tuple[int, int, int]:
    """Return heads of keys and their width as a file says them that transformers saved again."""
    at = [name.lstrip("0") or "0" for name in of.names()]
    each = [of.inner(name) for name in of.names()]
    known = {"num_key_value_heads", "head_dim"}
    alike = all(one.values == each[0].values and one.values.keys() <= known for one in each)
    if not (each and alike and sorted(at) == sorted(map(str, far))):
        why = "does not say the same of each layer without a window, and of these alone"
        raise keys.wrong("per_layer_config", why)
    kv_heads = each[0].whole("num_key_value_heads", default=keys.whole("num_key_value_heads"))
    width = each[0].whole("head_dim")
    return kv_heads, width, width


def gemma4_ffn(keys: Keys, layers: int) -> Layer:
    """Read the Dense FFNs, which `gemma4_moe` counts."""
    found, plain = gemma4_moe(keys, layers), ffn()(keys, layers)
    if not found.widths:
        return plain
    double = ffn()(keys.replaced("intermediate_size", found.d_ff), layers)
    first = first_sharing(keys, layers)
    return lambda layer: (plain if layer < first else double)(layer)


def gemma4_experts(keys: Keys, layers: int) -> Layer:
    """Read the experts beside the Dense FFN. Source: Gemma4TextDecoderLayer."""
    if not keys.flag("enable_moe_block"):
        return same(Piece(()))
    names = Names(at="", experts="experts", form=FUSED, router="router.proj")
    more = norms(
        "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2", "router.scale",
    )  # fmt: skip
    experts = moe(
        some(everywhere, top_k="top_k_experts"),
        names._replace(router_vector="router.per_expert_scale"),
    )
    return together(experts, more)(keys, layers)


def gemma4_inputs(keys: Keys, layers: int) -> Layer:  # noqa: ARG001 (one signature for all)
    """Read what takes in an input of each layer's own. Source: Gemma4TextDecoderLayer."""
    d_model, width = keys.whole("hidden_size"), keys.whole(_INPUTS, least=0, default=0)
    if not width:
        return same(Piece(()))
    key, vocabulary = "vocab_size_per_layer_input", keys.whole("vocab_size")
    if keys.has(key) and keys.whole(key) != vocabulary:
        raise keys.wrong(key, f"differs from vocab_size {vocabulary}, which is not read", _WITHOUT)
    gate = linear("per_layer_input_gate", "other", d_model, width)
    back = linear("per_layer_projection", "other", width, d_model)
    return same(Piece((*gate, *back, *vector("post_per_layer_input_norm", d_model))))


def gemma4_tables(keys: Keys) -> Sequence[Part]:
    """Return what makes inputs of all layers of a token and its state. Source: Gemma4TextModel."""
    width = keys.whole(_INPUTS, least=0, default=0)
    if not width:
        return ()
    d_model, vocabulary = keys.wholes("hidden_size", "vocab_size")
    every = keys.whole("num_hidden_layers") * width
    return (
        *linear("model.embed_tokens_per_layer", "embedding", vocabulary, every),
        *linear("model.per_layer_model_projection", "other", d_model, every),
        *vector("model.per_layer_projection_norm", width),
    )


def exaone_windows(keys: Keys, layers: int) -> Sequence[str]:
    """Return EXAONE 4's layers with a window: by a number, or by letters of local and global ones.

    Source: Exaone4Config of transformers 5.23, and files of EXAONE 4.0 ("LLLG").
    """
    pattern = "sliding_window_pattern"
    if keys.whole_or_null("sliding_window") is None:
        return ["full_attention"] * layers
    if not keys.is_text(pattern):
        keys.whole(pattern)
        return every(pattern, "full_attention", "sliding_attention")(keys, layers)
    letters = keys.text(pattern)
    if not letters or set(letters) - {"L", "G"}:
        raise keys.wrong(pattern, "has other letters than L and G, or none")
    kinds = {"L": "sliding_attention", "G": "full_attention"}
    return [kinds[letters[layer % len(letters)]] for layer in range(layers)]


def exaone_moe_attention(keys: Keys, layers: int) -> Layer:
    """Read K-EXAONE's attention, whose layers with a window all have the same.

    Source: ExaoneMoeAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/exaone_moe.py:229-246, reads one window a layer where a file says so.
    """
    if keys.has("sliding_windows"):
        raise keys.wrong("sliding_windows", "gives layers windows of their own, which is not read")
    kinds = {"sliding_attention": gqa(window=WINDOW, norm=True), "full_attention": gqa(norm=True)}
    return by_kind("layer_types", kinds, exaone_windows)(keys, layers)


def hy_v3_attention(keys: Keys, layers: int) -> Layer:
    """Read Hunyuan 3's attention, whose queries and keys are normalised.

    Source: HYV3Attention of transformers 5.23, which reads no flag; vllm 0.33.0,
    vllm/model_executor/models/hy_v3.py:260, and sglang 0.5.23, sglang/srt/models/hunyuan_v3.py:251,
    take false where a file says none.
    """
    if not keys.flag(keys.one_of("qk_norm", "use_qk_norm")):
        raise keys.wrong("qk_norm", "is one that engines disagree on: false")
    return gqa(norm=True, **BOTH)(keys, layers)


def laguna_attention(keys: Keys, layers: int) -> Layer:
    """Read Laguna's attention, whose heads and gates a file may say layer by layer.

    Source: LagunaAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/laguna.py:297-357 and 476-496 (no gates; sinks of windows).
    """
    key, said, gating = "num_attention_heads_per_layer", "gating", keys.values.get("gating", True)
    if not (isinstance(gating, bool) or gating in ("per-head", "per-element")):
        raise keys.wrong(said, "is none of true, false, per-head and per-element")
    every = [keys.whole("num_attention_heads")] * layers
    counts = keys.list_of(key, int) if keys.has(key) else every
    if len(counts) != layers:
        raise keys.wrong(key, f"has {len(counts)} entries for {layers} layers")
    if min(counts) < 1:
        raise keys.wrong(key, "has layers without heads")
    gates: dict[str, Any] = {"gate": "g_proj" if gating else ""}
    gates["wide_gate"] = gating == "per-element"

    def of(queries: int) -> Layer:
        shape = lambda keys: heads(keys.replaced("num_attention_heads", queries))  # noqa: E731
        plain = {"shape": shape, "norm": True, **gates, **BOTH}
        near = gqa(window=WINDOW, sinks="swa_attention_sink_enabled", **plain)
        kinds = {"sliding_attention": near, "full_attention": gqa(**plain)}
        return by_kind("layer_types", kinds, _all_see_all)(keys, layers)

    read = {queries: of(queries) for queries in sorted(set(counts))}
    return lambda layer: read[counts[layer]](layer)


def _all_see_all(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001
    """Return the kinds of layers of which a file without `layer_types` has one alone."""
    return ["full_attention"] * layers


def xielu(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read the two numbers of Apertus' activation. Source: XIELUActivation of transformers 5.23."""
    numbers = ("mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n")
    return same(Piece(tuple(part for name in numbers for part in vector(name, 1, "ffn"))))


def indexers(keys: Keys, layers: int) -> Sequence[str]:
    """Return which layers of GLM's DSA have an indexer. Source: GlmMoeDsaConfig."""
    if keys.has("index_topk_pattern"):
        return [
            {"F": "full", "S": "shared"}.get(str(at), str(at))
            for at in keys.each("index_topk_pattern")
        ]
    step = keys.whole("index_topk_freq", default=1)
    offset = keys.whole("index_skip_topk_offset", least=0, default=2)
    return ["shared" if max(at - offset + 1, 0) % step else "full" for at in range(layers)]


def chunks(keys: Keys, layers: int) -> Sequence[str]:
    """Return Llama 4's layers whose attention stays in a chunk. Source: Llama4TextConfig."""
    if keys.has("no_rope_layers") and keys.each("no_rope_layers"):
        marks = keys.each("no_rope_layers")
        return ["chunked_attention" if mark else "full_attention" for mark in marks]
    period = "no_rope_layer_interval"
    return every(period, "full_attention", "chunked_attention")(keys, layers)


def _step_heads(keys: Keys) -> Heads:
    """Return the heads of Step 3's layers with a window.

    Source: Step3p7TextConfig of transformers 5.23, which takes queries alone of them; vllm 0.33.0,
    vllm/model_executor/models/step3p5.py, takes keys and their width, too.
    """
    of, key, found = heads(keys), "num_sliding_attention_heads", Refusals()
    other = keys.inner("attention_other_setting")
    for name, same_as in (("num_attention_groups", of.keys), ("head_dim", of.width)):
        with found.collect():
            if other.whole(name, default=same_as) != same_as:
                raise other.wrong(name, f"is not {same_as}, as of other layers: engines disagree")
    found.check()
    if keys.has(key):
        return of._replace(queries=keys.whole(key))
    return of._replace(queries=other.whole("num_attention_heads", default=of.queries))


def hunyuan_window(keys: Keys, layers: int) -> int | None:
    """Return None, for Hunyuan's models, which look at all positions by keys of each layer's own.

    Source: HunYuanMoEV1Attention of transformers 5.23, which reads neither flag; vllm 0.33.0,
    vllm/model_executor/models/hunyuan_v1.py (HunYuanCrossAttention), reads both.
    """
    found = Refusals()
    with found.collect():
        if not keys.empty("use_cla"):
            raise keys.wrong("use_cla", "lets layers share a cache, which is not read")
    with found.collect():
        if keys.has("use_qk_norm") and not keys.flag("use_qk_norm"):
            raise keys.wrong("use_qk_norm", "is one that engines disagree on: set or left out")
    found.check()
    return unwindowed(keys, layers)


STEP_3 = by_kind(
    "layer_types",
    {
        "sliding_attention": gqa(shape=_step_heads, window=WINDOW, norm=True, gate="g_proj"),
        "full_attention": gqa(norm=True, gate="g_proj"),
    },
    _all_see_all,
)
"""Attention with a gate for each head. Source: Step3p7TextAttention of transformers 5.23."""


def _blocks(keys: Keys, layers: int) -> list[Keys]:
    """Return what a file says of each layer of Llama-Nemotron."""
    blocks = keys.inners("block_configs")
    if len(blocks) < layers:
        raise keys.wrong("block_configs", f"has {len(blocks)} entries for {layers} layers")
    return blocks[:layers]


def _decilm_width(keys: Keys, of: Keys) -> int:
    """Return how wide a layer's FFN is. Source: as of `decilm`, _ffn_mult_to_intermediate_size."""
    wide = int(2 * of.number("ffn_mult", most=1e3) * keys.whole("hidden_size") / 3)
    return (wide + 255) // 256 * 256


def decilm_ffn(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Llama-Nemotron, of as many widths as the search for it found."""
    feeds = [block.inner("ffn") for block in _blocks(keys, layers)]
    widths = [_decilm_width(keys, of) for of in feeds if not of.flag("no_op")]
    counted = tuple((width, widths.count(width)) for width in sorted(set(widths), reverse=True))
    return Ffn(
        counted[0][0] if counted else None,
        dense=len(widths),
        widths=counted if len(counted) > 1 else (),
    )


def decilm(keys: Keys, layers: int) -> Layer:
    """Read layers that each have an attention and an FFN of their own, or none.

    Source: DeciLMForCausalLM of nvidia/Llama-3_3-Nemotron-Super-49B-v1; vllm 0.33.0,
    vllm/model_executor/models/nemotron_nas.py, runs the same.
    """
    blocks = _blocks(keys, layers)
    queries, d_model = keys.whole("num_attention_heads"), keys.whole("hidden_size")

    def attention(of: Keys) -> Plan:
        group = of.whole("n_heads_in_group")
        width = head_width(keys)
        kv_heads = queries // group
        if not kv_heads or queries % group:
            raise of.wrong("n_heads_in_group", f"does not part {queries} heads")
        shape = lambda keys: Heads(queries, kv_heads, width, width)  # noqa: E731, ARG005
        return together(norms("input_layernorm"), gqa(shape=shape, **BOTH))

    def feed(of: Keys) -> Piece:
        d_ff = _decilm_width(keys, of)
        bias = keys.flag("mlp_bias")
        return Piece(tuple(GATED.parts("mlp", "ffn", d_model, d_ff, bias=bias)))

    read: list[Piece] = []
    for block in blocks:
        pieces = []
        mix, ffn_of = block.inner("attention"), block.inner("ffn")
        for part in (mix, ffn_of):
            if part.flag("replace_with_linear"):
                raise part.wrong("replace_with_linear", "is not read")
        if not mix.flag("no_op"):
            pieces.append(attention(mix)(keys, layers)(0))
        if not ffn_of.flag("no_op"):
            pieces.append(feed(ffn_of))
            pieces.append(norms("post_attention_layernorm")(keys, layers)(0))
        read.append(joined(pieces))
    return lambda layer: read[layer]


def hyper(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read DeepSeek V4's hyper connections. Source: DeepseekV4HyperConnection."""
    streams = keys.whole("hc_mult")
    mixes, width = (2 + streams) * streams, streams * keys.whole("hidden_size")
    parts: list[Part] = []
    for at in ("hc_attn", "hc_ffn"):
        parts += linear(f"{at}_fn", "other", width, mixes)
        parts += [*vector(f"{at}_base", mixes, "other"), *vector(f"{at}_scale", 3, "other")]
    return same(Piece(tuple(parts)))


def hyper_head(keys: Keys) -> Sequence[Part]:
    """Return what joins the streams again. Source: DeepseekV4HyperHead."""
    streams = keys.whole("hc_mult")
    return (
        *linear("hc_head_fn", "other", streams * keys.whole("hidden_size"), streams),
        *vector("hc_head_base", streams, "other"),
        *vector("hc_head_scale", 1, "other"),
    )
