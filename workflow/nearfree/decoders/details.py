"""The details that a forward needs beyond a decoder's shape, from the same config.json."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from nearfree.decoders.config_file import config_file, read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.families import family
from nearfree.decoders.family_forms import (
    gemma2,
    gemma3,
    gemma4,
    gpt_oss,
    indexed,
    indexed_as_turned,
    latent,
    llama4,
    mistral4,
)
from nearfree.decoders.forms import Form
from nearfree.decoders.keys import Keys
from nearfree.decoders.rope import Rope, read_rope
from nearfree.decoders.routers import (
    RouterRule,
    best_groups,
    normalised,
    on_inputs,
    scored_groups,
    sigmoid_groups,
    softmax,
    softmax_groups,
    with_bias,
)
from nearfree.decoders.text_part import text_part

_OFF = ("mlp_bias", "norm_head", "norm_softmax", "rope_interleave")
"""Flags that change a forward, if set, in a way that is not run here."""


class Details(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a decoder computes, where its shape does not determine it.

    With `qk_norm` queries and keys are normalised per head. `qkv_bias` and `output_bias` say which
    products of attention add a bias. The layers in `moe_at`, counted from 0, have experts, which
    `router` chooses. With `shared_gate` the shared experts have a gate. `tied` says that the LM
    head is the embedding. Where kinds of layers compute differently, `form` says how, and holds
    their rotations; `rope` is then None.
    """

    rope: Rope | None
    norm_eps: float
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    moe_at: tuple[int, ...] = ()
    router: RouterRule | None = None
    shared_gate: bool = False
    tied: bool = False
    form: Form | UnsetType = UNSET


class _Rules(NamedTuple):
    """Rules that read the details of a model type; `biases` returns those of QKV and output."""

    biases: Callable[[Keys], tuple[bool, bool]]
    qk_norm: Callable[[Keys], bool]
    router: Callable[[Keys, Decoder], RouterRule] | None = None
    partial_rope: bool = False
    form: Callable[[Keys, Decoder], Form] | None = None


def _never(keys: Keys) -> bool:  # noqa: ARG001 (one signature for all)
    return False


def _always(keys: Keys) -> bool:  # noqa: ARG001
    return True


def _flag(key: str) -> Callable[[Keys], bool]:
    return lambda keys: keys.flag(keys.one_of(key))


def _all_biases(keys: Keys) -> tuple[bool, bool]:
    return keys.flag("attention_bias"), keys.flag("attention_bias")


def _no_biases(keys: Keys) -> tuple[bool, bool]:  # noqa: ARG001
    return False, False


def _qkv_bias(keys: Keys) -> tuple[bool, bool]:
    return keys.flag("qkv_bias"), False


_LING = _Rules(
    lambda keys: (_flag("use_qkv_bias")(keys), _flag("use_bias")(keys)),
    _flag("use_qk_norm"),
    sigmoid_groups,
    partial_rope=True,
)
_RULES = {
    "llama": _Rules(_all_biases, _never),
    "mistral": _Rules(_no_biases, _never),
    "mixtral": _Rules(_no_biases, _never, normalised),
    "qwen2": _Rules(_qkv_bias, _never),
    "qwen2_moe": _Rules(_qkv_bias, _never, softmax),
    "qwen3": _Rules(_all_biases, _always),
    "qwen3_moe": _Rules(_all_biases, _always, softmax),
    "wedlm": _Rules(lambda keys: (_flag("attention_bias")(keys), False), _flag("qk_norm")),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe"), _LING),
    "gemma2": _Rules(_all_biases, _never, form=gemma2),
    "gemma3_text": _Rules(_all_biases, _always, form=gemma3),
    "gemma4_text": _Rules(_all_biases, _always, normalised, form=gemma4),
    "gpt_oss": _Rules(_all_biases, _never, with_bias, form=gpt_oss),
    "llama4_text": _Rules(_all_biases, _never, on_inputs, form=llama4),
    "deepseek_v2": _Rules(_all_biases, _never, best_groups, form=latent),
    **dict.fromkeys(
        ("deepseek_v3", "kimi_k2", "glm4_moe_lite"),
        _Rules(_all_biases, _never, scored_groups, form=latent),
    ),
    "deepseek_v32": _Rules(_all_biases, _never, scored_groups, form=indexed),
    "glm_moe_dsa": _Rules(_all_biases, _never, scored_groups, form=indexed_as_turned),
    "mistral4": _Rules(_all_biases, _never, softmax_groups, form=mistral4),
}
"""By `model_type`, for those with a forward here; all have RMS norms before attention and FFN.
Source: modeling files of transformers 5.23, inclusionAI/Ling-V2, inclusionAI/dFactory
(llada2_moe) and Tencent/WeDLM; kimi_k2 is a name of deepseek_v3."""


def read_details(path: Path) -> Details:
    """Return what a forward needs beyond the shape that `read_decoder` returns.

    Raises
    ------
    ConfigError
        `read_decoder` refuses the file; the model type has no forward here; a key that the forward
        needs is missing or has a value that no model has; or the file needs something that is not
        run: another activation or scaling of rotations than its family's, or a bias in the FFN.
    """
    decoder = read_decoder(path)
    keys = text_part(config_file(path)).keys
    if decoder.model_type not in _RULES:
        raise keys.wrong(
            "model_type",
            "is predicted, not measured: it has no forward here",
            f"Forwards are those of {', '.join(sorted(_RULES))}",
        )
    rules = _RULES[decoder.model_type]
    if rules.form is None and keys.text("hidden_act") != "silu":
        raise keys.wrong("hidden_act", "is not run", "Give a model whose FFNs have SiLU")
    for key in _OFF:
        if keys.flag(key) and not (key == "rope_interleave" and rules.form):
            raise keys.wrong(key, "is not run", "Give a model without it")
    return _details(keys, decoder, rules)


def _details(keys: Keys, decoder: Decoder, rules: _Rules) -> Details:
    qkv_bias, output_bias = rules.biases(keys)
    experts = decoder.experts
    form = rules.form(keys, decoder) if rules.form else UNSET
    rope = None if form else read_rope(keys, decoder.head_dim, partial=rules.partial_rope)
    return Details(
        rope=rope,
        norm_eps=keys.number("rms_norm_eps", most=1.0),
        qk_norm=rules.qk_norm(keys),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        moe_at=tuple(family(keys).ffn(keys, decoder.layers).moe_at),
        router=rules.router(keys, decoder) if rules.router and experts else None,
        shared_gate=decoder.model_type == "qwen2_moe" and bool(experts and experts.shared_d_ff),
        tied=keys.flag("tie_word_embeddings"),
        form=form,
    )
