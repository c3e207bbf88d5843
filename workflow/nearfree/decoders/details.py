"""What a forward needs beyond a decoder's shape, from the same config.json."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from nearfree.core.protocols import Positive
from nearfree.decoders.config_file import config_file, read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.families import family
from nearfree.decoders.keys import Keys, read_object

Above = Annotated[float, Meta(gt=0)]
_FULL = "Give a model whose heads are rotated whole"


class Llama3(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Llama 3's scaling: slow rotations are divided by `factor`, fast ones kept.

    Source: _compute_llama3_parameters of transformers 5.23, modeling_rope_utils.py.
    """

    factor: Above
    low_freq_factor: Above
    high_freq_factor: Above
    original_positions: Positive


class Rope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotation of the first `width` elements of a head, with base `theta`."""

    theta: Above
    width: Positive
    llama3: Llama3 | None = None


def read_rope(keys: Keys, head_dim: int, *, partial: bool) -> Rope:
    """Return the rotation that a file describes.

    Parameters
    ----------
    keys
        The file's keys: `rope_theta` and `rope_scaling`, or both in `rope_parameters`.
    head_dim
        Elements of a head.
    partial
        Whether the model type rotates a part of a head, `partial_rotary_factor`.

    Raises
    ------
    ConfigError
        A key is missing or has a value that no model has, or the scaling is neither none nor
        llama3's.
    """
    if keys.has("rope_scaling") and keys.has("rope_parameters"):
        raise keys.wrong("rope_scaling", "stands beside rope_parameters", "Leave one of them out")
    inner = keys.inner("rope_parameters" if keys.has("rope_parameters") else "rope_scaling")
    theta = (inner if inner.has("rope_theta") else keys).number("rope_theta", above=1.0)
    return Rope(theta=theta, width=_width(keys, inner, head_dim, partial), llama3=_llama3(inner))


def _width(keys: Keys, inner: Keys, head_dim: int, partial: bool) -> int:  # noqa: FBT001
    key = "partial_rotary_factor"
    where = inner if inner.has(key) else keys
    share = where.number(key, most=1.0) if partial or where.has(key) else 1.0
    if not partial and share != 1.0:
        raise where.wrong(key, "is not understood for this model type", _FULL)
    width = int(head_dim * share)
    if width < 2 or width % 2:
        name = key if partial else "head_dim"
        raise (where if partial else keys).wrong(name, f"rotates {width} elements of a head")
    return width


def _llama3(inner: Keys) -> Llama3 | None:
    present = [key for key in ("rope_type", "type") if inner.has(key)]
    if not present:
        others = [key for key in ("factor", "mrope_section") if inner.has(key)]
        if others:
            raise inner.wrong(others[0], "stands without rope_type")
        return None
    kind = inner.one_of(*present)
    if inner.text(kind) == "default":
        return None
    if inner.text(kind) != "llama3":
        raise inner.wrong(
            kind, "is no scaling that is run", "Give a model with no scaling, or with llama3's"
        )
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if low >= high:
        raise inner.wrong("low_freq_factor", f"is not below high_freq_factor {high:g}")
    return Llama3(
        factor=inner.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=inner.whole("original_max_position_embeddings"),
    )


_OFF = ("mlp_bias", "norm_head", "norm_softmax", "rope_interleave")
"""Flags that, set, change a forward in a way that is not run."""


class RouterRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The k experts with the highest scores, a softmax or sigmoids of the router's logits.

    `normalised` says that the shares of a token's experts are divided by their sum. The experts
    are `groups` groups of one size, of which the `kept_groups` with the highest sums of their two
    best scores are chosen from. `expert_bias` is added to scores when choosing, not to shares;
    `scale` multiplies shares.
    """

    scores: Literal["softmax", "sigmoid"]
    normalised: bool
    groups: Positive = 1
    kept_groups: Positive = 1
    expert_bias: bool = False
    scale: float = 1.0


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
    partial_rope: bool = False


def normalised(keys: Keys, decoder: Decoder) -> RouterRule:  # noqa: ARG001 (one signature for all)
    """Return the rule of Mixtral. Source: MixtralTopKRouter of transformers 5.23."""
    return RouterRule(scores="softmax", normalised=True)


def softmax(keys: Keys, decoder: Decoder) -> RouterRule:  # noqa: ARG001
    """Return the rule of Qwen's models. Source: Qwen3MoeTopKRouter of transformers 5.23."""
    return RouterRule(scores="softmax", normalised=keys.flag("norm_topk_prob"))


def sigmoid_groups(keys: Keys, decoder: Decoder) -> RouterRule:
    """Return the rule of Ling 2.0 and LLaDA 2.

    Source: BailingMoeV2Gate of inclusionAI/Ling-V2, LLaDA2MoeGate of inclusionAI/dFactory, which
    normalise where a token has several experts.
    """
    if keys.text("score_function") != "sigmoid":
        raise keys.wrong(
            "score_function", "is not run", "Give a model of Ling's second version, with sigmoid"
        )
    if not keys.flag(keys.one_of("norm_topk_prob")):
        raise keys.wrong("norm_topk_prob", "is not what the model's own code does")
    experts, top_k = (decoder.experts.experts, decoder.experts.top_k) if decoder.experts else (1, 1)
    groups, kept = keys.whole("n_group"), keys.whole("topk_group")
    if experts % groups or experts < 2 * groups:
        raise keys.wrong("n_group", f"does not part {experts} experts in groups of two or more")
    if kept > groups or kept * (experts // groups) < top_k:
        raise keys.wrong("topk_group", f"of {groups} groups does not hold {top_k} experts")
    return RouterRule(
        scores="sigmoid",
        normalised=top_k > 1,
        groups=groups,
        kept_groups=kept,
        expert_bias=keys.flag(keys.one_of("moe_router_enable_expert_bias")),
        scale=keys.number("routed_scaling_factor", most=1e6),
    )


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
    sigmoid_groups,
    partial_rope=True,
)
_RULES = {
    "llama": _Rules(_both, _never),
    "mistral": _Rules(_neither, _never),
    "mixtral": _Rules(_neither, _never, normalised),
    "qwen2": _Rules(_inner, _never),
    "qwen2_moe": _Rules(_inner, _never, softmax),
    "qwen3": _Rules(_both, _always),
    "qwen3_moe": _Rules(_both, _always, softmax),
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
        moe_at=tuple(family(keys).ffn(keys, decoder.layers).moe_at),
        router=rules.router(keys, decoder) if rules.router and experts else None,
        shared_gate=decoder.model_type == "qwen2_moe" and bool(experts and experts.shared_d_ff),
        tied=keys.flag("tie_word_embeddings"),
    )
