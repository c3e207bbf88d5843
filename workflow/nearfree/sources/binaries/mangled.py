"""Mangled names of C++: what a template was instantiated with.

The grammar is the Itanium C++ ABI's, section 5.1, as far as names of kernels go: nested names,
template arguments, packs, numbers, and substitutions. What follows a function's name is not read.
"""

import re
from typing import NamedTuple

from nearfree.errors import SourceError

NAME_LIMIT = 1 << 14
"""Characters of a name."""
DEPTH_LIMIT = 64
"""Templates within templates."""


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
    """Return what a mangled name names.

    Raises
    ------
    SourceError
        It is outside of the part of the grammar that is read.
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
        self.at = 2
        self.depth = 0
        self.seen: list[Name] = []

    def encoding(self) -> Name:
        return self._nested(whole=False) if self._take("N") else self._unscoped()[0]

    def _take(self, sign: str) -> bool:
        if self.text.startswith(sign, self.at):
            self.at += len(sign)
            return True
        return False

    def _match(self, pattern: str) -> str:
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            raise ValueError(pattern)
        self.at = found.end()
        return found[0]

    def _source(self) -> str:
        size = int(self._match(r"[1-9][0-9]{0,4}"))
        name = self.text[self.at : self.at + size]
        self.at += size
        if len(name) != size:
            raise ValueError(name)
        return name

    def _nested(self, *, whole: bool) -> Name:
        """Return a nested name; `whole` says that it is a type, which later parts may point at."""
        self._match(r"[rVK]*")
        name: Name | None = None
        known = True
        while not self._take("E"):
            if name is not None and not known:
                self.seen.append(name)
            if name is None and self.text[self.at] == "S":
                name, known = self._substitution(), True
            elif name is not None and self._take("I"):
                name, known = Name(name.path, self._arguments()), False
            else:
                part = self._source()
                name, known = Name(part if name is None else f"{name.path}::{part}"), False
        if name is None:
            raise ValueError("an empty name")
        if whole and not known:
            self.seen.append(name)
        return name

    def _unscoped(self) -> tuple[Name, bool]:
        """Return a name without namespaces, and whether later parts may point at it anew."""
        fresh = True
        if self._take("St"):
            name = Name(f"std::{self._source()}")
        elif self.text[self.at] == "S":
            name, fresh = self._substitution(), False
        else:
            name = Name(self._source())
        if self._take("I"):
            if fresh:
                self.seen.append(name)
            return Name(name.path, self._arguments()), True
        return name, fresh

    def _type(self) -> Name:
        sign = self.text[self.at]
        if sign in "PROKV":
            self.at += 1
            name = Name(f"{self._type().path}{sign}")
            self.seen.append(name)
            return name
        if sign == "N":
            self.at += 1
            return self._nested(whole=True)
        if sign == "S" or sign.isdigit():
            name, fresh = self._unscoped()
            if fresh:
                self.seen.append(name)
            return name
        return Name(self._match(r"D[a-z]|[a-z]"))

    def _substitution(self) -> Name:
        if self._take("St"):
            return Name("std")
        text = self._match(r"S[0-9A-Z]*_")[1:-1]
        return self.seen[int(text, 36) + 1 if text else 0]

    def _arguments(self) -> tuple[Argument, ...]:
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise ValueError("too deep")
        found: list[Argument] = []
        while not self._take("E"):
            if self._take("J"):
                found += self._arguments()
            elif self._take("L"):
                found.append(self._literal())
            else:
                found.append(self._type())
        self.depth -= 1
        return tuple(found)

    def _literal(self) -> Argument:
        kind = self._type()
        value = int(self._match(r"n?[0-9]{1,19}").replace("n", "-"))
        self._match("E")
        return bool(value) if kind.path == "b" else value
