"""Typed access to the keys of a config.json, whose values are not trusted.

Each error names the file, the key and the value.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from nearfree.errors import ConfigError, Refusal, Refusals, RefusedError, printable

T = TypeVar("T", int, str)
_KINDS = {int: "whole numbers", str: "texts"}
_LIMIT = 10**7
"""No width, count or vocabulary of a model is larger."""

_ADD = "Add it from the model's published config.json"


class Keys:
    """The keys of one JSON object; a key whose value is null counts as absent.

    `within` is the path of the object in the file, with a trailing dot. `own` maps a key that is
    read under another name to the name that the file has for it.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, Any],
        within: str = "",
        own: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.values = values
        self._within = within
        self._own = own or {}

    def has(self, key: str) -> bool:
        """Return whether a key is present and not null."""
        return self.values.get(key) is not None

    def names(self) -> list[str]:
        """Return the keys that are present and not null."""
        return [key for key in self.values if self.has(key)]

    def empty(self, key: str) -> bool:
        """Return whether a key is absent, false, zero, or holds an empty string, list or object."""
        return not self.values.get(key)

    def is_text(self, key: str, text: str | None = None) -> bool:
        """Return whether a key holds a string, or exactly the string `text`."""
        value = self.values.get(key)
        return isinstance(value, str) if text is None else value == text

    def one_of(self, *names: str, remedy: str = _ADD) -> str:
        """Return the name that is present among several names of one key.

        Raises
        ------
        ConfigError
            No name is present, or two are present and their values differ.
        """
        present = [name for name in names if self.has(name)]
        if len({repr(self.values[name]) for name in present}) > 1:
            raise self.wrong(present[0], f"differs from {present[1]}", "Leave one of them out")
        return present[0] if present else self._missing(" or ".join(names), remedy)

    def whole(self, key: str, *, least: int = 1, default: int | None = None) -> int:
        """Return an integer from `least` to ten million; ConfigError if the value is none.

        Without a `default` the key must be present.
        """
        value = default if default is not None and not self.has(key) else self._required(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LIMIT:
            raise self.wrong(key, f"is no whole number from {least} to {_LIMIT}")
        return value

    def wholes(self, *names: str) -> list[int]:
        """Return the integers, from 1 on, of several keys; one error names all that are wrong."""
        refusals, numbers = Refusals(), list[int]()
        for name in names:
            with refusals.collect():
                numbers.append(self.whole(name))
        refusals.check()
        return numbers

    def whole_or_null(self, key: str) -> int | None:
        """Return an integer from 1 on, None where the file says null; the key must be present."""
        return None if key in self.values and not self.has(key) else self.whole(key)

    def number(self, key: str, *, above: float = 0.0, most: float = 1e12) -> float:
        """Return a number above `above` and up to `most`; ConfigError if the value is none."""
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "is no number")
        if not above < value <= most:
            raise self.wrong(key, f"is no number above {above:g} and up to {most:g}")
        return float(value)

    def inner(self, key: str) -> "Keys":
        """Return the keys of the object under a key; no keys if that is absent."""
        value = self.values[key] if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.wrong(key, "is no object")
        return Keys(self.path, value, f"{self._within}{key}.")

    def without(self, key: str) -> "Keys":
        """Return these keys without one of them."""
        values = {name: value for name, value in self.values.items() if name != key}
        return Keys(self.path, values, self._within, self._own)

    def replaced(self, key: str, value: object) -> "Keys":
        """Return these keys with another value for one of them."""
        return Keys(self.path, {**self.values, key: value}, self._within, self._own)

    def inners(self, key: str) -> list["Keys"]:
        """Return the keys of each object in the list under a key."""
        value = self._required(key)
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self.wrong(key, "is no list of objects")
        path = f"{self._within}{key}"
        return [Keys(self.path, entry, f"{path}[{index}].") for index, entry in enumerate(value)]

    def list_of(self, key: str, kind: type[T]) -> list[T]:
        """Return a list whose entries all are of one type; an empty list if the key is absent."""
        value = self.values[key] if self.has(key) else []
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.wrong(key, f"is no list of {_KINDS[kind]}")
        return value

    def each(self, key: str) -> Sequence[int | str]:
        """Return a list of integers or strings; a string counts as the list of its letters."""
        value = self._required(key)
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or any(type(item) not in {int, str} for item in value):
            raise self.wrong(key, "is neither a text nor a list of whole numbers or texts")
        return value

    def flag(self, key: str) -> bool:
        """Return a boolean, False if the key is absent."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "is neither true nor false")
        return bool(value)

    def text(self, key: str) -> str:
        """Return a string; ConfigError if the value is none."""
        value = self._required(key)
        if not isinstance(value, str):
            raise self.wrong(key, "is no text")
        return value

    def wrong(
        self, key: str, reason: str, remedy: str = "Compare with the model's published config.json"
    ) -> RefusedError:
        """Return the error that a key's value cannot be used, with the reason."""
        return self._refused(key, f"{_shown(self.values.get(key))} {reason}", remedy)

    def _required(self, key: str) -> Any:
        return self.values[key] if self.has(key) else self._missing(key)

    def _missing(self, key: str, remedy: str = _ADD) -> NoReturn:
        raise self._refused(key, "is missing", remedy)

    def _refused(self, key: str, reason: str, remedy: str) -> RefusedError:
        name = f"{self._within}{self._own.get(key, key)}"
        shown = f"{printable(name):.200}"
        return RefusedError([Refusal(str(self.path), shown, reason, remedy)])


def _shown(value: object) -> str:
    """Return a value as a message shows it; the content of lists and objects is left out."""
    if isinstance(value, list):
        return "[...]"
    return "{...}" if isinstance(value, dict) else f"{value!r:.60}"


SIZE_LIMIT = 4 * 10**6
"""The largest config.json that is read, in bytes. Published ones have a few thousand bytes, and up
to three million where they name each quantised tensor."""


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; NaN and Infinity count as numbers.

    Raises
    ------
    ConfigError
        The file is absent, has more than four megabytes, is not UTF-8 or not JSON, is nested too
        deeply, repeats a key in one object, or holds something other than an object.
    """
    try:
        document = json.loads(_text(path), object_pairs_hook=_object)
    except OSError as error:
        raise _no_config(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _no_config(path, f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _no_config(path, "holds no JSON object")
    return document


def _no_config(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path} {reason}", remedy="Give the config.json of a model")


def _text(path: Path) -> str:
    if not path.is_file():
        raise _no_config(path, "is not there or is no file")
    with path.open("rb") as file:
        raw = file.read(SIZE_LIMIT + 1)
    if len(raw) > SIZE_LIMIT:
        raise _no_config(path, f"is larger than {SIZE_LIMIT} bytes")
    return raw.decode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key!r:.80} stands twice")
        values[key] = value
    return values
