"""What a forward needs beyond a decoder's shape, from the same config.json."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from nearfree.decoders import routers
from nearfree.decoders.config_file import config_file, read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.keys import Keys, read_object
from nearfree.decoders.rope import Rope, read_rope
from nearfree.decoders.routers import RouterRule

_OFF = ("mlp_bias", "norm_head", "norm_softmax", "rope_interleave")
"""Flags that, set, change a forward in a way that is not run."""


class Details(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a decoder computes, where its shape leaves it open.

    `qk_norm` says that queries and keys are normalised by head, `qkv_bias` and `output_bias` which
    products of attention add a bias. The layers in `moe_at`, counted from 0, have experts, which
    `router` chooses; `shared_gate` says that the shared experts have a gate of their own. `tied`
    says that the LM head is the embedding.
    """

    rope: Rope
    norm_eps: float
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    moe_at: tuple[int, ...] = ()
    router: RouterRule | None = None
    shared_gate: bool = False
    tied: bool = False


class _Rules(NamedTuple):
    """What the file of a model type says: the biases of query, key and value and of the output."""

    biases: Callable[[Keys], tuple[bool, bool]]
    qk_norm: Callable[[Keys], bool]
    router: Callable[[Keys, Decoder], RouterRule] | None = None
    moe_at: Callable[[Keys, int], tuple[int, ...]] = lambda keys, layers: ()  # noqa: ARG005
    partial_rope: bool = False


def _never(keys: Keys) -> bool:  # noqa: ARG001 (one signature for all)
    return False


def _always(keys: Keys) -> bool:  # noqa: ARG001
    return True


def _flag(key: str) -> Callable[[Keys], bool]:
    return lambda keys: keys.flag(keys.one_of(key))


def _both(keys: Keys) -> tuple[bool, bool]:
    return keys.flag("attention_bias"), keys.flag("attention_bias")


def _neither(keys: Keys) -> tuple[bool, bool]:  # noqa: ARG001
    return False, False


def _inner(keys: Keys) -> tuple[bool, bool]:
    return not keys.has("qkv_bias") or keys.flag("qkv_bias"), False


_LING = _Rules(
    lambda keys: (_flag("use_qkv_bias")(keys), _flag("use_bias")(keys)),
    _flag("use_qk_norm"),
    routers.sigmoid_groups,
    routers.after_first,
    partial_rope=True,
)
_RULES = {
    "llama": _Rules(_both, _never),
    "mistral": _Rules(_neither, _never),
    "mixtral": _Rules(_neither, _never, routers.normalised, routers.everywhere),
    "qwen2": _Rules(_inner, _never),
    "qwen2_moe": _Rules(_inner, _never, routers.softmax, routers.every_step),
    "qwen3": _Rules(_both, _always),
    "qwen3_moe": _Rules(_both, _always, routers.softmax, routers.every_step),
    "wedlm": _Rules(lambda keys: (_flag("attention_bias")(keys), False), _flag("qk_norm")),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "llada2_moe"), _LING),
}
"""By `model_type`, those that a forward runs; all have RMS norms before attention and FFN.
Source: modeling files of transformers 5.23, inclusionAI/Ling-V2, inclusionAI/dFactory
(llada2_moe) and Tencent/WeDLM."""


def read_details(path: Path) -> Details:
    """Return what a forward needs beyond the shape that `read_decoder` returns.

    Parameters
    ----------
    path
        The config.json, or the folder that holds it.

    Raises
    ------
    ConfigError
        `read_decoder` refuses the file; the model type has no forward; a key that the forward needs
        is missing or has a value that no model has; or the file asks for what is not run: another
        activation than SiLU, another scaling of rotations than llama3's, a bias in the FFN.
    """
    decoder = read_decoder(path)
    file = config_file(path)
    keys = Keys(file, read_object(file))
    if decoder.model_type not in _RULES:
        raise keys.wrong(
            "model_type",
            "is predicted, not measured: it has no forward here",
            f"Forwards are those of {', '.join(sorted(_RULES))}",
        )
    if keys.text("hidden_act") != "silu":
        raise keys.wrong("hidden_act", "is not run", "Give a model whose FFNs have SiLU")
    for key in _OFF:
        if keys.flag(key):
            raise keys.wrong(key, "is not run", "Give a model without it")
    return _details(keys, decoder, _RULES[decoder.model_type])


def _details(keys: Keys, decoder: Decoder, rules: _Rules) -> Details:
    qkv_bias, output_bias = rules.biases(keys)
    experts = decoder.experts
    return Details(
        rope=read_rope(keys, decoder.head_dim, partial=rules.partial_rope),
        norm_eps=keys.number("rms_norm_eps", most=1.0),
        qk_norm=rules.qk_norm(keys),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        moe_at=rules.moe_at(keys, decoder.layers),
        router=rules.router(keys, decoder) if rules.router and experts else None,
        shared_gate=decoder.model_type == "qwen2_moe" and bool(experts and experts.shared_d_ff),
        tied=keys.flag("tie_word_embeddings"),
    )
