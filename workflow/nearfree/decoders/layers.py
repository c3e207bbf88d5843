"""The layers of a model, as the layout of its model type composes them from pieces."""

from collections.abc import Sequence
from difflib import get_close_matches

from nearfree.decoders.keys import Keys
from nearfree.decoders.layout import Layout
from nearfree.decoders.layouts import LAYOUTS
from nearfree.decoders.pieces import Piece

_MOST_LAYERS = 1000


def layout_of(keys: Keys) -> Layout:
    """Return the layout of a file's model type; ConfigError names the nearest if it is not read."""
    kind = keys.text("model_type")
    if kind not in LAYOUTS:
        near = get_close_matches(kind[:80], LAYOUTS, n=3) or sorted(LAYOUTS)
        raise keys.wrong(
            "model_type",
            "is not read: what its layers store is not known",
            f"Nearest are {', '.join(near)}; others may store other weights",
        )
    return LAYOUTS[kind]


def layers_of(keys: Keys, layout: Layout) -> list[Piece]:
    """Return the piece of each layer; ConfigError gives every reason why layers are not read."""
    layers = keys.whole("num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise keys.wrong("num_hidden_layers", f"is more than {_MOST_LAYERS}")
    layer = layout.plan(keys, layers)
    pieces = [layer(number) for number in range(layers)]
    _check_windows(keys, pieces)
    return pieces


def _check_windows(keys: Keys, pieces: Sequence[Piece]) -> None:
    """Refuse a file that names layers with a window where its model type has none."""
    key, windowed = "layer_types", "sliding_attention"
    if not isinstance(keys.values.get(key), list):
        return
    for layer, (kind, piece) in enumerate(zip(keys.values[key], pieces, strict=False)):
        if kind == windowed and not any(getattr(each, "window", None) for each in piece.attention):
            why = f"says {windowed} of layer {layer}, which its model type reads without a window"
            raise keys.wrong(key, why, "Give a model whose file says what its class runs")
