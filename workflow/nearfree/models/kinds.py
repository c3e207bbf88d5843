"""The kinds of a decoder's layers: the shape of their attention, and how it computes."""

from typing import NamedTuple

import torch
from torch import Tensor

from nearfree.backends.names import BackendRelease
from nearfree.decoders.attention_kinds import Grouped, Runnable, runnable_kinds
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details
from nearfree.decoders.forms import AttentionForm, Warmth
from nearfree.decoders.ranks.attention_uses import attention_layers


class LayerKind(NamedTuple):
    """A kind of layers: the shape of its attention, and the form in which it computes."""

    attention: Runnable
    form: AttentionForm


def layer_kinds(decoder: Decoder, details: Details) -> tuple[LayerKind, ...]:
    """Return the kinds of a decoder's layers; only one kind if the model has no `Form`."""
    kinds = runnable_kinds(decoder.attention)
    forms = (
        details.form.attention
        if details.form
        else (AttentionForm(scale=decoder.head_dim**-0.5, rope=details.rope),)
    )
    return tuple(LayerKind(*pair) for pair in zip(kinds, forms, strict=True))


def kind_by_layer(kinds: tuple[LayerKind, ...]) -> dict[int, int]:
    """Return the index of the kind of each layer, by the layer counted from 0."""
    return {layer: index for index, kind in enumerate(kinds) for layer in kind.attention.layers}


def roles_of(decoder: Decoder, kind: LayerKind, attention: str) -> dict[str, str]:
    """Return the roles of the modules of a kind's attention, by their roles without kind."""
    first = kind.attention.layers[0]
    modules = attention_layers(decoder, 0, BackendRelease(attention))
    return {module.base: module.role for module in modules if first in module.layers}


def query_scales(
    kind: LayerKind, first: int, count: int, dtype: torch.dtype, device: str
) -> Tensor | float | None:
    """Return the factors on queries, None if they are one.

    The factor is the ratio of the form's scale of logits to 1 / sqrt(head_dim), by which every
    kernel multiplies them. With `warmth` it is multiplied by a factor for each of `count` positions
    from `first` on; the result is then a tensor, [count, 1].
    """
    attention, form = kind
    ratio = form.scale * attention.head_dim**0.5 if isinstance(attention, Grouped) else 1.0
    if form.warmth is None:
        return None if abs(ratio - 1.0) < 1e-9 else ratio
    return (ratio * temperature_scales(form.warmth, first, count)).to(device, dtype).unsqueeze(-1)


def temperature_scales(warmth: Warmth, first: int, count: int) -> Tensor:
    """Return the factors of `warmth` on queries of `count` positions from `first` on, float32."""
    positions = torch.arange(first, first + count, dtype=torch.float32)
    periods = torch.floor((positions + warmth.shift) / warmth.period)
    return 1.0 + warmth.slope * torch.log1p(periods)
