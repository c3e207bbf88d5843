"""How a model chooses the experts of a token, and which of its layers have experts."""

from typing import Literal

from msgspec import Struct

from nearfree.core.protocols import Positive
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.keys import Keys


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


def everywhere(keys: Keys, layers: int) -> tuple[int, ...]:  # noqa: ARG001
    """Return all layers."""
    return tuple(range(layers))


def every_step(keys: Keys, layers: int) -> tuple[int, ...]:
    """Return every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    step = keys.whole("decoder_sparse_step")
    without = set(keys.list_of("mlp_only_layers", int))
    return tuple(layer for layer in range(step - 1, layers, step) if layer not in without)


def after_first(keys: Keys, layers: int) -> tuple[int, ...]:
    """Return the layers after the first `first_k_dense_replace`."""
    return tuple(range(keys.whole("first_k_dense_replace", least=0), layers))
