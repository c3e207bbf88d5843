"""LFM2: most layers have a short convolution instead of attention; FFNs are dense or experts."""

from collections.abc import Sequence

from nearfree.decoders.decoder import Ffn
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import NUMBERED, Feed, Names, after_dense, ffn, moe, moe_rule
from nearfree.decoders.layouts.layout import layered
from nearfree.decoders.layouts.mixers import gqa
from nearfree.decoders.layouts.pieces import Layer, Plan, by_kind, norms
from nearfree.decoders.layouts.state import short_conv
from nearfree.errors import Refusals

_WIDTH, _FACTOR, _STEP = "intermediate_size", "block_ffn_dim_multiplier", "block_multiple_of"
_ATTENDS = "full_attn_idxs"


def _width(keys: Keys) -> int:
    """Return the width of LFM2's Dense FFN: two thirds of `intermediate_size`, rounded up.

    Without a factor the class of transformers does not round, but engines do.
    Source: Lfm2MLP of transformers 5.23; vllm 0.33.0, vllm/model_executor/models/lfm2.py:70-80.
    """
    width = keys.whole(_WIDTH)
    adjusts = "block_auto_adjust_ff_dim"
    if keys.has(adjusts) and not keys.flag(adjusts):
        return width
    if _FACTOR in keys.values and not keys.has(_FACTOR):
        raise keys.wrong(_FACTOR, "is one that engines disagree on", "Write 1.0, or another number")
    factor = keys.number(_FACTOR, most=1e3) if keys.has(_FACTOR) else 1.0
    step, width_before_rounding = keys.whole(_STEP, default=256), int(factor * int(2 * width / 3))
    if not width_before_rounding:
        raise keys.wrong(_WIDTH, "leaves an FFN without width")
    return -(-width_before_rounding // step) * step


def lfm2_ffn(keys: Keys, layers: int) -> Ffn:  # noqa: ARG001 (one signature for all)
    """Return the FFN of LFM2's models without experts."""
    return Ffn(_width(keys))


def _dense(keys: Keys, layers: int) -> Layer:
    plan = ffn(module="feed_forward", form=NUMBERED)
    return plan(keys.replaced(_WIDTH, _width(keys)), layers)


lfm2_moe = moe_rule(after_dense, count=("num_experts",))
"""The FFNs of LFM2's models with experts. Source: Lfm2MoeDecoderLayer of transformers 5.23."""


def _order(keys: Keys, layers: int) -> Sequence[str]:
    """Return the kinds of layers from the numbers of those that attend: all if the key is absent.

    Source: Lfm2Config of transformers 5.23.
    """
    if not keys.has(_ATTENDS):
        return ["full_attention"] * layers
    attend = set(keys.list_of(_ATTENDS, int))
    if not attend or attend - set(range(layers)):
        raise keys.wrong(_ATTENDS, f"names none of {layers} layers, or others")
    return ["full_attention" if layer in attend else "conv" for layer in range(layers)]


def _mixers(keys: Keys, layers: int) -> Layer:
    """Read a layer's attention or convolution; engines read the latter's width from its own keys.

    Source: vllm 0.33.0, vllm/model_executor/models/lfm2.py (conv_dim, block_dim) and 560
    (the LM head, which is the embedding whatever a file says), and lfm2_moe.py:590.
    """
    refusals, width = Refusals(), keys.whole("hidden_size")
    for key in ("conv_dim", "conv_dim_out", "block_dim"):
        with refusals.collect():
            if keys.whole(key, default=width) != width:
                raise keys.wrong(key, f"is not hidden_size {width}, and engines disagree on it")
    with refusals.collect():
        if not keys.flag("tie_word_embeddings"):
            why = "leaves an LM head of its own, which engines disagree on"
            raise keys.wrong("tie_word_embeddings", why)
    refusals.check()
    attention = gqa(output="out_proj", norm=True, norm_names=("q_layernorm", "k_layernorm"))
    kinds: dict[str, Plan] = {"full_attention": attention, "conv": short_conv}
    return by_kind("layer_types", kinds, _order, other_keys=(_ATTENDS,))(keys, layers)


_NORMS = norms("operator_norm", "ffn_norm")
_NAMES = Names(module="feed_forward", form=NUMBERED, shared_form=NUMBERED, dense="feed_forward")
_LAYOUTS = {
    "lfm2": layered(_NORMS, _mixers, Feed(_dense, lfm2_ffn)),
    "lfm2_moe": layered(_NORMS, _mixers, moe(lfm2_moe, _NAMES)),
}
LFM2 = {kind: layout._replace(norm="embedding_norm") for kind, layout in _LAYOUTS.items()}
"""By model type. Sources: modeling files of transformers 5.23."""
