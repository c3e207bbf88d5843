"""What a GGUF file's forward multiplies by and attends with, as events say it."""

from collections import Counter

from nearfree.gguf.header import GgufHeader
from nearfree.gguf.matrices import matrices
from nearfree.log.events import EngineMatrix, EngineShape


def shape_of(header: GgufHeader) -> EngineShape:
    """Return the shape of a file's attention; zero where its metadata do not say it.

    Of numbers that differ by layer it is their mean, rounded up.
    """
    known, name = header.metadata, header.architecture

    def whole(key: str, otherwise: int) -> int:
        return whole_or(known.get(f"{name}.{key}"), otherwise)

    heads = whole("attention.head_count", 0)
    return EngineShape(
        layers=whole("block_count", 0),
        heads=heads,
        kv_heads=whole("attention.head_count_kv", heads),
        head_dim=whole("attention.key_length", whole("embedding_length", 0) // max(heads, 1)),
        taken_experts=whole("expert_used_count", 1),
    )


def matrices_of(header: GgufHeader) -> tuple[EngineMatrix, ...]:
    """Return the matrices that a forward multiplies by, those of all layers together."""
    counts: Counter[tuple[str, str, int, int, bool]] = Counter()
    for each in matrices(header):
        counts[each.part, each.type.name, each.rows, each.columns, each.routed] += each.count
    return tuple(
        EngineMatrix(part=part, type=kind, rows=rows, columns=columns, routed=routed, count=count)
        for (part, kind, rows, columns, routed), count in counts.items()
    )


def whole_or(value: object, otherwise: int) -> int:
    """Return a whole number, the mean of one for each layer, or else another one."""
    each = value if isinstance(value, tuple) and value else (value,)
    numbers = [number for number in each if type(number) is int]
    return -(-sum(numbers) // len(numbers)) if len(numbers) == len(each) else otherwise
