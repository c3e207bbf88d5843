"""The keys of a config.json, read by type and without trust.

An error names the file, the key and the value.
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
    """The keys of one file; a key that is null counts as one that is not there.

    `within` names the object that holds them, with a stop behind it; `own` says how the file
    itself calls a key that is read under another name.
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
        """Return whether a key is there and not null."""
        return self.values.get(key) is not None

    def names(self) -> list[str]:
        """Return the keys that are there and not null."""
        return [key for key in self.values if self.has(key)]

    def empty(self, key: str) -> bool:
        """Return whether a key is absent, false, zero, or holds an empty text, list or object."""
        return not self.values.get(key)

    def is_text(self, key: str, text: str | None = None) -> bool:
        """Return whether a key holds a text, or exactly this one."""
        value = self.values.get(key)
        return isinstance(value, str) if text is None else value == text

    def one_of(self, *names: str, remedy: str = _ADD) -> str:
        """Return which of several names of one key is there; `remedy` says what to do if none is.

        Raises
        ------
        ConfigError
            None is there, or two are and differ.
        """
        present = [name for name in names if self.has(name)]
        if len({repr(self.values[name]) for name in present}) > 1:
            raise self.wrong(present[0], f"differs from {present[1]}", "Leave one of them out")
        return present[0] if present else self._missing(" or ".join(names), remedy)

    def whole(self, key: str, *, least: int = 1, default: int | None = None) -> int:
        """Return a whole number from `least` to ten million; ConfigError if it is none.

        Without a `default` the key must be there.
        """
        value = default if default is not None and not self.has(key) else self._required(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LIMIT:
            raise self.wrong(key, f"is no whole number from {least} to {_LIMIT}")
        return value

    def wholes(self, *names: str) -> list[int]:
        """Return whole numbers from one on; what is wrong of any of them is refused at once."""
        found, read = Refusals(), list[int]()
        for name in names:
            with found.collect():
                read.append(self.whole(name))
        found.check()
        return read

    def whole_or_null(self, key: str) -> int | None:
        """Return a whole number from one on, None where null is written; a key must be there."""
        return None if key in self.values and not self.has(key) else self.whole(key)

    def number(self, key: str, *, above: float = 0.0, most: float = 1e12) -> float:
        """Return a number above `above` and up to `most`; ConfigError if it is none."""
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "is no number")
        if not above < value <= most:
            raise self.wrong(key, f"is no number above {above:g} and up to {most:g}")
        return float(value)

    def inner(self, key: str) -> "Keys":
        """Return the keys of the object that a key holds; there are none where it is not there."""
        value = self.values[key] if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.wrong(key, "is no object")
        return Keys(self.path, value, f"{self._within}{key}.")

    def without(self, key: str) -> "Keys":
        """Return the same keys but one."""
        values = {name: value for name, value in self.values.items() if name != key}
        return Keys(self.path, values, self._within, self._own)

    def replaced(self, key: str, value: object) -> "Keys":
        """Return the same keys with another value of one."""
        return Keys(self.path, {**self.values, key: value}, self._within, self._own)

    def inners(self, key: str) -> list["Keys"]:
        """Return the keys of each object in a list."""
        value = self._required(key)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.wrong(key, "is no list of objects")
        place = f"{self._within}{key}"
        return [Keys(self.path, each, f"{place}[{at}].") for at, each in enumerate(value)]

    def list_of(self, key: str, kind: type[T]) -> list[T]:
        """Return a list whose entries all are of one type, empty where the key is not there."""
        value = self.values[key] if self.has(key) else []
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.wrong(key, f"is no list of {_KINDS[kind]}")
        return value

    def each(self, key: str) -> Sequence[int | str]:
        """Return a list of whole numbers or of texts, or the letters of a text."""
        value = self._required(key)
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or any(type(item) not in {int, str} for item in value):
            raise self.wrong(key, "is neither a text nor a list of whole numbers or texts")
        return value

    def flag(self, key: str) -> bool:
        """Return true or false, false where the key is not there."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "is neither true nor false")
        return bool(value)

    def text(self, key: str) -> str:
        """Return a text; ConfigError if there is none."""
        value = self._required(key)
        if not isinstance(value, str):
            raise self.wrong(key, "is no text")
        return value

    def wrong(
        self, key: str, why: str, remedy: str = "Compare with the model's published config.json"
    ) -> RefusedError:
        """Return the error that a key's value cannot be used, and why."""
        return self._refused(key, f"{_shown(self.values.get(key))} {why}", remedy)

    def _required(self, key: str) -> Any:
        return self.values[key] if self.has(key) else self._missing(key)

    def _missing(self, key: str, remedy: str = _ADD) -> NoReturn:
        raise self._refused(key, "is missing", remedy)

    def _refused(self, key: str, reason: str, remedy: str) -> RefusedError:
        name = f"{self._within}{self._own.get(key, key)}"
        shown = f"{printable(name):.200}"
        return RefusedError([Refusal(str(self.path), shown, reason, remedy)])


def _shown(value: object) -> str:
    """Return a value as a message shows it; what is nested is only named."""
    if isinstance(value, list):
        return "[...]"
    return "{...}" if isinstance(value, dict) else f"{value!r:.60}"


SIZE_LIMIT = 4 * 10**6
"""Bytes; published config.json files have a few thousand, and up to three million where each
quantised tensor is named."""


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds; NaN and Infinity count as numbers.

    Raises
    ------
    ConfigError
        There is no such file, it has more than four megabytes, is not UTF-8 or not JSON, is nested
        too deeply, has a key twice in one object, or is no object.
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


def _no_config(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{path} {what}", remedy="Give the config.json of a model")


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
