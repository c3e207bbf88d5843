"""The matrices and the attention shape of a GGUF file's forward, as events record them."""

from collections import Counter
from collections.abc import Sequence

from nearfree.gguf.header import GgufHeader
from nearfree.gguf.matrices import matrices
from nearfree.log.events import EngineMatrix, EngineShape

_KEY = "attention.key_length"


def shape_of(header: GgufHeader) -> EngineShape:
    """Return the shape of a file's attention, with zeros where its metadata do not give it.

    Layers without attention, and those that predict further tokens, are left out. Numbers that
    differ by layer are replaced by their mean, rounded up.
    """
    layers = _attending(header)
    heads = _number(header, "attention.head_count", 0, layers)
    return EngineShape(
        layers=len(layers),
        heads=heads,
        kv_heads=_number(header, "attention.head_count_kv", heads, layers),
        head_dim=whole_or(tuple(_width(header, "key", layer) for layer in layers), 0),
        taken_experts=_number(header, "expert_used_count", 1),
    )


def cached_elements(header: GgufHeader) -> int:
    """Return the elements of a cached position in all layers together.

    A layer that shares a cache has none of its own. Files with key_length_mla cache latents, which
    are both keys and values (llama.cpp v0.5.0, src/models/deepseek2.cpp, build_attn_inp_k). Layers
    with a window may have heads of another width, key_length_swa.
    """
    shared = _number(header, "attention.shared_kv_layers", 0)
    first = _number(header, "block_count", 0) - shared if shared else None
    has_latent = _number(header, "attention.key_length_mla", 0)
    elements = 0
    for layer in _attending(header):
        if first is None or layer < first:
            keys, values = (_width(header, part, layer) for part in ("key", "value"))
            heads = _number(header, "attention.head_count", 0, [layer])
            kv_heads = _number(header, "attention.head_count_kv", heads, [layer])
            elements += kv_heads * (keys if has_latent else keys + values)
    return elements


def _width(header: GgufHeader, part: str, layer: int) -> int:
    """Return the width of a head's key or value in a layer; both are equal unless a file says so.

    Layers with a window may have a width of their own.
    """
    heads = max(_number(header, "attention.head_count", 0, _attending(header)), 1)
    width = _number(header, "embedding_length", 0) // heads
    width = _number(header, f"attention.{part}_length", _number(header, _KEY, width))
    pattern = header.metadata.get(f"{header.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple) and layer < len(pattern) and pattern[layer]:
        return _number(header, f"attention.{part}_length_swa", width)
    return width


def _attending(header: GgufHeader) -> list[int]:
    """Return the layers with attention, all if no tensor says so, without those that draft."""
    layers = _number(header, "block_count", 0) - _number(header, "nextn_predict_layers", 0)
    names = header.by_name
    found = [layer for layer in range(layers) if f"blk.{layer}.attn_output.weight" in names]
    return found or list(range(layers))


def _number(header: GgufHeader, key: str, default: int, layers: Sequence[int] | None = None) -> int:
    """Return a number of the metadata; of a list the mean over some layers, or over all."""
    value = header.metadata.get(f"{header.architecture}.{key}")
    if isinstance(value, tuple) and layers is not None:
        value = tuple(value[layer] for layer in layers if layer < len(value))
    return whole_or(value, default)


def matrices_of(header: GgufHeader) -> tuple[EngineMatrix, ...]:
    """Return the matrices that a forward multiplies by, counted over all layers."""
    counts: Counter[tuple[str, str, int, int, bool]] = Counter()
    for matrix in matrices(header):
        key = matrix.part, matrix.type.name, matrix.rows, matrix.columns, matrix.routed
        counts[key] += matrix.count
    return tuple(
        EngineMatrix(part=part, type=kind, rows=rows, columns=columns, routed=routed, count=count)
        for (part, kind, rows, columns, routed), count in counts.items()
    )


def whole_or(value: object, default: int) -> int:
    """Return an integer, or the mean of integers per layer rounded up, or else the default."""
    values = value if isinstance(value, tuple) and value else (value,)
    numbers = [number for number in values if type(number) is int]
    return -(-sum(numbers) // len(numbers)) if len(numbers) == len(values) else default
