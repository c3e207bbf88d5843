"""The layout of a model type, and plans that several model types share."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nearfree.decoders.altup import AltUp
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import Feed, Rule
from nearfree.decoders.layouts.mixers import Attention, Window, gqa
from nearfree.decoders.layouts.pieces import Matrix, Plan, by_kind, combined, norms, one_per_period
from nearfree.decoders.layouts.special import BOTH, WINDOW


class Layout(NamedTuple):
    """The plan of a model type's layers, and the checkpoint's names of layers and other weights.

    `ffn` describes the FFNs. Without a `window` rule layers may differ and are read one by one.
    `says_head_dim` requires `head_dim`: the width of a head does not follow from d_model. Three
    fields are keys, empty if there is none: `layer_inputs` of the width of each layer's own input,
    `streams` of the number of residual states, and `residual_block` of the number of layers whose
    joint output later layers attend to. `altup` reads residual states that alternate (Gemma 3n).
    `states` are the keys by which some layers have a state mixer instead of attention, or beside
    it. With `apart` each layer is one piece, and FFN layers have no attention.

    `layers`, `embedding` and `norm` are names under `root`, `norm` empty where norms have no
    weights; `head` is a full name. `norm_bias` says that the last norm has a bias; `head_bias` is
    the key that says whether the LM head has one. `outside` returns further weights outside of the
    layers.
    """

    plan: Plan
    ffn: Rule
    window: Window | None = None
    says_head_dim: bool = False
    layer_inputs: str = ""
    streams: str = ""
    altup: Callable[[Keys], AltUp] | None = None
    residual_block: str = ""
    states: tuple[str, ...] = ()
    apart: bool = False
    root: str = "model"
    layers: str = "layers"
    embedding: str = "embed_tokens"
    norm: str = "norm"
    head: str = "lm_head"
    norm_bias: bool = False
    head_bias: str = ""
    outside: Callable[[Keys], Sequence[Matrix]] = lambda keys: ()  # noqa: ARG005


NORMS = norms("input_layernorm", "post_attention_layernorm")
_BIASED_NORMS = norms("input_layernorm", "post_attention_layernorm", bias=True)
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


def layered(*plans: Plan) -> Layout:
    """Return the layout of layers that have one piece from each of the plans, one of them a feed.

    Its window is that of a plan of attention that has one.
    """
    (ffn,) = (plan.rule for plan in plans if isinstance(plan, Feed))
    windows = (plan.window for plan in plans if isinstance(plan, Attention))
    return Layout(combined(*plans), ffn, next(windows, None))


def block(*plans: Plan) -> Layout:
    """Return the layout of layers of two pieces with a norm before each."""
    return layered(NORMS, *plans)


def biased(*plans: Plan) -> Layout:
    """Return the layout of `block`, with biases in all norms."""
    return layered(_BIASED_NORMS, *plans)._replace(norm_bias=True)


def alternating(period: int | str | Callable[[Keys, int], Sequence[str]], **attention: Any) -> Plan:
    """Return the plan of attention that has a window in all but the last layer of each period.

    `period` is a number, the key of one, or a function that returns the kinds of layers where the
    file has no `layer_types`.
    """
    kinds = {
        "sliding_attention": gqa(window=WINDOW, **attention),
        "full_attention": gqa(**attention),
    }
    if isinstance(period, int | str):
        period = one_per_period(period, "full_attention", "sliding_attention")
    return by_kind("layer_types", kinds, period)
