"""The weight tensors of a model by name and kind, and its cache per request.

They are read for more models than those whose forward is predicted.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from msgspec import Struct, structs

from nearfree.decoders.config_file import config_file
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.families import layers_of, layout_of
from nearfree.decoders.layouts.layout import Layout
from nearfree.decoders.layouts.pieces import CacheLayer, Matrix, Piece, dotted, linear, vector
from nearfree.decoders.text_part import TextPart, text_part
from nearfree.errors import Refusals, RefusedError

_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys of the number of MTP layers, which engines load only to draft with them."""
_HAS_MTP = "qwen3_next"
"""A model type that has an MTP layer, though no file says so (vllm-project/vllm at 0052a5b8,
vllm/config/speculative.py, hf_config_override)."""


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

    Raises
    ------
    ConfigError
        The file cannot be read; its model type is not read; or keys are missing or have values that
        no model has. The error gives every reason.
    """
    text, refusals = text_part(config_file(path)), Refusals()
    layout, left_out = layout_of(text.keys), list[str]()
    weights: list[Matrix] = []
    with refusals.collect():
        if layout.says_head_dim:
            text.keys.whole("head_dim")
    pieces = refusals.read(lambda: layers_of(text.keys, layout), [])
    with refusals.collect():
        weights += _weights(text, layout, pieces)
    with refusals.collect():
        tower, left_out = _tower(text.outer)
        weights += tower
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


def _tower(outer: Keys) -> tuple[tuple[Matrix, ...], list[str]]:
    """Return the weights of the vision tower, and notes on parts that are not counted."""
    notes = [f"{key}: it is not counted" for key in ("audio_config",) if outer.has(key)]
    if not outer.has("vision_config"):
        return (), notes
    tower = _TOWERS.get(str(outer.values.get("model_type")))
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
    yield Matrix(dotted(names.root, layout.embedding), "embedding", d_model, vocabulary)
    layers_by_part: dict[Matrix, list[int]] = {}
    for layer, piece in enumerate(pieces):
        for part in piece.parts:
            layers_by_part.setdefault(part, []).append(layer)
    for part, layers in layers_by_part.items():
        path = dotted(names.root, layout.layers, "*", part.name)
        yield structs.replace(part, name=path, layers=tuple(layers))
    norm = dotted(names.root, layout.norm)
    norm_parts = [
        *(vector(norm, d_model) if layout.norm else ()),
        *(vector(f"{norm}.bias", d_model) if layout.norm_bias else ()),
    ]
    has_bias = bool(layout.head_bias) and keys.flag(layout.head_bias)
    head_parts = linear(names.head, "lm_head", d_model, vocabulary, bias=has_bias)
    if keys.flag("tie_word_embeddings"):
        head_parts = head_parts[1:]
    yield from (*norm_parts, *layout.outside(keys), *head_parts)


def _cache(pieces: list[Piece]) -> Iterator[CacheLayer]:
    """Yield the caches of layers, equal ones with the number of their layers."""
    for entry, layers in Counter(chain(*(piece.kept for piece in pieces))).items():
        yield structs.replace(entry, layers=layers)


def _qwen3_tower(keys: Keys) -> tuple[Matrix, ...]:
    """Return the weights of the vision tower of Qwen3-VL and Qwen3.5 from its `vision_config`.

    Source: Qwen3VLVisionModel and Qwen3_5VisionModel of transformers 5.23.
    """
    width, depth = keys.whole("hidden_size"), keys.whole("depth")
    merged_width = width * keys.whole("spatial_merge_size") ** 2
    d_ff, text_width = keys.whole("intermediate_size"), keys.whole("out_hidden_size")
    patch = keys.whole("patch_size") ** 2 * keys.whole("temporal_patch_size")
    blocks = {
        "norm1": (1, width),
        "norm2": (1, width),
        "attn.qkv": (width, 3 * width),
        "attn.proj": (width, width),
        "mlp.linear_fc1": (width, d_ff),
        "mlp.linear_fc2": (d_ff, width),
    }
    merge = {"linear_fc1": (merged_width, merged_width), "linear_fc2": (merged_width, text_width)}
    parts = [
        *linear("patch_embed.proj", "vision", keys.whole("in_channels") * patch, width, bias=True),
        *linear("pos_embed", "vision", width, keys.whole("num_position_embeddings")),
    ]
    deepstack_count = len(keys.list_of("deepstack_visual_indexes", int))
    for path, copies, matrices in (
        ("blocks.*", depth, blocks),
        ("merger", 1, {"norm": (1, width), **merge}),
        ("deepstack_merger_list.*", deepstack_count, {"norm": (1, merged_width), **merge}),
    ):
        for name, (inputs, outputs) in matrices.items() if copies else ():
            matrix = f"{path}.{name}"
            parts += linear(matrix, "vision", inputs, outputs, bias=True, copies=copies)
    return tuple(structs.replace(part, name=f"model.visual.{part.name}") for part in parts)


_TOWERS: dict[str, Callable[[Keys], tuple[Matrix, ...]]] = dict.fromkeys(
    ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _qwen3_tower
)
"""By the model type of the composite model."""
