"""GGUF files by their specification, written byte by byte."""

from collections.abc import Sequence
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

SCALARS = {
    "uint8": (0, "B"), "int8": (1, "b"), "uint16": (2, "H"), "int16": (3, "h"),
    "uint32": (4, "I"), "int32": (5, "i"), "float32": (6, "f"), "bool": (7, "B"),
    "uint64": (10, "Q"), "int64": (11, "q"), "float64": (12, "d"),
}  # fmt: skip


class TensorEntry(NamedTuple):
    """A tensor's header entry; `offset` None places it behind the previous tensor."""

    name: str
    dims: Sequence[int]
    type: int
    size: int
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return pack("<Q", len(raw)) + raw


def scalar(kind: str, value: Any) -> bytes:
    number, letter = SCALARS[kind]
    return pack(f"<I{letter}", number, value)


def string(value: str | bytes) -> bytes:
    return pack("<I", 8) + text(value)


def array(kind: str, values: Sequence[Any]) -> bytes:
    if kind == "text":
        return pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))
    number, letter = SCALARS[kind]
    return pack(f"<IIQ{len(values)}{letter}", 9, number, len(values), *values)


def gguf(
    metadata: Sequence[tuple[str, bytes]] = (),
    tensors: Sequence[TensorEntry] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    tail: int = 0,
) -> bytes:
    """Return a file: keys with typed values, tensors full of zeros, and `tail` bytes more."""
    head, zeros = _head_and_zeros(metadata, tensors, version, alignment)
    return head + bytes(zeros + tail)


def write_gguf(
    path: Path, metadata: Sequence[tuple[str, bytes]], tensors: Sequence[TensorEntry]
) -> None:
    """Write a file as `gguf` returns it; its zeros take no place on the disk."""
    head, zeros = _head_and_zeros(metadata, tensors, 3, 32)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + zeros)


def _head_and_zeros(
    metadata: Sequence[tuple[str, bytes]],
    tensors: Sequence[TensorEntry],
    version: int,
    alignment: int,
) -> tuple[bytes, int]:
    head = b"GGUF" + pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value for key, value in metadata)
    place = 0
    for tensor in tensors:
        offset = place if tensor.offset is None else tensor.offset
        head += text(tensor.name) + pack("<I", len(tensor.dims))
        head += pack(f"<{len(tensor.dims)}Q", *tensor.dims) + pack("<IQ", tensor.type, offset)
        place += -(-tensor.size // alignment) * alignment
    fill = -len(head) % alignment if tensors else 0
    return head, fill + place


SMALL = gguf(
    [
        ("general.architecture", string("llama")),
        ("llama.block_count", scalar("uint32", 1)),
        ("llama.rope.freq_base", scalar("float32", 10000.0)),
        ("yes", scalar("bool", 1)),
        ("few", array("int32", [1, -2, 3])),
        ("tokenizer.ggml.tokens", array("text", ["<t0>", "<t1>"])),
    ],
    [
        TensorEntry("token_embd.weight", (32, 2), 8, 68),
        TensorEntry("output_norm.weight", (32,), 0, 128),
    ],
)
"""A small file of several types."""
