"""The weight tensors of a model by name and kind, and its cache per request.

They are read for more models than those whose forward is predicted.
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
from nearfree.decoders.pieces import Kept, Kind, Part, Piece, dotted, linear, vector
from nearfree.decoders.text_part import TextPart, text_part
from nearfree.decoders.towers import TOWERS
from nearfree.errors import Refusals, RefusedError

_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys of the number of MTP layers, which engines load only to draft with them."""
_HAS_MTP = "qwen3_next"
"""A model type that has an MTP layer, though no file says so (vllm-project/vllm at 0052a5b8,
vllm/config/speculative.py, hf_config_override)."""


class Matrix(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal weight tensors of a model.

    `name` is their module's path in the checkpoint, with `*` for the layer and for the expert; the
    name of a bias is that of its matrix with `.bias`. `inputs` is the number of elements that a
    product sums over, 1 for a vector, which is never quantised. Each of the `layers`, counted from
    0, has `copies` of the tensor; without layers it is outside of them.
    """

    name: str
    kind: Kind
    inputs: Positive
    outputs: Positive
    layers: tuple[int, ...] = ()
    copies: Positive = 1

    @property
    def count(self) -> int:
        """Number of tensors."""
        return self.copies * max(1, len(self.layers))

    @property
    def elements(self) -> int:
        """Elements of all tensors together."""
        return self.count * self.inputs * self.outputs


class CacheLayer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each of `layers` layers caches, in elements; a layer can have several of these.

    `elements` are cached per position, for the last `window` positions (None: for all).
    `state_elements` are kept per request, whatever its length; `matrices` of them are in
    `matrix_dtype`, or if that is unset in the engine's default. With `whole` each rank holds all of
    it, in the model's element type. Otherwise it is divided among ranks by `heads`, 1 where all
    heads share it; a rank has at least one. `dtype` overrides the dtype of the cache. If the cache
    is in float8, each position takes `more` bytes in addition.
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
    """The weights and the cache of a model's text part.

    `notes` say what is left out or assumed.
    """

    model_type: str
    weights: tuple[Matrix, ...]
    cache: tuple[CacheLayer, ...]
    notes: tuple[str, ...] = ()


def has_mtp_layer(keys: Keys) -> bool:
    """Return whether a model has an MTP layer, by its file or its model type."""
    is_in_file = any(
        isinstance(keys.values.get(key), int) and keys.values[key] for key in _MTP_KEYS
    )
    return is_in_file or keys.is_text("model_type", _HAS_MTP)


def stored(path: Path) -> Stored:
    """Return the weights and the cache of the model of a config.json, without running any code.

    Buffers, such as the biases by which routers correct scores, are left out.

    Parameters
    ----------
    path
        The file, or the folder that holds it.

    Raises
    ------
    ConfigError
        The file cannot be read; its model type is not read; or keys are missing or have values that
        no model has. The error gives every reason.
    """
    text, refusals = text_part(config_file(path)), Refusals()
    layout, pieces, left_out = layout_of(text.keys), list[Piece](), list[str]()
    weights: list[Matrix] = []
    rules = FAMILIES.get(text.keys.text("model_type"))
    with refusals.collect():
        if rules and rules.says_head_dim:
            text.keys.whole("head_dim")
    with refusals.collect():
        pieces = layers_of(text.keys, layout)
    with refusals.collect():
        weights += _weights(text, layout, pieces)
    with refusals.collect():
        tower, left_out = _tower(text.outer)
        weights += map(_matrix, tower)
    for key in _MTP_KEYS:
        with refusals.collect():
            if text.keys.has(key) and text.keys.whole(key, least=0):
                left_out.append(f"{key}: layers that predict further tokens are not counted")
    refusals.check()
    return Stored(
        model_type=text.keys.text("model_type"),
        weights=tuple(weights),
        cache=tuple(_cache(pieces)),
        notes=(*text.notes, *left_out),
    )


def _tower(outer: Keys) -> tuple[tuple[Part, ...], list[str]]:
    """Return the weights of the vision tower, and notes on parts that are not counted."""
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
    """Yield the weights of a text part: embedding, layers, last norm, LM head and others."""
    keys = text.keys
    names = text.whole or layout
    d_model, vocabulary = keys.wholes("hidden_size", "vocab_size")
    yield _matrix(Part(dotted(names.root, layout.embedding), "embedding", d_model, vocabulary))
    layers_by_part: dict[Part, list[int]] = {}
    for layer, piece in enumerate(pieces):
        for part in piece.parts:
            layers_by_part.setdefault(part, []).append(layer)
    for part, layers in layers_by_part.items():
        path = dotted(names.root, layout.layers, "*", part.name)
        yield _matrix(part._replace(name=path), tuple(layers))
    norm = dotted(names.root, layout.norm)
    norm_parts = [
        *vector(norm, d_model),
        *(vector(f"{norm}.bias", d_model) if layout.norm_bias else ()),
    ]
    has_bias = bool(layout.head_bias) and keys.flag(layout.head_bias)
    head_parts = linear(names.head, "lm_head", d_model, vocabulary, bias=has_bias)
    if keys.flag("tie_word_embeddings"):
        head_parts = head_parts[1:]
    for part in (*norm_parts, *layout.outside(keys), *head_parts):
        yield _matrix(part)


def _matrix(part: Part, layers: tuple[int, ...] = ()) -> Matrix:
    name, kind, inputs, outputs, copies = part
    return Matrix(
        name=name, kind=kind, inputs=inputs, outputs=outputs, layers=layers, copies=copies
    )


def _cache(pieces: list[Piece]) -> Iterator[CacheLayer]:
    """Yield the caches of layers, equal ones with the number of their layers."""
    counts: dict[Kept, int] = {}
    for piece in pieces:
        for entry in piece.kept:
            counts[entry] = counts.get(entry, 0) + 1
    for entry, layers in counts.items():
        yield cache_layer(entry, layers)


def cache_layer(kept: Kept, layers: int = 1) -> CacheLayer:
    """Return what each of `layers` layers caches, as a serialisable struct."""
    return CacheLayer(
        layers=layers, elements=kept.elements, window=kept.window, state_elements=kept.state,
        matrices=kept.matrices or UNSET,
        matrix_dtype=kept.matrix_dtype or UNSET,
        whole=kept.whole or UNSET,
        heads=kept.heads,
        dtype=kept.dtype or UNSET,
        more=kept.more or UNSET,
    )  # fmt: skip
