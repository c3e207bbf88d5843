"""What a model stores: its weight tensors by name and kind, and what it keeps of a request.

This is read of more models than those whose forward is predicted.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType

from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive
from nearfree.decoders.config_file import config_file
from nearfree.decoders.decoder import Count
from nearfree.decoders.families import FAMILIES
from nearfree.decoders.keys import Keys
from nearfree.decoders.layers import layers_of, layout_of
from nearfree.decoders.layout import Layout
from nearfree.decoders.pieces import Kept, Kind, Part, Piece, linear, under, vector
from nearfree.decoders.text_part import TextPart, text_part
from nearfree.decoders.towers import TOWERS
from nearfree.errors import Refusals, RefusedError

_FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys of the layers that predict further tokens, which serving loads where it drafts with them."""
_ALWAYS = "qwen3_next"
"""A model type that has one, though no file says so (vllm-project/vllm at 0052a5b8,
vllm/config/speculative.py, hf_config_override)."""


class Matrix(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal weight tensors of a model.

    `name` is their module's path in the checkpoint, with `*` for the layer and for the expert; a
    bias has `.bias` behind its matrix. `inputs` are the elements that a product sums over, 1 in a
    vector, which no scheme quantises. `layers`, counted from 0, have `copies` of it each; without
    any it stands outside of layers.
    """

    name: str
    kind: Kind
    inputs: Positive
    outputs: Positive
    layers: tuple[int, ...] = ()
    copies: Positive = 1

    @property
    def count(self) -> int:
        """How many tensors."""
        return self.copies * max(1, len(self.layers))

    @property
    def elements(self) -> int:
        """Elements of all of them."""
        return self.count * self.inputs * self.outputs


class CacheLayer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each of `layers` layers keeps, in elements.

    `elements` of each position, of the last `window` ones (None: of all), and `state_elements` of
    each request, whatever its length, of which `matrices` are in `matrix_dtype`, or where that is
    not said in what an engine takes. What is `whole` each rank keeps, in the model's element type,
    whatever the rest of the cache is in; the rest is parted by `heads`, of which a rank has one at
    least, and what all heads share has one. Elements with a `dtype` are in that, whatever the rest
    of the cache is in; where the cache is in float8, `more` bytes come to those of a position. A
    layer can have several of these.
    """

    layers: Positive
    elements: Count
    window: Positive | None = None
    state_elements: Count = 0
    matrices: Count | UnsetType = UNSET
    matrix_dtype: Dtype | UnsetType = UNSET
    whole: bool | UnsetType = UNSET
    heads: Positive = 1
    dtype: Dtype | UnsetType = UNSET
    more: float | UnsetType = UNSET


class Stored(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a model stores to decode text; `notes` say what is left out or taken."""

    model_type: str
    weights: tuple[Matrix, ...]
    cache: tuple[CacheLayer, ...]
    notes: tuple[str, ...] = ()


def names_own_layer(keys: Keys) -> bool:
    """Return whether a model has a layer of its own for further tokens, by its file or its type."""
    counted = any(isinstance(keys.values.get(key), int) and keys.values[key] for key in _FURTHER)
    return counted or keys.is_text("model_type", _ALWAYS)


def stored(path: Path) -> Stored:
    """Return what the model of a config.json stores, without running any code.

    Buffers, such as the biases by which routers correct scores, are left out.

    Parameters
    ----------
    path
        The file, or the folder that holds it.

    Raises
    ------
    ConfigError
        It cannot be read; its model type is not read; or, with every reason, keys are missing or
        have values that no model has.
    """
    text, found = text_part(config_file(path)), Refusals()
    layout, read, left_out = layout_of(text.keys), list[Piece](), list[str]()
    weights: list[Matrix] = []
    rules = FAMILIES.get(text.keys.text("model_type"))
    with found.collect():
        if rules and rules.says_head_dim:
            text.keys.whole("head_dim")
    with found.collect():
        read = layers_of(text.keys, layout)
    with found.collect():
        weights += _weights(text, layout, read)
    with found.collect():
        tower, left_out = _tower(text.outer)
        weights += map(_matrix, tower)
    for key in _FURTHER:
        with found.collect():
            if text.keys.has(key) and text.keys.whole(key, least=0):
                left_out.append(f"{key}: layers that predict further tokens are not counted")
    found.check()
    return Stored(
        model_type=text.keys.text("model_type"),
        weights=tuple(weights),
        cache=tuple(_cache(read)),
        notes=(*text.notes, *left_out),
    )


def _tower(outer: Keys) -> tuple[tuple[Part, ...], list[str]]:
    """Return what reads images, and notes on what is not counted."""
    notes = [f"{key}: it is not counted" for key in ("audio_config",) if outer.has(key)]
    if not outer.has("vision_config"):
        return (), notes
    tower = TOWERS.get(str(outer.values.get("model_type")))
    if tower is None:
        return (), ["vision_config: it is not counted", *notes]
    try:
        return tower(outer.inner("vision_config")), notes
    except RefusedError as error:
        return (), [f"vision_config: it is not counted, as {error.what}", *notes]


def _weights(text: TextPart, layout: Layout, pieces: list[Piece]) -> Iterator[Matrix]:
    keys = text.keys
    at = text.whole or layout
    d_model, vocabulary = keys.wholes("hidden_size", "vocab_size")
    yield _matrix(Part(under(at.root, layout.embedding), "embedding", d_model, vocabulary))
    found: dict[Part, list[int]] = {}
    for layer, piece in enumerate(pieces):
        for part in piece.parts:
            found.setdefault(part, []).append(layer)
    for part, layers in found.items():
        name = under(at.root, layout.layers, "*", part.name)
        yield _matrix(part._replace(name=name), tuple(layers))
    norm = under(at.root, layout.norm)
    last = [*vector(norm, d_model), *(vector(f"{norm}.bias", d_model) if layout.norm_bias else ())]
    bias = bool(layout.head_bias) and keys.flag(layout.head_bias)
    ends = linear(at.head, "lm_head", d_model, vocabulary, bias=bias)
    if keys.flag("tie_word_embeddings"):
        ends = ends[1:]
    for part in (*last, *layout.outside(keys), *ends):
        yield _matrix(part)


def _matrix(part: Part, layers: tuple[int, ...] = ()) -> Matrix:
    name, kind, inputs, outputs, copies = part
    return Matrix(
        name=name, kind=kind, inputs=inputs, outputs=outputs, layers=layers, copies=copies
    )


def _cache(pieces: list[Piece]) -> Iterator[CacheLayer]:
    found: dict[Kept, int] = {}
    for piece in pieces:
        for kept in piece.kept:
            found[kept] = found.get(kept, 0) + 1
    for kept, layers in found.items():
        yield cache_layer(kept, layers)


def cache_layer(kept: Kept, layers: int = 1) -> CacheLayer:
    """Return what each of some layers keeps."""
    return CacheLayer(
        layers=layers, elements=kept.elements, window=kept.window, state_elements=kept.state,
        matrices=kept.matrices or UNSET,
        matrix_dtype=kept.matrix_dtype or UNSET,
        whole=kept.whole or UNSET,
        heads=kept.heads,
        dtype=kept.dtype or UNSET,
        more=kept.more or UNSET,
    )  # fmt: skip
