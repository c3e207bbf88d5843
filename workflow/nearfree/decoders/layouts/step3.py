"""Step 3: queries are projected from a latent, and layers with experts have a Dense FFN as well."""

from collections.abc import Sequence

from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.decoder import Ffn
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.cache import caches_of
from nearfree.decoders.layouts.feeds import GATED, Feed, Names, enumerated_layers, moe, moe_rule
from nearfree.decoders.layouts.layout import block
from nearfree.decoders.layouts.pieces import (
    Layer,
    Piece,
    in_every_layer,
    joined,
    projection,
    vector,
)

_SHARED, _LAYERS, _ATTENTION = "share_expert_dim", "moe_layers_enum", "self_attn"


def step3_attention(keys: Keys, layers: int) -> Layer:  # noqa: ARG001 (one signature for all)
    """Read the attention of Step 3, whose heads all share one key.

    One product, which each rank runs whole, makes a latent of queries, the key and the value; a
    second makes the queries of a rank's heads.
    Source: vllm 0.33.0, vllm/model_executor/models/step3_text.py (Step3TextAttention), and sglang
    0.5.23, sglang/srt/models/step3_vl.py, which take it that there is one key head.
    """
    groups = "num_attention_groups"
    if keys.whole(groups, default=1) != 1:
        raise keys.wrong(groups, "is not 1, the number of key heads that engines take for granted")
    d_model, heads, head_dim, rank = keys.wholes(
        "hidden_size", "num_attention_heads", "head_dim", "share_q_dim"
    )
    kind = Grouped(heads=heads, kv_heads=1, head_dim=head_dim, query_rank=rank)
    parts = (
        *projection(f"{_ATTENTION}.q_proj", d_model, rank),
        *projection(f"{_ATTENTION}.k_proj", d_model, head_dim),
        *projection(f"{_ATTENTION}.v_proj", d_model, head_dim),
        *vector(f"{_ATTENTION}.inter_norm", rank),
        *projection(f"{_ATTENTION}.wq", rank, kind.queries),
        *projection(f"{_ATTENTION}.o_proj", kind.inputs, d_model),
    )
    return in_every_layer(Piece(parts, caches_of(kind), (kind,)))


def _with_experts(keys: Keys, layers: int) -> Sequence[int]:
    """Return the layers with experts, which a file must list."""
    keys.text(_LAYERS)
    return enumerated_layers(keys, layers)


_EXPERTS = moe(
    moe_rule(_with_experts, count=("num_experts",)),
    Names(module="", router="moe.gate", experts="moe"),
)


def step3_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Step 3: experts and a Dense FFN beside them, or a wider Dense FFN alone.

    vLLM runs the Dense FFN before the experts and all-reduces both separately, unlike shared
    experts. Source: vllm 0.33.0, vllm/model_executor/models/step3_text.py (Step3TextDecoderLayer).
    """
    usual, shared = _EXPERTS.rule(keys, layers), keys.whole(_SHARED)
    if not usual.moe_at:
        return usual
    dense = ((usual.d_ff, layers - len(usual.moe_at)),) if usual.d_ff else ()
    widths = tuple(sorted((*dense, (shared, len(usual.moe_at))), reverse=True))
    return usual._replace(d_ff=widths[0][0], beside=True, widths=widths if len(widths) > 1 else ())


def _ffns(keys: Keys, layers: int) -> Layer:
    moe_at = frozenset(_EXPERTS.rule(keys, layers).moe_at)
    usual, d_model = _EXPERTS.plan(keys, layers), keys.whole("hidden_size")
    shared = Piece(tuple(GATED.parts("share_expert", "ffn", d_model, keys.whole(_SHARED))))
    return lambda layer: joined([usual(layer), shared]) if layer in moe_at else usual(layer)


STEP3 = {"step3_text": block(step3_attention, Feed(_ffns, step3_moe))}
"""By model type. Source: vllm 0.33.0, vllm/model_executor/models/step3_text.py."""
