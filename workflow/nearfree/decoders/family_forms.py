"""The form of each family: rotations, norms and gates as its config.json gives them.

Source: configuration and modeling files of transformers 5.23, by model type.
"""

from msgspec import structs

from nearfree.decoders.attention_kinds import Grouped, Kind, Latent
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.forms import Activation, AttentionForm, Clamp, Form, Warmth
from nearfree.decoders.keys import Keys
from nearfree.decoders.rope import Rope, mscale, parameters, read_rope, scaled_rope

_PARTIAL = "partial_rotary_factor"
_ACTIVATIONS: dict[str, Activation] = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}


def _activation(keys: Keys, *, key: str = "hidden_act") -> Activation:
    """Return the activation of gates; its key must be present."""
    name = keys.text(key)
    if name not in _ACTIVATIONS:
        raise keys.wrong(key, "is not run", f"Give a model with {' or '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _require_off(keys: Keys, *names: str) -> None:
    """Refuse a file in which one of the keys is set."""
    for key in names:
        if not keys.empty(key):
            raise keys.wrong(key, "is not run", "Give a model without it")


def _gemma(keys: Keys, attention: tuple[AttentionForm, ...], *, from_one: bool) -> Form:
    _require_off(keys, "use_bidirectional_attention")
    cap = "final_logit_softcapping"
    return Form(
        attention=attention,
        activation=_activation(keys, key="hidden_activation"),
        four_norms=True,
        norms_from_one=from_one,
        embedding_scale=keys.whole("hidden_size") ** 0.5,
        logits_cap=keys.number(cap) if keys.has(cap) else None,
    )


def gemma2(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of Gemma 2: one rotation, capped logits, every other layer has a window."""
    scale = keys.number("query_pre_attn_scalar") ** -0.5
    rope = read_rope(keys, decoder.head_dim)
    forms = (AttentionForm(scale=scale, rope=rope),) * len(decoder.attention)
    return _gemma(keys, forms, from_one=True)


def _layered(keys: Keys, kind: Grouped) -> Rope:
    """Return the rotation of a kind where layers with and without a window have different ones.

    Either `rope_parameters` holds both; or `rope_scaling` applies to layers without a window, and
    `rope_local_base_freq` is the base for layers with one.
    """
    inner = parameters(keys)
    name = "sliding_attention" if kind.window else "full_attention"
    if keys.has("rope_parameters"):
        return scaled_rope(keys, inner.inner(name), kind.head_dim)
    if kind.window:
        return Rope(theta=keys.number("rope_local_base_freq", above=1.0), width=kind.head_dim)
    return scaled_rope(keys, inner, kind.head_dim)


def gemma3(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of Gemma 3: layers with a window rotate faster."""
    _require_off(keys, "attn_logit_softcapping")
    scale = keys.number("query_pre_attn_scalar") ** -0.5
    forms = tuple(
        AttentionForm(scale=scale, rope=_layered(keys, kind))
        for kind in decoder.attention
        if isinstance(kind, Grouped)
    )
    return _gemma(keys, forms, from_one=True)


def gemma4(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of Gemma 4: unscaled logits, normalised values, a weight per layer."""
    _require_off(keys, "use_double_wide_mlp")
    forms = tuple(
        AttentionForm(scale=1.0, rope=_layered(keys, kind), value_norm=True)
        for kind in decoder.attention
        if isinstance(kind, Grouped)
    )
    return structs.replace(_gemma(keys, forms, from_one=False), layer_weight=True)


def gpt_oss(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of gpt-oss: its gate is clamped and its experts have biases.

    A file must give the scaling of rotations, because its class defaults to YaRN's.
    """
    _activation(keys)
    keys.one_of("rope_scaling", "rope_parameters")
    rope = read_rope(keys, decoder.head_dim)
    slope = keys.number("swiglu_alpha") if keys.has("swiglu_alpha") else 1.702
    return Form(
        attention=(AttentionForm(scale=decoder.head_dim**-0.5, rope=rope),)
        * len(decoder.attention),
        clamp=Clamp(slope=slope, limit=keys.number("swiglu_limit")),
        expert_biases=True,
    )


def llama4(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of Llama 4: only chunked layers rotate; the others tune the temperature."""
    scale = decoder.head_dim**-0.5
    rope = structs.replace(read_rope(keys, decoder.head_dim), interleaved=True)
    rotated = AttentionForm(scale=scale, rope=rope, unit_norm=keys.flag("use_qk_norm"))
    unrotated = AttentionForm(scale=scale, warmth=_llama4_warmth(keys))
    chunked = (isinstance(kind, Grouped) and kind.chunk for kind in decoder.attention)
    return Form(
        attention=tuple(rotated if is_chunked else unrotated for is_chunked in chunked),
        activation=_activation(keys),
    )


def _llama4_warmth(keys: Keys) -> Warmth | None:
    key = "attn_temperature_tuning"
    if keys.has(key) and keys.empty(key):
        return None
    return Warmth(slope=keys.number("attn_scale"), period=keys.whole("floor_scale"), shift=1)


def latent(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of DeepSeek's families: part of a head is rotated, in neighbouring pairs."""
    forms = [_latent(keys, kind) for kind in decoder.attention]
    return Form(attention=tuple(forms), activation=_activation(keys))


def indexed(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of DeepSeek V3.2, whose indexer rotates pairs half a width apart."""
    return _indexed(latent(keys, decoder), interleaved=False)


def indexed_as_turned(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of GLM's DSA, whose indexer rotates neighbouring pairs, too."""
    return _indexed(latent(keys, decoder), interleaved=True)


def _indexed(form: Form, *, interleaved: bool) -> Form:
    attention = [
        structs.replace(
            attention_form,
            index_rope=attention_form.rope
            and structs.replace(attention_form.rope, interleaved=interleaved),
        )
        for attention_form in form.attention
    ]
    return structs.replace(form, attention=tuple(attention))


def mistral4(keys: Keys, decoder: Decoder) -> Form:
    """Return the form of Mistral 4, which scales the queries of later positions up."""
    inner = parameters(keys)
    period = inner.whole("original_max_position_embeddings")
    warmth = Warmth(slope=inner.number("llama_4_scaling_beta"), period=period, shift=0)
    form = latent(keys, decoder)
    attention = [
        structs.replace(attention_form, warmth=warmth) for attention_form in form.attention
    ]
    return structs.replace(form, attention=tuple(attention))


def _latent(keys: Keys, kind: Kind) -> AttentionForm:
    if not isinstance(kind, Latent):
        raise keys.wrong("kv_lora_rank", "is that of some layers alone")
    inner, width = parameters(keys), kind.nope_dim + kind.rope_dim
    if inner.has(_PARTIAL) and inner.number(_PARTIAL) not in (1.0, kind.rope_dim / width):
        raise inner.wrong(_PARTIAL, f"is not the share of {kind.rope_dim} elements of {width}")
    rope = scaled_rope(keys, inner.without(_PARTIAL), kind.rope_dim)
    stretch = 1.0
    if rope.yarn and not inner.empty("mscale_all_dim"):
        stretch = mscale(rope.yarn.factor, inner.number("mscale_all_dim"))
    interleaved = keys.flag("rope_interleave") if keys.has("rope_interleave") else True
    return AttentionForm(
        scale=width**-0.5 * stretch**2, rope=structs.replace(rope, interleaved=interleaved)
    )
