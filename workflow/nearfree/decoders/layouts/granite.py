"""FFNs of Granite's models: experts, and a Dense FFN or a shared FFN beside them."""

from nearfree.decoders.decoder import Ffn, routed_experts
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import LINEAR, Names, all_layers, ffn, moe, moe_rule
from nearfree.decoders.layouts.pieces import Layer, combined

_SHARED = "shared_intermediate_size"


def granite_hybrid_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Granite 4: a Dense FFN in every layer, and experts beside it, if any.

    Engines run the Dense FFN after the experts and all-reduce both separately, unlike shared
    experts. Source: GraniteMoeHybridDecoderLayer of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/granitemoehybrid.py and granitemoeshared.py (GraniteMoeSharedMLP),
    and sglang 0.5.23, sglang/srt/models/granitemoehybrid.py.
    """
    width = keys.whole(_SHARED)
    if not keys.whole("num_local_experts", least=0):
        return Ffn(width)
    experts = routed_experts(keys, "num_local_experts", width="intermediate_size")
    return Ffn(width, range(layers), experts, beside=True)


GRANITE = moe(
    moe_rule(all_layers, count=("num_local_experts",), width="intermediate_size"),
    Names(module="block_sparse_moe", experts="", form=LINEAR, router="router.layer"),
)
"""The experts of Granite's models."""


def granite_hybrid_ffn(keys: Keys, layers: int) -> Layer:
    """Read the FFNs that `granite_hybrid_moe` describes."""
    dense = ffn(module="shared_mlp", width=_SHARED, form=LINEAR)
    if not keys.whole("num_local_experts", least=0):
        return dense(keys, layers)
    return combined(dense, GRANITE)(keys, layers)


def granite_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Granite's MoE models: experts in every layer, and a shared FFN.

    There is no shared FFN where its width is 0 or absent, as in their class.
    Source: GraniteMoeSharedDecoderLayer of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/granitemoeshared.py:101-116.
    """
    if keys.whole(_SHARED, least=0, default=0):
        return granite_hybrid_moe(keys, layers)
    return GRANITE.rule(keys, layers)


def granite_ffn(keys: Keys, layers: int) -> Layer:
    """Read the FFNs that `granite_moe` describes."""
    shared = keys.whole(_SHARED, least=0, default=0)
    return (granite_hybrid_ffn if shared else GRANITE)(keys, layers)
