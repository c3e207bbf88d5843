"""What each kind of a decoder's layers is: its shape and how it computes."""

from typing import NamedTuple

import torch
from torch import Tensor

from nearfree.backends.names import BackendRelease
from nearfree.decoders.attention_kinds import Grouped, Run, runs
from nearfree.decoders.attention_uses import attention_layers
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.decoders.forms import AttentionForm, Warmth


class LayerKind(NamedTuple):
    """A kind of layers: the shape of its attention, and how it computes."""

    kind: Run
    form: AttentionForm


def layer_kinds(decoder: Decoder, details: Details) -> tuple[LayerKind, ...]:
    """Return the kinds of a decoder's layers; one alone where the model has no other form."""
    kinds = runs(decoder.attention)
    forms = (
        details.form.attention
        if details.form
        else (AttentionForm(scale=decoder.head_dim**-0.5, rope=details.rope),)
    )
    return tuple(LayerKind(*pair) for pair in zip(kinds, forms, strict=True))


def kind_of_layers(kinds: tuple[LayerKind, ...]) -> dict[int, int]:
    """Return which kind each layer is of, by the layer, counted from 0."""
    return {layer: at for at, each in enumerate(kinds) for layer in each.kind.layers}


def roles_of(decoder: Decoder, kind: LayerKind, attention: str) -> dict[str, str]:
    """Return what the modules of a kind's attention are called, by what they are called alone."""
    first = kind.kind.layers[0]
    found = attention_layers(decoder, 0, BackendRelease(attention))
    return {each.base: each.role for each in found if first in each.layers}


def weights_of_queries(
    kind: LayerKind, first: int, count: int, dtype: torch.dtype, device: str
) -> Tensor | float | None:
    """Return what queries are multiplied by before their logits, None where that is nothing.

    It is how far the scale of logits is from 1 / sqrt(head_dim), by which every kernel multiplies
    them, and a weight of each of `count` positions from `first` on, [count, 1], where later queries
    weigh more.
    """
    of, form = kind
    apart = form.scale * of.head_dim**0.5 if isinstance(of, Grouped) else 1.0
    if form.warmth is None:
        return None if abs(apart - 1.0) < 1e-9 else apart
    return (apart * warm(form.warmth, first, count)).to(device, dtype).unsqueeze(-1)


def warm(warmth: Warmth, first: int, count: int) -> Tensor:
    """Return what queries of `count` positions from `first` on are multiplied by, float32."""
    positions = torch.arange(first, first + count, dtype=torch.float32)
    periods = torch.floor((positions + warmth.shift) / warmth.period)
    return 1.0 + warmth.slope * torch.log1p(periods)
