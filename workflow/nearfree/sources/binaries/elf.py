"""Check an ELF file's headers, tables and device code before another program reads it.

Offsets and fields of ELF are those of the System V ABI (gABI 4.1, chapter 4). Device code stands in
`.nv_fatbin` as consecutive regions, each a header of 16 bytes and its entries. Their form is that
of CUDA's fatbinary_section.h and of the releases' own files: kinds 1 (PTX) and 2 (ELF for a GPU).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from nearfree.errors import SourceError

SECTIONS_LIMIT = 16_384
"""Limit of sections per file."""
SEGMENTS_LIMIT = 4_096
"""Limit of program headers per file."""
UNPACKED_LIMIT = 256 * 2**20
"""Limit of one piece of device code once unpacked, in bytes."""
FATBIN = ".nv_fatbin"
_HOST, _DEVICE = 62, 190
"""ELF machine numbers: x86-64, and NVIDIA's GPUs."""
_SECTION, _SEGMENT = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IIQQQQQQ")
_NO_BITS, _SYMBOLS, _DYNAMIC_SYMBOLS = 8, 2, 11
_SYMBOL_BYTES = 24
_REGION, _ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
_MAGIC, _ENTRY_BYTES_LEAST = 0xBA55ED50, 64
_CODE, _PACKED = 2, 0x2000 | 0x8000
"""The kind of an entry that is an ELF file, and the flags of packed entries: LZ4, Zstandard."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


def check_elf(raw: bytes | memoryview, label: str) -> None:
    """Raise unless a file is a complete ELF file whose tables point inside of it.

    It is a shared library for x86-64 with device code inside, or device code itself; messages name
    it by its `label`.

    Raises
    ------
    SourceError
        It is no ELF file, is truncated, or its headers are inconsistent.
    """
    view = memoryview(raw)
    try:
        fault = _fault(view, _HOST, _DEVICE)
    except (struct.error, IndexError, ValueError, OverflowError):
        fault = "it ends inside its own tables"
    if fault is not None:
        raise SourceError(
            f"{label} is refused: {fault}",
            remedy="No other program has read it; fetch it again, or report it",
        )


def _fault(view: memoryview, *machines: int) -> str | None:
    if len(view) < 64 or bytes(view[:7]) != b"\x7fELF\x02\x01\x01":
        return "it is no ELF file of 64 bits"
    (machine,) = struct.unpack_from("<H", view, 18)
    if machine not in machines:
        return f"it is for machine {machine}, neither x86-64 nor a GPU"
    segments_at, sections_at = struct.unpack_from("<QQ", view, 32)
    header, segment, segments, entry, count, names = struct.unpack_from("<6H", view, 52)
    if (header, entry) != (64, _SECTION.size) or (segments and segment != _SEGMENT.size):
        return "its headers do not have ELF's sizes"
    if not 0 < count <= SECTIONS_LIMIT or segments > SEGMENTS_LIMIT:
        return f"it claims {count} sections and {segments} segments"
    if sections_at + count * entry > len(view) or segments_at + segments * segment > len(view):
        return "its tables lie outside the file"
    table = [_Section(*_SECTION.unpack_from(view, sections_at + entry * n)) for n in range(count)]
    starts = [segments_at + segment * number for number in range(segments)]
    return (
        _segment_fault(view, starts)
        or _section_fault(view, table, names)
        or _code_fault(view, table, names)
    )


def _segment_fault(view: memoryview, starts: list[int]) -> str | None:
    for number, start in enumerate(starts):
        _, _, offset, _, _, size, _, _ = _SEGMENT.unpack_from(view, start)
        if offset + size > len(view):
            return f"segment {number} lies outside the file"
    return None


def _section_fault(view: memoryview, table: list[_Section], names: int) -> str | None:
    if names >= len(table) or table[names].kind == _NO_BITS:
        return "its sections have no names"
    for number, section in enumerate(table):
        if section.kind != _NO_BITS and section.offset + section.size > len(view):
            return f"section {number} lies outside the file"
        if section.name >= max(1, table[names].size):
            return f"section {number} has a name outside the table of names"
        if section.link >= len(table):
            return f"section {number} links to section {section.link}, which does not exist"
        symbols = section.kind in {_SYMBOLS, _DYNAMIC_SYMBOLS}
        if symbols and (section.entry != _SYMBOL_BYTES or section.size % _SYMBOL_BYTES):
            return f"section {number} claims to be a symbol table, and is none"
    return None


def _code_fault(view: memoryview, table: list[_Section], names: int) -> str | None:
    """Return what is wrong with the device code; a file without any has no fault."""
    start = table[names].offset
    fatbin_name = FATBIN.encode() + b"\0"
    for section in table:
        name_at = start + section.name
        if (
            section.kind != _NO_BITS
            and bytes(view[name_at : name_at + len(fatbin_name)]) == fatbin_name
        ):
            for kind, code, unpacked_bytes in _entries(view[section.offset :][: section.size]):
                if unpacked_bytes > UNPACKED_LIMIT:
                    return f"device code claims to unpack to {unpacked_bytes} bytes"
                if kind == _CODE and not unpacked_bytes:
                    fault = _fault(code, _DEVICE)
                    if fault is not None:
                        return f"in its device code, {fault}"
    return None


def _entries(view: memoryview) -> Iterator[tuple[int, memoryview, int]]:
    """Yield kind, bytes and unpacked size (0 if not packed) of each piece of device code."""
    at = 0
    while at < len(view):
        magic, _, header, size = _REGION.unpack_from(view, at)
        at += header
        stop = at + size
        if magic != _MAGIC or header != _REGION.size or stop > len(view):
            raise ValueError("an invalid region of device code")
        while at < stop:
            kind, _, header, size = _ENTRY.unpack_from(view, at)
            (flags,) = struct.unpack_from("<Q", view, at + 40)
            (unpacked,) = struct.unpack_from("<Q", view, at + 56)
            if header < _ENTRY_BYTES_LEAST or at + header + size > stop:
                raise ValueError("an invalid piece of device code")
            yield kind, view[at + header : at + header + size], unpacked if flags & _PACKED else 0
            at += header + size
