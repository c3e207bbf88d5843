"""Lists of matrix names in config files, matched against a checkpoint's matrices.

An entry is a module's name or its end, a wildcard (`model.layers.0*`) or, after `re:`, a regular
expression. Regular expressions of a file are never run. A small subset of them is parsed into
pieces and matched in time linear in the name.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Literal

from msgspec import Struct

from nearfree.decoders.keys import Keys

Reading = Literal["whole", "path", "text"]
"""How engines match an entry: with a whole name; with the path of a module or an end of it; or with
any substring. An entry on which engines differ for a matrix is reported by `Names.doubt`. Source:
is_layer_skipped and is_equal_or_regex_match of vllm 0.33.0, should_convert_module of transformers
5.23."""

MANY, ONE, DIGITS = "*", "?", "#"
_Piece = str | tuple[str, ...]
"""MANY: any number of characters. ONE: one character. DIGITS: one or more digits. A tuple: one of
its strings."""

_TOKEN = re.compile(
    r"(?P<many>\.\*)|(?P<some>\.\+)|(?P<digits>(?:\\d|\[0-9\])\+)|(?P<one>\.)"
    r"|\((?:\?:)?(?P<texts>[\w.\\|-]+)\)|(?P<text>(?:[\w-]|\\\.)+)"
)
_GLOB = re.compile(r"(?P<many>\*+)|(?P<one>\?)|(?P<text>[^*?\[\]]+)")
_CLASS = re.compile(r"[A-Z]\w*")
_ROOT = re.compile(r"((?:model\.|backbone\.|transformer\.)?)layers\.")
_NUMBER = re.compile(r"(?:^|\.)\d")
_TEXT_PART = "language_model."
_MOST_PIECES = 500
_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
"""The name of the fused matrix by which a list may name a matrix that engines fuse with others."""


class Names(Struct, frozen=True, kw_only=True):
    """The entries of a list of matrices: `exact` names, `prefixes` and `patterns`."""

    reading: Reading = "path"
    exact: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()
    patterns: frozenset[tuple[_Piece, ...]] = frozenset()
    roots: frozenset[str] = frozenset()
    """The prefixes before `layers.` in the list's entries."""

    def covers(self, name: str) -> bool:
        """Return whether the list names a matrix, or the module that holds it."""
        name = normal(name)
        leaf = name.rpartition(".")[2]
        fused = name.removesuffix(leaf) + _FUSED.get(leaf, leaf)
        return self._covers(name) or (fused != name and self._covers(fused))

    def _covers(self, name: str) -> bool:
        is_named = name in self.exact if self.reading == "whole" else self._run(name)
        modules = (name, *_modules(name)) if self.reading == "path" else (name,)
        has_prefix = self.prefixes and not self.prefixes.isdisjoint(_starts(name))
        return bool(is_named or has_prefix or self._fits(modules))

    def _fits(self, names: Iterable[str]) -> bool:
        return any(_matches(pattern, name) for pattern in self.patterns for name in names)

    def _run(self, name: str) -> str | None:
        return next((run for run in _runs(name) if run in self.exact), None) if self.exact else None

    def doubt(self, name: str) -> str | None:
        """Return an entry that names this matrix in some engines but not in others, else None."""
        name = normal(name)
        if self.reading == "whole":
            return self._run(name)
        if self.reading == "path":
            sizes = [size for size in _lengths(self.exact) if size <= len(name)]
            ends = (name[len(name) - size :] for size in sizes)
            starts = (name[:size] for size in sizes)
            return min(self.exact.intersection((*starts, *ends)), default=None)
        if self._fits(_modules(name)):
            return "*"
        if len(self.exact) < len(name) ** 2:
            return min((entry for entry in self.exact if entry in name), default=None)
        substrings = (name[start:end] for end in range(len(name) + 1) for start in range(end))
        return min(self.exact.intersection(substrings), default=None)

    def tell_apart(self, module: str) -> bool:
        """Return whether the list may treat a module's numbered children differently.

        It does not if no entry has a number after the module's name or an end of it, and no pattern
        contains a digit or a piece whose match depends on the digits of a number.
        """
        name = normal(module)
        texts = (text for pieces in self.patterns for piece in pieces for text in piece)
        return any(re.search(r"[\d?#]", text) for text in texts) or name.endswith(
            _numbered(self.exact) + _numbered(self.prefixes)
        )


def normal(name: str) -> str:
    """Return a name without `language_model.` and `.weight`, which not all files write."""
    return name.replace(_TEXT_PART, "").removesuffix(".weight")


def root(name: str) -> str | None:
    """Return the prefix before `layers.` in a name, None if that is no root of a decoder."""
    match = _ROOT.match(normal(name))
    return match and match[1]


@cache
def _numbered(texts: frozenset[str]) -> tuple[str, ...]:
    """Return the words that a number follows in some of the names."""
    heads = {text[: match.start()] for text in texts for match in _NUMBER.finditer(text)}
    return tuple({re.split(r"\W", head)[-1] for head in heads})


@cache
def _lengths(texts: frozenset[str]) -> frozenset[int]:
    return frozenset(map(len, texts))


def _starts(name: str) -> Iterator[str]:
    """Return all prefixes of a name."""
    return (name[:end] for end in range(len(name) + 1))


def _modules(name: str) -> list[str]:
    """Return the paths of the modules that hold a matrix."""
    return [name[:dot] for dot, letter in enumerate(name) if letter == "."]


def _runs(name: str) -> Iterator[str]:
    """Return all runs of consecutive dotted parts of a name."""
    dots = [-1, *(index for index, letter in enumerate(name) if letter == "."), len(name)]
    return (name[start + 1 : end] for i, start in enumerate(dots) for end in dots[i + 1 :])


def read_names(
    keys: Keys, key: str, reading: Reading, entries: Sequence[str] | None = None
) -> Names:
    """Return the matrices that the list under a key names, or that `entries` from it name.

    Raises
    ------
    RefusedError
        The value is no list of strings, an expression is outside the subset that is read, an entry
        names a class of modules, or the patterns have more than 500 pieces.
    """
    exact, prefixes, patterns, unread = set[str](), set[str](), set[tuple[_Piece, ...]](), []
    for entry in keys.list_of(key, str) if entries is None else entries:
        pieces = _pieces(entry)
        if not pieces:
            unread.append(entry)
        elif all(isinstance(piece, tuple) and len(piece) == 1 for piece in pieces):
            exact.add("".join(piece[0] for piece in pieces))
        elif len(pieces) == 2 and isinstance(pieces[0], tuple) and pieces[1] == MANY:
            prefixes.update(pieces[0])
        else:
            patterns.add(pieces)
    if unread:
        examples = ", ".join(f"{entry!r:.80}" for entry in unread[:3])
        raise keys.wrong(
            key,
            f"has {len(unread)} entries that are not understood: {examples}",
            "Write them only with names, `.*`, `\\d+` and (a|b)",
        )
    piece_count = sum(len(piece) for pieces in patterns for piece in pieces)
    if piece_count > _MOST_PIECES:
        why = f"has patterns of {piece_count} pieces"
        raise keys.wrong(key, why, "Write names, or fewer patterns")
    roots = {root(text) for text in (*exact, *prefixes)} - {None}
    return Names(
        reading=reading,
        exact=frozenset(exact),
        prefixes=frozenset(prefixes),
        patterns=frozenset(patterns),
        roots=frozenset(map(str, roots)),
    )


def _pieces(entry: str) -> tuple[_Piece, ...] | None:
    """Return the pieces of an entry; None if it is not understood.

    A regular expression matches from a name's start, but to its end only if it ends in `$`.
    """
    if not entry.startswith("re:"):
        is_unread = not entry or _CLASS.fullmatch(entry)
        return None if is_unread else _tokens(_GLOB, normal(entry))
    expression = normal(entry.removeprefix("re:").replace(r"language_model\.", ""))
    if "language_model" in expression:
        return None
    is_anchored = expression.endswith("$")
    pieces = _tokens(_TOKEN, expression.removeprefix("^").removesuffix("$"))
    return pieces if not pieces or is_anchored else (*pieces, MANY)


def _tokens(token: re.Pattern[str], text: str) -> tuple[_Piece, ...] | None:
    pieces: list[_Piece] = []
    position = 0
    while position < len(text):
        match = token.match(text, position)
        if match is None:
            return None
        kind, raw = str(match.lastgroup), match[str(match.lastgroup)]
        if kind.startswith("text"):
            texts = raw.replace(r"\.", ".").split("|") if token is _TOKEN else [raw]
            if any("\\" in choice or not choice for choice in texts):
                return None
            pieces.append(tuple(texts))
        else:
            signs = {"many": (MANY,), "some": (ONE, MANY), "digits": (DIGITS,), "one": (ONE,)}
            pieces += signs[kind]
        position = match.end()
    return tuple(pieces)


def _matches(pieces: Sequence[_Piece], name: str) -> bool:
    """Return whether pieces match a whole name."""
    ends = {0}
    for piece in pieces:
        ends = _ends(piece, name, ends)
        if not ends:
            return False
    return len(name) in ends


def _ends(piece: _Piece, name: str, starts: set[int]) -> set[int]:
    """Return the positions at which a match of a piece can end if it begins at one of `starts`."""
    if piece == MANY:
        return set(range(min(starts), len(name) + 1))
    if piece == ONE:
        return {position + 1 for position in starts if position < len(name)}
    if piece == DIGITS:
        ends = set[int]()
        for position in range(min(starts), len(name)):
            if name[position].isdigit() and (position in starts or position in ends):
                ends.add(position + 1)
        return ends
    return {
        position + len(text)
        for position in starts
        for text in piece
        if name.startswith(text, position)
    }
