"""A library of our own making that holds device code, as releases' binaries do.

`ampere.cubin` and `hopper.cubin` were made by ptxas of CUDA 12.8 from the PTX beside them, whose
functions have the names of kernels: `ptxas -arch=sm_80 -o ampere.cubin ampere.ptx`, and sm_90a.
"""

import struct
from pathlib import Path

FOLDER = Path(__file__).parent
CODES = ((80, "ampere.cubin"), (90, "hopper.cubin"))
NAMES = b"\0.nv_fatbin\0.shstrtab\0"
HEADER, SECTION = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")


def entry(code: int, raw: bytes, *, flags: int = 0x11, unpacked: int = 0, size: int = -1) -> bytes:
    """Return a piece of device code, uncompressed unless its flags say so."""
    head = struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(raw) if size < 0 else size, 0, 64, 0, 1,
                       code, 0, 0, flags, 0, unpacked)  # fmt: skip
    assert len(head) == 64
    return head + raw


def region(*entries: bytes, magic: int = 0xBA55ED50, size: int = -1) -> bytes:
    """Return device code as a linker puts it: a header over its pieces."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", magic, 1, 16, len(body) if size < 0 else size) + body


def library(fatbin: bytes, *, machine: int = 62, sections: int = 3, at: int = -1) -> bytes:
    """Return a shared library of three sections: none, device code, names."""
    start = HEADER.size
    names_at = start + len(fatbin)
    table_at = names_at + len(NAMES)
    header = HEADER.pack(
        b"\x7fELF\x02\x01\x01" + bytes(9), 3, machine, 1, 0, 0, table_at if at < 0 else at, 0,
        64, 56, 0, 64, sections, 2,
    )  # fmt: skip
    rows = (
        (0,) * 10,
        (1, 1, 2, 0, start, len(fatbin), 0, 0, 8, 0),
        (12, 3, 0, 0, names_at, len(NAMES), 0, 0, 1, 0),
    )
    return header + fatbin + NAMES + b"".join(SECTION.pack(*row) for row in rows)


def code(number: int) -> bytes:
    """Return the cubin of that place in `CODES`."""
    return (FOLDER / CODES[number][1]).read_bytes()


def sound() -> bytes:
    """Return the whole library."""
    return library(b"".join(region(entry(sm, code(n))) for n, (sm, _) in enumerate(CODES)))
