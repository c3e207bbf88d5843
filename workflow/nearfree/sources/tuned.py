"""Tuned configuration files of fused MoE kernels: their layer and device, and block sizes by M.

vLLM and SGLang keep one JSON file per shape and device; it overrides the rule in the source. The
name identifies layer and device, the content maps a number of tokens M to launch parameters:
`E=8,N=512,device_name=NVIDIA_H20,dtype=fp8_w8a8.json` holds `{"1": {"BLOCK_SIZE_M": 16}}`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NoReturn

from msgspec.structs import replace

from nearfree.log.events import TunedIndexed
from nearfree.log.line import sha256

_NAME = re.compile(
    r"E=(?P<experts>[1-9]\d{0,8}),N=(?P<d_ff>[1-9]\d{0,8}),device_name=(?P<device>[^,=]+?)"
    r"(,dtype=(?P<dtype>\w+?))?"
    r"(,block_shape=\[(?P<rows>[1-9]\d{0,8}), ?(?P<columns>[1-9]\d{0,8})\])?"
    r"(?P<per_channel>,per_channel_quant=True)?(?P<down>_down)?\.json",
    re.ASCII,
)
_NAME_PARTS = {"E", "N", "device_name", "dtype", "block_shape", "per_channel_quant"}
_PART_SEPARATOR = re.compile(r",(?![^\[\]]*\])")
"""A comma between two parts, not one inside a block shape's brackets."""
_FOLDER = re.compile(r"triton(?:_\d{1,9})+", re.ASCII)
_ENTRY = re.compile(r"\s*\{?\s*\"(\d{1,9})\"\s*:", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_OTHER_KEYS: dict[str, frozenset[str]] = {"vllm": frozenset({"triton_version"})}
"""Keys other than entries that a package's reader drops; any other key would stop it."""
_SIZE_LIMIT = 2**31 - 1
SIZES = (
    "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages",
)  # fmt: skip
"""The sizes that are read of an entry: rows, columns and depth of a block, row blocks per group,
warps per block and pipeline stages.
"""
_POSSIBLY_ZERO = ("num_stages",)
"""Sizes that may be 0: files for AMD's devices have them."""


class _OddFileError(Exception):
    """The reason why a file does not have the known form."""


def index_tuned(package: str, version: str, files: Mapping[str, bytes]) -> list[TunedIndexed]:
    """Return one event per file, sorted by path; no content of a file makes this raise.

    Returns
    -------
    list of TunedIndexed
        Entries are in the file's order, which decides between two equally near M. A file of another
        form has `odd` and no entries, and the name's fields if its name was read.
    """
    return [_indexed(package, version, path, files[path]) for path in sorted(files)]


def _indexed(package: str, version: str, path: str, data: bytes) -> TunedIndexed:
    event = TunedIndexed(package=package, version=version, file=path, sha256=sha256(data))
    try:
        event = _with_name_fields(event)
        entries = _entries(data, _OTHER_KEYS.get(package, frozenset()))
    except _OddFileError as error:
        return replace(event, odd=str(error))
    tokens = tuple(entries)
    sizes = {name.lower(): _column(entries, name) for name in SIZES}
    return replace(event, tokens=tokens, lines=_lines(data, tokens), **sizes)


def _column(entries: dict[int, dict[str, int]], name: str) -> tuple[int, ...]:
    """Return one size of every entry; an empty tuple if some entry lacks it."""
    values = tuple(entry[name] for entry in entries.values() if name in entry)
    return values if len(values) == len(entries) else ()


def _with_name_fields(event: TunedIndexed) -> TunedIndexed:
    """Return the event with the fields of its file's name and folder."""
    path = PurePosixPath(event.file)
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise _OddFileError(_name_fault(path.name))
    rows, columns = match["rows"], match["columns"]
    return replace(
        event,
        experts=int(match["experts"]),
        d_ff=int(match["d_ff"]),
        device=match["device"],
        dtype=match["dtype"],
        block_shape=(int(rows), int(columns)) if rows else None,
        per_channel_quant=match["per_channel"] is not None,
        down=match["down"] is not None,
        triton=_triton_version(path.parent.name),
    )


def _triton_version(folder: str) -> str | None:
    """Return the Triton version that a folder is for; None for another kind of folder."""
    if not folder.startswith("triton_"):
        return None
    if not _FOLDER.fullmatch(folder):
        raise _OddFileError(f"folder {_shortened(folder)} names no version of triton")
    return folder.removeprefix("triton_").replace("_", ".")


def _name_fault(name: str) -> str:
    """Return why a file's name is not of the known form."""
    for part in _PART_SEPARATOR.split(name.removesuffix(".json")):
        key, _, value = part.partition("=")
        if key not in _NAME_PARTS and "=" in name:
            return f"name has the unknown part {_shortened(part)}"
        if key == "device_name" and not value:
            return "name has no device"
    return "name has not the known form"


def _entries(data: bytes, dropped: frozenset[str]) -> dict[int, dict[str, int]]:
    """Return the sizes by M, in the file's order."""
    content = _parsed(data)
    if not isinstance(content, dict):
        raise _OddFileError("not an object")
    entries: dict[int, dict[str, int]] = {}
    for key, value in content.items():
        if key in dropped:
            continue
        if not _COUNT.fullmatch(key) or int(key) == 0:
            raise _OddFileError(f"M '{_shortened(key)}' is no positive integer")
        if int(key) in entries:
            raise _OddFileError(f"M={int(key)} twice")
        entries[int(key)] = _sizes(int(key), value)
    if not entries:
        raise _OddFileError("no entries")
    return entries


def _lines(data: bytes, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return the line of each entry; an empty tuple if an entry does not begin its line."""
    entries = [
        (int(match[1]), line_number)
        for line_number, line in enumerate(data.decode().splitlines(), start=1)
        if (match := _ENTRY.match(line))
    ]
    return tuple(line for _, line in entries) if tuple(m for m, _ in entries) == tokens else ()


def _sizes(m: int, value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise _OddFileError(f"no object at M={m}")
    if "BLOCK_SIZE_M" not in value:
        raise _OddFileError(f"no BLOCK_SIZE_M at M={m}")
    sizes = {name: value[name] for name in SIZES if name in value}
    for name, size in sizes.items():
        minimum = 0 if name in _POSSIBLY_ZERO else 1
        if type(size) is not int or not minimum <= size <= _SIZE_LIMIT:
            kind = "positive integer" if minimum else "whole number"
            raise _OddFileError(f"{name} at M={m} is no {kind}")
    return sizes


def _parsed(data: bytes) -> object:
    try:
        content: object = json.loads(
            data.decode(), object_pairs_hook=_unique_members, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise _OddFileError(f"not JSON: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _OddFileError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise _OddFileError("not JSON: nested too deep") from error
    except ValueError as error:
        # The only other ValueError is Python's limit on the digits of an integer.
        raise _OddFileError("not JSON: a number of too many digits") from error
    return content


def _unique_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object's members; Python's own decoder would silently keep the last of two."""
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            kind = "M=" if _COUNT.fullmatch(key) else ""
            raise _OddFileError(f"{kind}{_shortened(key)} twice")
        members[key] = value
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise _OddFileError(f"not JSON: {name} is no number")


def _shortened(text: str) -> str:
    """Return a file's text as a reason may quote it: short, and in ASCII."""
    quoted = ascii(text)[1:-1]
    return quoted if len(quoted) <= 60 else f"{quoted[:57]}..."
