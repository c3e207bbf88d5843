"""JSON objects from files that others wrote: read without trust."""

import json
from pathlib import Path
from typing import Any, NoReturn

from nearfree.errors import ConfigError

_SIZE_LIMIT = 10**6
"""Bytes; published config.json files have a few thousand."""


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises
    ------
    ConfigError
        There is no such file, it has more than a megabyte, is not UTF-8 or not JSON, is nested too
        deeply, holds NaN or infinity, has a key twice in one object, or is no object.
    """
    try:
        found = json.loads(_text(path), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not JSON: {error}", remedy="Give the config.json of a model"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object", remedy="Give the config.json of a model")
    return found


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise ConfigError(
                f"{path} is not there or is no file", remedy="Give the config.json of a model"
            )
        with path.open("rb") as file:
            raw = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", remedy="Give the config.json of a model"
        ) from error
    if len(raw) > _SIZE_LIMIT:
        raise ConfigError(
            f"{path} is larger than {_SIZE_LIMIT} bytes", remedy="Give the config.json of a model"
        )
    return raw.decode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.80} stands twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
