"""The details that a forward needs beyond a decoder's shape, from the same config.json."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from nearfree.decoders.config_file import config_file, read_decoder
from nearfree.decoders.decoder import Decoder
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
from nearfree.decoders.layouts.families import family
from nearfree.decoders.layouts.pieces import flag
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
    """Rules that read the details of a model type.

    Biases and `qk_norm` are flags or their keys, which must be present with `required`.
    """

    router: Callable[[Keys, Decoder], RouterRule] | None = None
    form: Callable[[Keys, Decoder], Form] | None = None
    qkv_bias: str | bool = False
    output_bias: str | bool = False
    qk_norm: str | bool = False
    partial_rope: bool = False
    required: bool = False

    def flag(self, keys: Keys, key_or_flag: str | bool) -> bool:  # noqa: FBT001
        """Return a flag, or the one under its key."""
        if self.required and isinstance(key_or_flag, str):
            keys.one_of(key_or_flag)
        return flag(keys, key_or_flag)


_LING = _Rules(
    sigmoid_groups,
    qkv_bias="use_qkv_bias",
    output_bias="use_bias",
    qk_norm="use_qk_norm",
    partial_rope=True,
    required=True,
)
_biased = partial(_Rules, qkv_bias="attention_bias", output_bias="attention_bias")
_RULES = {
    "llama": _biased(),
    "mistral": _Rules(),
    "mixtral": _Rules(normalised),
    "qwen2": _Rules(qkv_bias="qkv_bias"),
    "qwen2_moe": _Rules(softmax, qkv_bias="qkv_bias"),
    "qwen3": _biased(qk_norm=True),
    "qwen3_moe": _biased(softmax, qk_norm=True),
    "wedlm": _Rules(qkv_bias="attention_bias", qk_norm="qk_norm", required=True),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe"), _LING),
    "gemma2": _biased(form=gemma2),
    "gemma3_text": _biased(form=gemma3, qk_norm=True),
    "gemma4_text": _biased(normalised, gemma4, qk_norm=True),
    "gpt_oss": _biased(with_bias, gpt_oss),
    "llama4_text": _biased(on_inputs, llama4),
    "deepseek_v2": _biased(best_groups, latent),
    **dict.fromkeys(("deepseek_v3", "kimi_k2", "glm4_moe_lite"), _biased(scored_groups, latent)),
    "deepseek_v32": _biased(scored_groups, indexed),
    "glm_moe_dsa": _biased(scored_groups, indexed_as_turned),
    "mistral4": _biased(softmax_groups, mistral4),
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
    qkv_bias = rules.flag(keys, rules.qkv_bias)
    output_bias = rules.flag(keys, rules.output_bias)
    experts = decoder.experts
    form = rules.form(keys, decoder) if rules.form else UNSET
    rope = None if form else read_rope(keys, decoder.head_dim, partial=rules.partial_rope)
    return Details(
        rope=rope,
        norm_eps=keys.number("rms_norm_eps", most=1.0),
        qk_norm=rules.flag(keys, rules.qk_norm),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        moe_at=tuple(family(keys).ffn(keys, decoder.layers).moe_at),
        router=rules.router(keys, decoder) if rules.router and experts else None,
        shared_gate=decoder.model_type == "qwen2_moe" and bool(experts and experts.shared_d_ff),
        tied=keys.flag("tie_word_embeddings"),
        form=form,
    )
