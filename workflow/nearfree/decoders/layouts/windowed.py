"""Layouts of models with their own rules for which layers have windows or experts."""

from collections.abc import Sequence

from nearfree.decoders.decoder import Ffn, first_dense, unwindowed
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import (
    Feed,
    all_layers,
    ffn,
    marked_layers,
    moe,
    moe_rule,
)
from nearfree.decoders.layouts.granite import granite_ffn, granite_moe
from nearfree.decoders.layouts.layout import ONE_NORM, alternating, block, layered
from nearfree.decoders.layouts.mixers import gqa
from nearfree.decoders.layouts.pieces import Layer
from nearfree.decoders.layouts.special import BOTH, all_see_all

_FULL, _WINDOWED = "full_attention", "sliding_attention"


def _first_of_four(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001 (one signature)
    """Return the kinds of layers: of each four only the first has no window."""
    return [_WINDOWED if layer % 4 else _FULL for layer in range(layers)]


def _every_layer(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kinds of layers that all have a window if the file gives one."""
    return [_FULL if keys.whole_or_null("sliding_window") is None else _WINDOWED] * layers


def _with_sinks(keys: Keys, layers: int) -> Layer:
    """Read the attention of Granite with windows: heads have attention sinks in every layer.

    Source: GraniteSWAAttention of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/granite.py:85-109, has no sinks where `attention_sinks` is false.
    """
    key = "attention_sinks"
    if keys.has(key) and keys.empty(key):
        raise keys.wrong(key, "leaves out sinks in some engines alone", "Leave it out")
    return alternating(_first_of_four, sinks=True, **BOTH)(keys, layers)


def _dense(keys: Keys) -> int:
    return keys.whole("first_k_dense_replace", least=0, default=0)


_sparse = marked_layers("mlp_layer_types", lambda keys, layers: range(_dense(keys), layers))
mellum_moe = moe_rule(_sparse, count=("num_experts", "num_local_experts"))
"""The FFNs of Mellum 2. Source: MellumConfig and MellumDecoderLayer of transformers 5.23."""


def cohere2_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Command A+: the first are dense, of their own width if the file has one.

    Source: Cohere2MoeDecoderLayer and Cohere2MoeSparseMoeBlock of transformers 5.23.
    """
    key = "prefix_dense_intermediate_size"
    rule = moe_rule(
        _sparse,
        count=("num_experts",),
        width="intermediate_size",
        shared=("num_shared_experts", "intermediate_size"),
        dense=key if keys.has(key) else "intermediate_size",
    )
    return rule(keys, layers)


def _cohere2_windows(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kinds of Command A+'s layers; the first ones have their own period.

    Source: Cohere2MoeConfig of transformers 5.23.
    """
    first = min(_dense(keys), layers)
    kinds: list[str] = []
    periods = ("prefix_dense_sliding_window_pattern", first), ("sliding_window_pattern", layers)
    for period, end in periods:
        step, count = keys.whole(period), end - len(kinds)
        kinds += [_WINDOWED if layer % step else _FULL for layer in range(1, count + 1)]
    return kinds


def dots_window(keys: Keys, layers: int) -> int | None:
    """Return None, for dots.llm1, whose files give a window that no layer has.

    Source: Dots1Config of transformers 5.23, by which layers from `max_window_layers` on have one.
    """
    key = "max_window_layers"
    window = keys.has("sliding_window") and keys.whole("sliding_window")
    if window and keys.whole(key, least=0, default=layers) < layers:
        raise keys.wrong(key, f"leaves a window to some of {layers} layers", "Give a model without")
    return None


def solar_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Solar Open: routed and shared experts in every layer.

    Source: SolarOpenDecoderLayer of transformers 5.23.
    """
    if _dense(keys):
        raise keys.wrong("first_k_dense_replace", "is not 0: its class has no dense layers")
    shared = ("n_shared_experts", "moe_intermediate_size")
    return moe_rule(all_layers, count=("n_routed_experts",), shared=shared)(keys, layers)


_FFN = ffn(bias="mlp_bias")
_GRANITE = Feed(granite_ffn, granite_moe)
WINDOWED = {
    "granite_swa": block(_with_sinks, _FFN),
    "granitemoe_swa": block(_with_sinks, _GRANITE),
    "granitemoeshared": block(gqa(**BOTH), _GRANITE)._replace(window=unwindowed),
    "cwm": block(alternating(_first_of_four), _FFN),
    "ministral": block(alternating(_every_layer), ffn()),
    "mellum": block(alternating(all_see_all, norm=True, **BOTH), moe(mellum_moe)),
    "cohere2_moe": layered(ONE_NORM, alternating(_cohere2_windows, **BOTH), moe(cohere2_moe)),
    "dots1": block(gqa(window=dots_window, norm=True, **BOTH), moe(first_dense)),
    "solar_open": block(gqa(window=unwindowed, qkv_bias="attention_bias"), moe(solar_moe)),
}
"""By model type. Sources: modeling files of transformers 5.23."""
