"""What a layout is, and what several model types compose their layers of."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nearfree.decoders.keys import Keys
from nearfree.decoders.mixers import gqa
from nearfree.decoders.pieces import Part, Plan, by_kind, every, norms, together
from nearfree.decoders.special import BOTH, WINDOW


class Layout(NamedTuple):
    """A model type's layers, and the names of all around them under `root`.

    `head` is a whole name; `norm_bias` holds where the last norm has one, `head_bias` is the key
    that says whether the LM head has one. `outside` are weights behind the layers.
    """

    plan: Plan
    root: str = "model"
    layers: str = "layers"
    embedding: str = "embed_tokens"
    norm: str = "norm"
    head: str = "lm_head"
    norm_bias: bool = False
    head_bias: str = ""
    outside: Callable[[Keys], Sequence[Part]] = lambda keys: ()  # noqa: ARG005


NORMS = norms("input_layernorm", "post_attention_layernorm")
NAMED_NORMS = ("query_layernorm", "key_layernorm")
ONE_NORM = norms("input_layernorm")
POST_NORMS = norms("post_attention_layernorm", "post_feedforward_layernorm")
WIDE: dict[str, Any] = {"whole_norm": True, **BOTH}
FOUR_NORMS = norms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)  # fmt: skip

GLM_NORMS = norms(
    "input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm",
    "post_mlp_layernorm",
)  # fmt: skip


def block(*plans: Plan) -> Layout:
    """Return the layout of layers with a norm before each of their two pieces."""
    return Layout(together(NORMS, *plans))


def alternating(period: int | str | Callable[[Keys, int], Sequence[str]], **attention: Any) -> Plan:
    """Return the plan of attention that has a window in all but the last layer of each period.

    `period` is a number, the key of one, or what says the kinds of layers where a file does not.
    """
    kinds = {
        "sliding_attention": gqa(window=WINDOW, **attention),
        "full_attention": gqa(**attention),
    }
    if isinstance(period, int | str):
        period = every(period, "full_attention", "sliding_attention")
    return by_kind("layer_types", kinds, period)
