"""ELF files, checked before any program of others reads them: headers, tables, device code.

Offsets and fields of ELF are those of the System V ABI (gABI 4.1, chapter 4). Device code stands in
`.nv_fatbin` as regions one behind the other, each a header of 16 bytes over entries; their form is
CUDA's fatbinary_section.h and what releases hold: kinds 1 (PTX) and 2 (ELF for a GPU).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from nearfree.errors import SourceError

SECTIONS_LIMIT = 16_384
"""Sections of one file."""
SEGMENTS_LIMIT = 4_096
"""Program headers of one file."""
UNPACKED_LIMIT = 256 * 2**20
"""Bytes of one piece of device code, unpacked."""
FATBIN = ".nv_fatbin"
_HOST, _DEVICE = 62, 190
"""Machines of ELF: x86-64, and NVIDIA's GPUs."""
_SECTION, _SEGMENT = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IIQQQQQQ")
_NO_BITS, _SYMBOLS, _DYNAMIC_SYMBOLS = 8, 2, 11
_SYMBOL_BYTES = 24
_REGION, _ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
_MAGIC, _ENTRY_LEAST = 0xBA55ED50, 64
_CODE, _PACKED = 2, 0x2000 | 0x8000
"""An entry that is an ELF file, and the flags of one that is packed: LZ4, Zstandard."""


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


def check_elf(raw: bytes | memoryview, what: str) -> None:
    """Do nothing if a file is a whole ELF file whose tables say nothing that is not there.

    Parameters
    ----------
    raw
        The file: a shared library for x86-64 with device code inside, or device code itself.
    what
        What it is called in a refusal.

    Raises
    ------
    SourceError
        It is none, or is cut off, or its headers lie.
    """
    view = memoryview(raw)
    try:
        fault = _fault(view, _HOST, _DEVICE)
    except (struct.error, IndexError, ValueError, OverflowError):
        fault = "it ends within its own tables"
    if fault is not None:
        raise SourceError(
            f"{what} is refused: {fault}",
            remedy="Nothing of it was read by another program; fetch it anew, or report it",
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
        return "its headers have another size than ELF's"
    if not 0 < count <= SECTIONS_LIMIT or segments > SEGMENTS_LIMIT:
        return f"it says that it has {count} sections and {segments} segments"
    if sections_at + count * entry > len(view) or segments_at + segments * segment > len(view):
        return "its tables lie outside of it"
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
            return f"segment {number} lies outside of it"
    return None


def _section_fault(view: memoryview, table: list[_Section], names: int) -> str | None:
    if names >= len(table) or table[names].kind == _NO_BITS:
        return "its sections have no names"
    for number, section in enumerate(table):
        if section.kind != _NO_BITS and section.offset + section.size > len(view):
            return f"section {number} lies outside of it"
        if section.name >= max(1, table[names].size):
            return f"section {number} has a name outside of the names"
        if section.link >= len(table):
            return f"section {number} leans on section {section.link}, which is not there"
        symbols = section.kind in {_SYMBOLS, _DYNAMIC_SYMBOLS}
        if symbols and (section.entry != _SYMBOL_BYTES or section.size % _SYMBOL_BYTES):
            return f"section {number} is no table of symbols, as it says"
    return None


def _code_fault(view: memoryview, table: list[_Section], names: int) -> str | None:
    """Return what is wrong with the device code; a file for x86-64 without any is no fault."""
    start = table[names].offset
    wanted = FATBIN.encode() + b"\0"
    for section in table:
        at = start + section.name
        if section.kind != _NO_BITS and bytes(view[at : at + len(wanted)]) == wanted:
            for kind, entry, unpacked in _entries(view[section.offset :][: section.size]):
                if unpacked > UNPACKED_LIMIT:
                    return f"device code says that it unpacks to {unpacked} bytes"
                if kind == _CODE and not unpacked:
                    fault = _fault(entry, _DEVICE)
                    if fault is not None:
                        return f"of its device code, {fault}"
    return None


def _entries(view: memoryview) -> Iterator[tuple[int, memoryview, int]]:
    """Yield kind, bytes, and bytes once unpacked (0 where not packed) of each piece of code."""
    at = 0
    while at < len(view):
        magic, _, header, size = _REGION.unpack_from(view, at)
        at += header
        stop = at + size
        if magic != _MAGIC or header != _REGION.size or stop > len(view):
            raise ValueError("a region of device code that is none")
        while at < stop:
            kind, _, header, size = _ENTRY.unpack_from(view, at)
            (flags,) = struct.unpack_from("<Q", view, at + 40)
            (unpacked,) = struct.unpack_from("<Q", view, at + 56)
            if header < _ENTRY_LEAST or at + header + size > stop:
                raise ValueError("a piece of device code that is none")
            yield kind, view[at + header : at + header + size], unpacked if flags & _PACKED else 0
            at += header + size
