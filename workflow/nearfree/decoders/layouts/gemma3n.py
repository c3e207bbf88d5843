"""Gemma 3n: layers mix several states, have a narrow branch and an input of their own each."""

from collections.abc import Sequence

from nearfree.decoders.altup import AltUp
from nearfree.decoders.decoder import Ffn
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import GATED, Feed
from nearfree.decoders.layouts.layout import FOUR_NORMS, layered
from nearfree.decoders.layouts.mixers import gqa
from nearfree.decoders.layouts.pieces import (
    Layer,
    Matrix,
    Piece,
    by_kind,
    in_every_layer,
    linear,
    one_per_period,
    vector,
)
from nearfree.decoders.layouts.special import BOTH, WINDOW

_WIDTH, _STATES, _RANK = "intermediate_size", "altup_num_inputs", "laurel_rank"
_INPUTS, _ROWS = "hidden_size_per_layer_input", "vocab_size_per_layer_input"
_FULL, _WINDOWED = "full_attention", "sliding_attention"
_KINDS = one_per_period(5, _FULL, _WINDOWED)


def _widths(keys: Keys, layers: int) -> list[int]:
    """Return the width of each layer's FFN: one number for all, or one per layer."""
    if not isinstance(keys.values.get(_WIDTH), list):
        return [keys.whole(_WIDTH)] * layers
    widths = keys.list_of(_WIDTH, int)
    if len(widths) != layers:
        raise keys.wrong(_WIDTH, f"has {len(widths)} entries for {layers} layers")
    if min(widths) < 1:
        raise keys.wrong(_WIDTH, "has layers without an FFN")
    return widths


def _ffn(keys: Keys, layers: int) -> Layer:
    d_model, widths = keys.whole("hidden_size"), _widths(keys, layers)
    pieces = {
        width: Piece(tuple(GATED.parts("mlp", "ffn", d_model, width))) for width in set(widths)
    }
    return lambda layer: pieces[widths[layer]]


def gemma3n_ffn(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Gemma 3n, all of whose weights engines read.

    In some layers all but the largest gates are set to zero, which saves a GPU no product.
    Source: Gemma3nTextMLP of transformers 5.23.
    """
    widths = _widths(keys, layers)
    counted = tuple((width, widths.count(width)) for width in sorted(set(widths), reverse=True))
    return Ffn(counted[0][0], widths=counted if len(counted) > 1 else ())


def _attention(keys: Keys, layers: int) -> Layer:
    """Read attention, whose last layers take the cache of the last layer of their kind before.

    Engines take the last layer before them for one that sees all, and the one before that for one
    with a window: vllm 0.33.0, vllm/model_executor/models/gemma3n.py:355-362.
    """
    shared, key = "num_kv_shared_layers", "layer_types"
    first = layers - keys.whole(shared, least=0)
    kinds = [str(kind) for kind in (keys.each(key) if keys.has(key) else _KINDS(keys, layers))]
    if first < 0:
        raise keys.wrong(shared, f"is more than {layers} layers")
    taken = {_FULL: kinds[first - 1 : first], _WINDOWED: kinds[first - 2 : first - 1]}
    for kind in sorted(set(kinds[first:layers]) & set(taken)):
        if first < 2 or taken[kind] != [kind]:
            why = f"makes layers take the cache of one that is no {kind} by layer_types"
            raise keys.wrong(shared, why)

    def plan(*, shares: bool) -> Layer:
        windowed = gqa(window=WINDOW, norm=True, shares=shares, **BOTH)
        full = gqa(norm=True, shares=shares, **BOTH)
        return by_kind(key, {_WINDOWED: windowed, _FULL: full}, _KINDS)(keys, layers)

    own, others = plan(shares=False), plan(shares=True)
    return lambda layer: (own if layer < first else others)(layer)


def altup_of(keys: Keys) -> AltUp:
    """Return the states and the branch of a file's layers; engines assume a scaled correction.

    Source: vllm 0.33.0, vllm/model_executor/models/gemma3n.py (assert config.altup_correct_scale).
    """
    scale = "altup_correct_scale"
    if keys.has(scale) and not keys.flag(scale):
        raise keys.wrong(scale, "is off, and engines do not run that")
    states, rank = keys.wholes(_STATES, _RANK)
    return AltUp(states=states, rank=rank)


def _mixing(keys: Keys, layers: int) -> Layer:  # noqa: ARG001 (one signature for all)
    altup, (d_model, width, _) = altup_of(keys), keys.wholes("hidden_size", _INPUTS, _ROWS)
    states = altup.states
    parts = (
        *vector("altup.correct_output_scale", d_model),
        *linear("altup.correction_coefs", "other", states, states),
        *linear("altup.prediction_coefs", "other", states, states**2),
        *linear("altup.modality_router", "other", d_model, states),
        *vector("altup.router_norm", d_model),
        *linear("laurel.linear_left", "other", d_model, altup.rank),
        *linear("laurel.linear_right", "other", altup.rank, d_model),
        *vector("laurel.post_laurel_norm", d_model),
        *linear("per_layer_input_gate", "other", d_model, width),
        *linear("per_layer_projection", "other", width, d_model),
        *vector("post_per_layer_input_norm", d_model),
    )
    return in_every_layer(Piece(parts))


def _outside(keys: Keys) -> Sequence[Matrix]:
    """Return the weights of per-layer inputs and of further states. Source: Gemma3nTextModel."""
    d_model, width, rows = keys.wholes("hidden_size", _INPUTS, _ROWS)
    all_widths, more = keys.whole("num_hidden_layers") * width, altup_of(keys).states - 1
    projections = ("altup_projections", "altup_unembed_projections") if more else ()
    return (
        Matrix("model.embed_tokens_per_layer", "embedding", all_widths, rows),
        *linear("model.per_layer_model_projection", "other", d_model, all_widths),
        *vector("model.per_layer_projection_norm", width),
        *(Matrix(f"model.{name}.*", "other", d_model, d_model, more) for name in projections),
    )


GEMMA_3N = {
    "gemma3n_text": layered(FOUR_NORMS, _attention, Feed(_ffn, gemma3n_ffn), _mixing)._replace(
        layer_inputs=_INPUTS, altup=altup_of, outside=_outside
    ),
}
"""By model type. Source: modeling file of transformers 5.23."""
