"""How routers choose a token's experts, and how much each weighs: a rule for each family."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, structs

from nearfree.core.protocols import Positive
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.keys import Keys


class RouterRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The k experts with the highest scores, a softmax or sigmoids of the router's logits.

    `normalised` says that the shares of a token's experts are divided by their sum. The experts
    are `groups` groups of one size, of which the `kept_groups` with the highest sums of their two
    best scores are chosen from, or with the highest score where `by_best`. `expert_bias` is added
    to scores when choosing, not to shares; `scale` multiplies shares. The logits have a bias with
    `logit_bias`. With `on_inputs` shares multiply what goes into experts, not what comes out.
    """

    scores: Literal["softmax", "sigmoid"]
    normalised: bool
    groups: Positive = 1
    kept_groups: Positive = 1
    expert_bias: bool = False
    scale: float = 1.0
    by_best: bool | UnsetType = UNSET
    logit_bias: bool | UnsetType = UNSET
    on_inputs: bool | UnsetType = UNSET


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
    top_k = decoder.experts.top_k if decoder.experts else 1
    groups, kept = _groups(keys, decoder, keys.whole("n_group"), keys.whole("topk_group"))
    return RouterRule(
        scores="sigmoid",
        normalised=top_k > 1,
        groups=groups,
        kept_groups=kept,
        expert_bias=keys.flag(keys.one_of("moe_router_enable_expert_bias")),
        scale=keys.number("routed_scaling_factor", most=1e6),
    )


def _groups(keys: Keys, decoder: Decoder, groups: int, kept: int) -> tuple[int, int]:
    """Return groups of experts and those that are kept; ConfigError if they do not part them."""
    experts, top_k = (decoder.experts.experts, decoder.experts.top_k) if decoder.experts else (1, 1)
    if experts % groups or experts < 2 * groups:
        raise keys.wrong("n_group", f"does not part {experts} experts in groups of two or more")
    if kept > groups or kept * (experts // groups) < top_k:
        raise keys.wrong("topk_group", f"of {groups} groups does not hold {top_k} experts")
    return groups, kept


def _said_groups(keys: Keys, decoder: Decoder) -> tuple[int, int]:
    """Return the groups of a file, one where it says none."""
    groups, kept = (keys.whole(key, default=1) for key in ("n_group", "topk_group"))
    return _groups(keys, decoder, groups, kept)


def _scale(keys: Keys) -> float:
    return keys.number("routed_scaling_factor", most=1e6)


def with_bias(keys: Keys, decoder: Decoder) -> RouterRule:
    """Return the rule of gpt-oss: a softmax over the logits of the chosen.

    Source: GptOssTopKRouter of transformers 5.23.
    """
    return structs.replace(normalised(keys, decoder), logit_bias=True)


def on_inputs(keys: Keys, decoder: Decoder) -> RouterRule:  # noqa: ARG001
    """Return the rule of Llama 4. Source: Llama4Router and Llama4TextMoe of transformers 5.23."""
    return RouterRule(scores="sigmoid", normalised=False, on_inputs=True)


def best_groups(keys: Keys, decoder: Decoder) -> RouterRule:
    """Return the rule of DeepSeek V2. Source: DeepseekV2TopkRouter of transformers 5.23."""
    method = keys.text("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise keys.wrong("topk_method", "is not run", "Give a model of DeepSeek's second version")
    if keys.flag("norm_topk_prob"):
        raise keys.wrong("norm_topk_prob", "is not what the model's own code does")
    groups, kept = (1, 1) if method == "greedy" else _said_groups(keys, decoder)
    return RouterRule(
        scores="softmax",
        normalised=False,
        groups=groups,
        kept_groups=kept,
        scale=_scale(keys),
        by_best=True if groups > 1 else UNSET,
    )


def scored_groups(keys: Keys, decoder: Decoder) -> RouterRule:
    """Return the rule of DeepSeek V3. Source: DeepseekV3TopkRouter of transformers 5.23."""
    for key, known in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if keys.has(key) and keys.text(key) != known:
            raise keys.wrong(key, "is not run", f"Give a model with {known}")
    groups, kept = _said_groups(keys, decoder)
    return RouterRule(
        scores="sigmoid",
        normalised=keys.flag(keys.one_of("norm_topk_prob")),
        groups=groups,
        kept_groups=kept,
        expert_bias=True,
        scale=_scale(keys),
    )


def softmax_groups(keys: Keys, decoder: Decoder) -> RouterRule:
    """Return the rule of Mistral 4. Source: Mistral4TopkRouter of transformers 5.23."""
    groups, kept = _said_groups(keys, decoder)
    return RouterRule(
        scores="softmax",
        normalised=keys.flag(keys.one_of("norm_topk_prob")),
        groups=groups,
        kept_groups=kept,
        scale=_scale(keys),
    )
