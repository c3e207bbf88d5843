"""Which layers have which FFN, by the rule of each family of models."""

from typing import NamedTuple

from nearfree.decoders.decoder import Experts
from nearfree.decoders.keys import Keys


class Ffn(NamedTuple):
    """Width of the Dense FFN, None if no layer has one; MoE layers, and what is in each."""

    d_ff: int | None
    moe_layers: int = 0
    experts: Experts | None = None


def dense(keys: Keys, layers: int) -> Ffn:  # noqa: ARG001 (one signature for all)
    """Return the FFN of models without experts."""
    return Ffn(keys.whole("intermediate_size"))


def all_experts(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of models with experts in every layer, such as Mixtral and OLMoE."""
    count = keys.one_of("num_local_experts", "num_experts")
    return Ffn(None, layers, _experts(keys, count, width="intermediate_size"))


def qwen_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of Qwen's MoE models: every `decoder_sparse_step`-th layer has experts.

    Layers in `mlp_only_layers` have none. The experts that every token passes are one FFN, whose
    width the file says; Qwen3 has none.
    Source: Qwen2MoeDecoderLayer and Qwen3MoeDecoderLayer of transformers 5.23.
    """
    step = keys.whole("decoder_sparse_step")
    without = {layer for layer in keys.list_of("mlp_only_layers", int) if 0 <= layer < layers}
    moe_layers = layers // step - sum((layer + 1) % step == 0 for layer in without)
    qwen2 = keys.text("model_type") == "qwen2_moe"
    shared = keys.whole("shared_expert_intermediate_size", least=0) if qwen2 else 0
    count = keys.one_of("num_experts", "num_local_experts")
    return _mixed(keys, layers, moe_layers, _experts(keys, count, shared_d_ff=shared))


def first_dense(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of models whose first layers alone are dense: Ling, LLaDA2, GLM-4.5.

    The experts that every token passes are one FFN, as wide as all of them.
    Source: BailingMoeV2SparseMoeBlock of inclusionAI/Ling-V2, LLaDA2MoeSparseMoeBlock of
    inclusionAI/dFactory, Glm4MoeMoE of transformers 5.23.
    """
    glm = keys.text("model_type") == "glm4_moe"
    count, shared = (
        ("n_routed_experts", "n_shared_experts") if glm else ("num_experts", "num_shared_experts")
    )
    shared_experts = keys.whole(shared, least=0)
    shared_d_ff = shared_experts * keys.whole("moe_intermediate_size")
    key = "moe_shared_expert_intermediate_size"
    if keys.has(key) and shared_experts and keys.whole(key) * shared_experts != shared_d_ff:
        raise keys.wrong(key, "differs from moe_intermediate_size, and engines disagree on it")
    moe_layers = max(0, layers - keys.whole("first_k_dense_replace", least=0))
    return _mixed(keys, layers, moe_layers, _experts(keys, count, shared_d_ff=shared_d_ff))


def ernie_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFN of ERNIE 4.5: every `moe_layer_interval`-th layer of a range has experts.

    Source: Ernie4_5_MoeDecoderLayer of transformers 5.23.
    """
    interval = keys.whole("moe_layer_interval")
    start = keys.whole("moe_layer_start_index", least=0)
    end = keys.whole("moe_layer_end_index", least=-1)
    end = layers - 1 if end == -1 else min(end, layers - 1)
    moe_layers = max(0, (end + 1) // interval - start // interval)
    shared = keys.whole("moe_num_shared_experts", least=0) * keys.whole("moe_intermediate_size")
    experts = _experts(keys, "moe_num_experts", top_k="moe_k", shared_d_ff=shared)
    return _mixed(keys, layers, moe_layers, experts)


def _mixed(keys: Keys, layers: int, moe_layers: int, experts: Experts) -> Ffn:
    d_ff = keys.whole("intermediate_size") if moe_layers < layers else None
    return Ffn(d_ff, moe_layers, experts if moe_layers else None)


def _experts(
    keys: Keys,
    count: str,
    *,
    top_k: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    shared_d_ff: int = 0,
) -> Experts:
    experts = Experts(
        experts=keys.whole(count),
        top_k=keys.whole(top_k),
        d_ff=keys.whole(width),
        shared_d_ff=shared_d_ff,
    )
    if experts.top_k > experts.experts:
        raise keys.wrong(top_k, f"is larger than {count} {experts.experts}")
    return experts
