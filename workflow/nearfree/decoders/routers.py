"""Rules by which routers choose a token's experts and weight them, by family."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, structs

from nearfree.core.protocols import Positive
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.keys import Keys


class RouterRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rule by which a router chooses the k experts with the highest scores.

    `scores` are a softmax or sigmoids of the router's logits; the scores of the chosen experts are
    their weights. With `normalised` these weights are divided by their sum. Experts form `groups`
    groups of equal size; experts are chosen only from the `kept_groups` groups whose two best
    scores have the highest sums, or with `by_best` whose best score is highest. With `expert_bias`
    a bias is added to scores for the choice, not to weights. `scale` multiplies weights. With
    `logit_bias` the logits have a bias. With `on_inputs` weights multiply the experts' inputs, not
    their outputs.
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
        scale=_scale(keys),
    )


def _groups(keys: Keys, decoder: Decoder, groups: int, kept: int) -> tuple[int, int]:
    """Return the groups and kept groups; ConfigError if they do not divide the experts."""
    experts, top_k = (decoder.experts.experts, decoder.experts.top_k) if decoder.experts else (1, 1)
    if experts % groups or experts < 2 * groups:
        raise keys.wrong("n_group", f"does not divide {experts} experts into groups of two or more")
    if kept > groups or kept * (experts // groups) < top_k:
        raise keys.wrong("topk_group", f"of {groups} groups does not hold {top_k} experts")
    return groups, kept


def _groups_or_one(keys: Keys, decoder: Decoder) -> tuple[int, int]:
    """Return the groups and kept groups of a file, by default one each."""
    groups, kept = (keys.whole(key, default=1) for key in ("n_group", "topk_group"))
    return _groups(keys, decoder, groups, kept)


def _scale(keys: Keys) -> float:
    return keys.number("routed_scaling_factor", most=1e6)


def with_bias(keys: Keys, decoder: Decoder) -> RouterRule:
    """Return the rule of gpt-oss: a softmax over the logits of the chosen experts.

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
    groups, kept = (1, 1) if method == "greedy" else _groups_or_one(keys, decoder)
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
    for key, value in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if keys.has(key) and keys.text(key) != value:
            raise keys.wrong(key, "is not run", f"Give a model with {value}")
    return structs.replace(softmax_groups(keys, decoder), scores="sigmoid", expert_bias=True)


def softmax_groups(keys: Keys, decoder: Decoder) -> RouterRule:
    """Return the rule of Mistral 4. Source: Mistral4TopkRouter of transformers 5.23."""
    groups, kept = _groups_or_one(keys, decoder)
    return RouterRule(
        scores="softmax",
        normalised=keys.flag(keys.one_of("norm_topk_prob")),
        groups=groups,
        kept_groups=kept,
        scale=_scale(keys),
    )
