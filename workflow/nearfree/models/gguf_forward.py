"""The matrices and the attention shape of a GGUF file's forward, as events record them."""

from collections import Counter

from nearfree.gguf.header import GgufHeader
from nearfree.gguf.matrices import matrices
from nearfree.log.events import EngineMatrix, EngineShape


def shape_of(header: GgufHeader) -> EngineShape:
    """Return the shape of a file's attention, with zeros where its metadata do not give it.

    Numbers that differ by layer are replaced by their mean, rounded up.
    """
    metadata, name = header.metadata, header.architecture

    def number(key: str, default: int) -> int:
        return whole_or(metadata.get(f"{name}.{key}"), default)

    heads = number("attention.head_count", 0)
    return EngineShape(
        layers=number("block_count", 0),
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        head_dim=number("attention.key_length", number("embedding_length", 0) // max(heads, 1)),
        taken_experts=number("expert_used_count", 1),
    )


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
