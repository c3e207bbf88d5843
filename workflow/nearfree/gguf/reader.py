"""Reads the headers of GGUF files without trusting their content.

Source: llama.cpp v0.5.0, ggml/include/gguf.h lines 1-36 (layout), ggml/src/gguf.cpp lines 436-800
(refusals, and the limits on names and dimensions).
"""

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from msgspec import structs

from nearfree.errors import ConfigError, printable
from nearfree.gguf.header import GgufHeader, Tensor, Value
from nearfree.gguf.stream import GET_WHOLE, Stream
from nearfree.gguf.types import TYPES
from nearfree.gguf.values import LONGEST_KEY, UINT32, Values

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_ALIGNMENT_KEY = "general.alignment"
_ALIGNMENT = 32
_MIN_ENTRY_BYTES, _MIN_TENSOR_BYTES = 13, 24
"""The smallest sizes, in bytes, of a key with its value, and of a tensor's entry."""
_MAX_ENTRIES, _MAX_TENSORS = 1 << 16, 1 << 17
_MAX_DIMS, _LONGEST_NAME = 4, 63
_MAX_ELEMENTS = (1 << 63) - 1
_CHUNK, _BUFFER = 1 << 20, 1 << 17


def read_header(path: Path, *, whole: Collection[str] = ()) -> GgufHeader:
    """Return the header of a GGUF file; the data of its tensors are not read.

    Parameters
    ----------
    path
        The file, of version 2 or 3 with little-endian numbers.
    whole
        Keys of metadata whose value is read whatever its length, such as `tokenizer.ggml.tokens`.
        Other values with more than 1024 elements or 65,536 bytes become a `Long`, and so do all
        values after 16 MiB of them.

    Raises
    ------
    ConfigError
        The file is absent, is no GGUF file, or has another version or byte order; it is truncated;
        or its content is invalid: a length, type, name or dimension that the format does not have,
        a name that occurs twice, or data that overlap or are outside of the file.
    """
    with _opened(path) as (file, file_bytes):
        stream = Stream(file, str(path), file_bytes)
        version = _version(stream)
        tensor_count = _count(stream, "tensors", _MIN_TENSOR_BYTES, _MAX_TENSORS)
        entry_count = _count(stream, "metadata", _MIN_ENTRY_BYTES, _MAX_ENTRIES)
        metadata, alignment = _metadata(stream, entry_count, frozenset(whole))
        entries = _tensors(stream, tensor_count)
        data_offset = -(-stream.position // alignment) * alignment if entries else stream.position
        tensors = tuple(_placed(stream, entry, data_offset, alignment) for entry in entries)
        _check_no_overlap(stream, tensors)
    return GgufHeader(
        file=str(path),
        version=version,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        file_bytes=file_bytes,
    )


def weights_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, 64 hex digits, which identifies its weights.

    Raises
    ------
    ConfigError
        The file cannot be read.
    """
    digest = hashlib.sha256()
    with _opened(path) as (file, _):
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def is_gguf(path: Path) -> bool:
    """Return whether a path is that of a file with the suffix or the first bytes of GGUF."""
    try:
        if not path.is_file():
            return False
        if path.suffix.lower() == ".gguf":
            return True
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file; errors of the system become a ConfigError."""
    remedy = "Give the path of a .gguf file"
    try:
        state = path.stat()
        if not S_ISREG(state.st_mode):  # opening a pipe would block
            raise ConfigError(printable(f"{path} is no file"), remedy=remedy)
        with path.open("rb", buffering=_BUFFER) as file:
            yield file, state.st_size
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise ConfigError(printable(f"{path} cannot be read: {why}"), remedy=remedy) from error


def _version(stream: Stream) -> int:
    if stream.take(len(MAGIC), "its first bytes") != MAGIC:
        raise stream.wrong("is no GGUF file: it does not begin with GGUF", "Give a .gguf file")
    version = stream.integer(4, "its version")
    if version in VERSIONS:
        return version
    if version and version.to_bytes(4, "little")[:2] == b"\0\0":
        raise stream.wrong(
            "has numbers in big-endian order, which is not read",
            "Convert it with gguf_convert_endian.py of llama.cpp",
        )
    raise stream.wrong(
        f"is of GGUF's version {version}, and {' and '.join(map(str, VERSIONS))} are read"
    )


def _count(stream: Stream, entries: str, entry_bytes: int, limit: int) -> int:
    """Return a number of entries, for which the file must be large enough."""
    count = stream.integer(8, f"the number of {entries}")
    if count > limit:
        raise stream.wrong(f"says that it has {count} {entries}, and the limit is {limit}")
    stream.need(count * entry_bytes, f"{count} {entries}")
    return count


def _metadata(stream: Stream, count: int, whole: frozenset[str]) -> tuple[dict[str, Value], int]:
    """Return the metadata, and the alignment that they give."""
    metadata, values, alignment = dict[str, Value](), Values(stream, whole), _ALIGNMENT
    for _ in range(count):
        key = stream.text(LONGEST_KEY, "a key")
        if not key or key in metadata:
            raise stream.wrong(f"has the key {key!r:.80} twice" if key else "has an empty key")
        kind, value = values.read(key)
        if key == _ALIGNMENT_KEY:
            if kind != UINT32 or not isinstance(value, int) or value.bit_count() != 1:
                raise stream.wrong(f"has an alignment that is no power of 2: {value!r:.60}")
            alignment = value
        metadata[key] = value
    return metadata, alignment


def _tensors(stream: Stream, count: int) -> list[Tensor]:
    """Return the tensors, with offsets as in the file: relative to the start of the data."""
    tensors = dict[str, Tensor]()
    for _ in range(count):
        name = stream.text(_LONGEST_NAME, "the name of a tensor")
        if name in tensors:
            raise stream.wrong(f"has two tensors named {name!r}")
        tensors[name] = _tensor(stream, name)
    return list(tensors.values())


def _tensor(stream: Stream, name: str) -> Tensor:
    entry = f"the entry of tensor {name!r}"
    rank = stream.integer(4, entry)
    if rank > _MAX_DIMS:
        raise stream.wrong(f"has {rank} dimensions for tensor {name!r}: the limit is {_MAX_DIMS}")
    dims = tuple(stream.integer(8, entry) for _ in range(rank))
    if 0 in dims or prod(dims) > _MAX_ELEMENTS:
        raise stream.wrong(f"has a tensor {name!r} of {' x '.join(map(str, dims))} elements")
    number = stream.integer(4, entry)
    if number not in TYPES:
        raise stream.wrong(
            f"has tensor {name!r} in type {number}, which is not known",
            "Convert the model anew with a release of llama.cpp that is read here",
        )
    type_ = TYPES[number]
    columns, rows = (dims[0], prod(dims[1:])) if dims else (1, 1)
    if columns % type_.elements:
        raise stream.wrong(
            f"has rows of {columns} elements in tensor {name!r}, which blocks of "
            f"{type_.elements} of {type_.name} do not divide"
        )
    offset = stream.integer(8, entry)
    size = rows * type_.row_bytes(columns)
    return Tensor(name=name, dims=dims, type=type_, offset=offset, size_bytes=size)


def _placed(stream: Stream, tensor: Tensor, start: int, alignment: int) -> Tensor:
    """Return a tensor with its offset in the file, given the start of the data."""
    if tensor.offset % alignment:
        raise stream.wrong(
            f"has tensor {tensor.name!r} at {tensor.offset}, no multiple of {alignment}"
        )
    offset = start + tensor.offset
    if offset + tensor.size_bytes > stream.size:
        raise stream.wrong(
            f"has tensor {tensor.name!r} in bytes {offset} to {offset + tensor.size_bytes}, and it "
            f"ends at {stream.size}",
            GET_WHOLE,
        )
    return structs.replace(tensor, offset=offset)


def _check_no_overlap(stream: Stream, tensors: tuple[Tensor, ...]) -> None:
    """Refuse tensors whose data overlap."""
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for tensor, following in pairwise(ordered):
        if tensor.offset + tensor.size_bytes > following.offset:
            raise stream.wrong(
                f"has tensors {tensor.name!r} and {following.name!r} in the same bytes"
            )
