"""The layers of a model, as the layout of its model type composes them from pieces."""

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
    return [layer(number) for number in range(layers)]
