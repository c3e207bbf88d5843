"""Mangled C++ names: the arguments that a template was instantiated with.

The grammar is the Itanium C++ ABI's, section 5.1, as far as kernel names need it: nested names,
template arguments, packs, numbers, and substitutions. Nothing after a function's name is read.
"""

import re
from typing import NamedTuple

from nearfree.errors import SourceError

NAME_LIMIT = 1 << 14
"""Limit of a name, in characters."""
DEPTH_LIMIT = 64
"""Limit of nested templates."""


class Name(NamedTuple):
    """A name with its namespaces, and the template arguments of its last part."""

    path: str
    args: "tuple[Argument, ...]" = ()

    @property
    def last(self) -> str:
        """The name without its namespaces."""
        return self.path.rpartition("::")[2]


Argument = Name | int | bool


def read_name(text: str) -> Name:
    """Return a mangled name's path and template arguments.

    Raises
    ------
    SourceError
        It is outside the part of the grammar that is read.
    """
    if text.startswith("_Z") and len(text) <= NAME_LIMIT:
        try:
            return _Reader(text).encoding()
        except (IndexError, ValueError, RecursionError):
            pass
    raise SourceError(
        f"{text[:120]!r} is no mangled name of the known form",
        remedy="A binary of this release needs a reader of its own: report it",
    )


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 2
        self.depth = 0
        self.substitutions: list[Name] = []

    def encoding(self) -> Name:
        return self._nested(is_type=False) if self._take("N") else self._unscoped()[0]

    def _take(self, sign: str) -> bool:
        if self.text.startswith(sign, self.position):
            self.position += len(sign)
            return True
        return False

    def _match(self, pattern: str) -> str:
        match = re.compile(pattern).match(self.text, self.position)
        if match is None:
            raise ValueError(pattern)
        self.position = match.end()
        return match[0]

    def _source(self) -> str:
        size = int(self._match(r"[1-9][0-9]{0,4}"))
        name = self.text[self.position : self.position + size]
        self.position += size
        if len(name) != size:
            raise ValueError(name)
        return name

    def _nested(self, *, is_type: bool) -> Name:
        """Return a nested name; a type is a candidate for later substitutions."""
        self._match(r"[rVK]*")
        name: Name | None = None
        is_candidate = True
        while not self._take("E"):
            if name is not None and not is_candidate:
                self.substitutions.append(name)
            if name is None and self.text[self.position] == "S":
                name, is_candidate = self._substitution(), True
            elif name is not None and self._take("I"):
                name, is_candidate = Name(name.path, self._arguments()), False
            else:
                part = self._source()
                name, is_candidate = Name(part if name is None else f"{name.path}::{part}"), False
        if name is None:
            raise ValueError("an empty name")
        if is_type and not is_candidate:
            self.substitutions.append(name)
        return name

    def _unscoped(self) -> tuple[Name, bool]:
        """Return a name without namespaces, and whether it is a new substitution candidate."""
        fresh = True
        if self._take("St"):
            name = Name(f"std::{self._source()}")
        elif self.text[self.position] == "S":
            name, fresh = self._substitution(), False
        else:
            name = Name(self._source())
        if self._take("I"):
            if fresh:
                self.substitutions.append(name)
            return Name(name.path, self._arguments()), True
        return name, fresh

    def _type(self) -> Name:
        sign = self.text[self.position]
        if sign in "PROKV":
            self.position += 1
            name = Name(f"{self._type().path}{sign}")
            self.substitutions.append(name)
            return name
        if sign == "N":
            self.position += 1
            return self._nested(is_type=True)
        if sign == "S" or sign.isdigit():
            name, fresh = self._unscoped()
            if fresh:
                self.substitutions.append(name)
            return name
        return Name(self._match(r"D[a-z]|[a-z]"))

    def _substitution(self) -> Name:
        if self._take("St"):
            return Name("std")
        text = self._match(r"S[0-9A-Z]*_")[1:-1]
        return self.substitutions[int(text, 36) + 1 if text else 0]

    def _arguments(self) -> tuple[Argument, ...]:
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise ValueError("too deep")
        arguments: list[Argument] = []
        while not self._take("E"):
            if self._take("J"):
                arguments += self._arguments()
            elif self._take("L"):
                arguments.append(self._literal())
            else:
                arguments.append(self._type())
        self.depth -= 1
        return tuple(arguments)

    def _literal(self) -> Argument:
        kind = self._type()
        value = int(self._match(r"n?[0-9]{1,19}").replace("n", "-"))
        self._match("E")
        return bool(value) if kind.path == "b" else value
