"""Layouts of models whose windows or experts stand in layers by rules of their own."""

from collections.abc import Sequence

from nearfree.decoders.decoder import Ffn, first_dense, unwindowed
from nearfree.decoders.feeds import (
    GRANITE,
    everywhere,
    ffn,
    granite_hybrid_ffn,
    granite_hybrid_moe,
    marked,
    moe,
    some,
)
from nearfree.decoders.keys import Keys
from nearfree.decoders.layout import ONE_NORM, Layout, alternating, block
from nearfree.decoders.mixers import gqa
from nearfree.decoders.pieces import Layer, together
from nearfree.decoders.special import BOTH

_FULL, _NEAR = "full_attention", "sliding_attention"


def _first_of_four(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001 (one signature)
    """Return the kinds of layers of which the first of each four alone has no window."""
    return [_NEAR if layer % 4 else _FULL for layer in range(layers)]


def _every_layer(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kinds of layers that all have a window where the file says one."""
    return [_FULL if keys.whole_or_null("sliding_window") is None else _NEAR] * layers


def _no_layer(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001
    return [_FULL] * layers


def _with_sinks(keys: Keys, layers: int) -> Layer:
    """Read the attention of Granite with windows, whose heads have sinks in every layer.

    Source: GraniteSWAAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/granite.py:85-109, has none where `attention_sinks` is false.
    """
    key = "attention_sinks"
    if keys.has(key) and keys.empty(key):
        raise keys.wrong(key, "leaves out sinks in some engines alone", "Leave it out")
    return alternating(_first_of_four, sinks=True, **BOTH)(keys, layers)


def granite_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Granite's MoE models: experts in every layer, and what all tokens pass.

    The second is not there where its width is 0, or not said, as of their class.
    Source: GraniteMoeSharedDecoderLayer of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/granitemoeshared.py:101-116.
    """
    if keys.whole(_SHARED, least=0, default=0):
        return granite_hybrid_moe(keys, layers)
    return some(everywhere, count=("num_local_experts",), width="intermediate_size")(keys, layers)


def _granite_ffn(keys: Keys, layers: int) -> Layer:
    """Read what `granite_moe` counts."""
    shared = keys.whole(_SHARED, least=0, default=0)
    return (granite_hybrid_ffn if shared else GRANITE)(keys, layers)


_SHARED = "shared_intermediate_size"


def _sparse(keys: Keys, layers: int) -> Sequence[int]:
    """Return the layers that `mlp_layer_types` names, else those behind the first dense ones."""
    if keys.has("mlp_layer_types"):
        return marked("mlp_layer_types")(keys, layers)
    return range(_dense(keys), layers)


def _dense(keys: Keys) -> int:
    return keys.whole("first_k_dense_replace", least=0, default=0)


mellum_moe = some(_sparse, count=("num_experts", "num_local_experts"))
"""The FFNs of Mellum 2. Source: MellumConfig and MellumDecoderLayer of transformers 5.23."""


def cohere2_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Command A+: the first are dense, of a width of their own if one is said.

    Source: Cohere2MoeDecoderLayer and Cohere2MoeSparseMoeBlock of transformers 5.23.
    """
    key = "prefix_dense_intermediate_size"
    rule = some(
        _sparse,
        count=("num_experts",),
        width="intermediate_size",
        shared=("num_shared_experts", "intermediate_size"),
        dense=key if keys.has(key) else "intermediate_size",
    )
    return rule(keys, layers)


def _cohere2_windows(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kinds of Command A+'s layers, whose first ones have a period of their own.

    Source: Cohere2MoeConfig of transformers 5.23.
    """
    first = min(_dense(keys), layers)
    found: list[str] = []
    periods = ("prefix_dense_sliding_window_pattern", first), ("sliding_window_pattern", layers)
    for period, end in periods:
        step, count = keys.whole(period), end - len(found)
        found += [_NEAR if layer % step else _FULL for layer in range(1, count + 1)]
    return found


def dots_window(keys: Keys, layers: int) -> int | None:
    """Return None, for dots.llm1, whose files say a window that no layer has.

    Source: Dots1Config of transformers 5.23, by which layers from `max_window_layers` on have one.
    """
    key = "max_window_layers"
    has = keys.has("sliding_window") and keys.whole("sliding_window")
    if has and keys.whole(key, least=0, default=layers) < layers:
        raise keys.wrong(key, f"leaves a window to some of {layers} layers", "Give a model without")
    return None


def solar_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Solar Open: experts in every layer, and shared ones beside them.

    Source: SolarOpenDecoderLayer of transformers 5.23.
    """
    if _dense(keys):
        raise keys.wrong("first_k_dense_replace", "is not 0: its class has no dense layers")
    shared = ("n_shared_experts", "moe_intermediate_size")
    return some(everywhere, count=("n_routed_experts",), shared=shared)(keys, layers)


_FFN = ffn(bias="mlp_bias")
WINDOWED = {
    "granite_swa": block(_with_sinks, _FFN),
    "granitemoe_swa": block(_with_sinks, _granite_ffn),
    "granitemoeshared": block(gqa(**BOTH), _granite_ffn),
    "cwm": block(alternating(_first_of_four), _FFN),
    "ministral": block(alternating(_every_layer), ffn()),
    "mellum": block(alternating(_no_layer, norm=True, **BOTH), moe(mellum_moe)),
    "cohere2_moe": Layout(
        together(ONE_NORM, alternating(_cohere2_windows, **BOTH), moe(cohere2_moe))
    ),
    "dots1": block(gqa(window=dots_window, norm=True, **BOTH), moe(first_dense)),
    "solar_open": block(gqa(window=unwindowed, qkv_bias="attention_bias"), moe(solar_moe)),
}
"""By model type. Sources: modeling files of transformers 5.23."""
