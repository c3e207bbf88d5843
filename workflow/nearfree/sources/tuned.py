"""Tuned configuration files of fused MoE kernels: what each is for, and its block sizes by M.

vLLM and SGLang keep one JSON file a shape and device; it overrides the rule in the source. The
name says what the file is for, the content maps a number of tokens M to launch parameters:
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
_PARTS = {"E", "N", "device_name", "dtype", "block_shape", "per_channel_quant"}
_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma between two parts, not the one inside a block shape's brackets."""
_FOLDER = re.compile(r"triton(?:_\d{1,9})+", re.ASCII)
_ENTRY = re.compile(r"\s*\{?\s*\"(\d{1,9})\"\s*:", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_NO_ENTRIES: dict[str, frozenset[str]] = {"vllm": frozenset({"triton_version"})}
"""Keys beside the entries that a package's reader drops; any other one would stop it."""
_LARGEST = 2**31 - 1
SIZES = (
    "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages",
)  # fmt: skip
"""What is read of an entry: rows, columns and depth of a block, blocks of rows in a group, warps of
a block and stages of its pipeline."""
_MAYBE_NONE = ("num_stages",)
"""What may be 0: files for AMD's devices have it."""


class _OddFileError(Exception):
    """Why a file has not the known form."""


def index_tuned(package: str, version: str, files: Mapping[str, bytes]) -> list[TunedIndexed]:
    """Return one event a file, ordered by path; nothing in a file makes this raise.

    Parameters
    ----------
    files
        Path inside the artefact, and the file's bytes.

    Returns
    -------
    list of TunedIndexed
        Entries stand in the file's order, on which the choice between two equally near M depends.
        A file of another form has `odd` and no entries; if its name was read, the name's fields.
    """
    return [_index(package, version, path, files[path]) for path in sorted(files)]


def _index(package: str, version: str, path: str, data: bytes) -> TunedIndexed:
    event = TunedIndexed(package=package, version=version, file=path, sha256=sha256(data))
    try:
        event = _named(event)
        entries = _entries(data, _NO_ENTRIES.get(package, frozenset()))
    except _OddFileError as error:
        return replace(event, odd=str(error))
    tokens = tuple(entries)
    sizes = {name.lower(): _column(entries, name) for name in SIZES}
    return replace(event, tokens=tokens, lines=_lines(data, tokens), **sizes)


def _column(entries: dict[int, dict[str, int]], name: str) -> tuple[int, ...]:
    """Return one size of every entry; nothing where one of them lacks it."""
    found = tuple(entry[name] for entry in entries.values() if name in entry)
    return found if len(found) == len(entries) else ()


def _named(event: TunedIndexed) -> TunedIndexed:
    """Return the event with what its file's name and folder say."""
    path = PurePosixPath(event.file)
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise _OddFileError(_what_is_odd(path.name))
    rows, columns = found["rows"], found["columns"]
    return replace(
        event,
        experts=int(found["experts"]),
        d_ff=int(found["d_ff"]),
        device=found["device"],
        dtype=found["dtype"],
        block_shape=(int(rows), int(columns)) if rows else None,
        per_channel_quant=found["per_channel"] is not None,
        down=found["down"] is not None,
        triton=_triton(path.parent.name),
    )


def _triton(folder: str) -> str | None:
    """Return the Triton version that a folder is for, None for a folder of another kind."""
    if not folder.startswith("triton_"):
        return None
    if not _FOLDER.fullmatch(folder):
        raise _OddFileError(f"folder {_short(folder)} names no version of triton")
    return folder.removeprefix("triton_").replace("_", ".")


def _what_is_odd(name: str) -> str:
    for part in _COMMA.split(name.removesuffix(".json")):
        key, _, value = part.partition("=")
        if key not in _PARTS and "=" in name:
            return f"name has the unknown part {_short(part)}"
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
            raise _OddFileError(f"M '{_short(key)}' is no positive integer")
        if int(key) in entries:
            raise _OddFileError(f"M={int(key)} twice")
        entries[int(key)] = _sizes(int(key), value)
    if not entries:
        raise _OddFileError("no entries")
    return entries


def _lines(data: bytes, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return the line of each entry; nothing where an entry does not begin its line."""
    found = [
        (int(match[1]), number)
        for number, line in enumerate(data.decode().splitlines(), start=1)
        if (match := _ENTRY.match(line))
    ]
    return tuple(line for _, line in found) if tuple(m for m, _ in found) == tokens else ()


def _sizes(m: int, value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise _OddFileError(f"no object at M={m}")
    if "BLOCK_SIZE_M" not in value:
        raise _OddFileError(f"no BLOCK_SIZE_M at M={m}")
    sizes = {name: value[name] for name in SIZES if name in value}
    for name, size in sizes.items():
        least = 0 if name in _MAYBE_NONE else 1
        if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= _LARGEST:
            whole = "positive integer" if least else "whole number"
            raise _OddFileError(f"{name} at M={m} is no {whole}")
    return sizes


def _parsed(data: bytes) -> object:
    try:
        content: object = json.loads(
            data.decode(), object_pairs_hook=_once_each, parse_constant=_no_number
        )
    except UnicodeDecodeError as error:
        raise _OddFileError(f"not JSON: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _OddFileError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise _OddFileError("not JSON: nested too deep") from error
    except ValueError as error:
        # All that is left is Python's limit on the digits of an integer.
        raise _OddFileError("not JSON: a number of too many digits") from error
    return content


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object of its members; Python's own way would keep the last of two silently."""
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            kind = "M=" if _COUNT.fullmatch(key) else ""
            raise _OddFileError(f"{kind}{_short(key)} twice")
        members[key] = value
    return members


def _no_number(name: str) -> NoReturn:
    raise _OddFileError(f"not JSON: {name} is no number")


def _short(text: str) -> str:
    """Return text from a file as a reason may quote it: short, and of ASCII alone."""
    quoted = ascii(text)[1:-1]
    return quoted if len(quoted) <= 60 else f"{quoted[:57]}..."
