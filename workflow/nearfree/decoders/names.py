"""Names of matrices: which of a checkpoint's matrices a list in a config file speaks of.

An entry is a module's name or its end, a wildcard (`model.layers.0*`) or, after `re:`, a regular
expression. No expression of a file is run: those of a small language are taken apart, and found in
time linear in the name.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Literal

from msgspec import Struct

from nearfree.decoders.keys import Keys

Reading = Literal["whole", "path", "text"]
"""How engines compare an entry: with a whole name; with the path of a module or an end of it; or
with any text within. Where that would differ from a run of a name's dotted parts, who asks is
refused. Source: is_layer_skipped and is_equal_or_regex_match of vllm 0.33.0, should_convert_module
of transformers 5.23."""

MANY, ONE, DIGITS = "*", "?", "#"
_Piece = str | tuple[str, ...]
"""MANY characters or none, ONE, some DIGITS, or one of several texts."""

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
"""What a list may call a matrix that engines join with others."""


class Names(Struct, frozen=True, kw_only=True):
    """The matrices that a list names: by `exact` names, by `prefixes` and by `patterns`."""

    reading: Reading = "path"
    exact: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()
    patterns: frozenset[tuple[_Piece, ...]] = frozenset()
    roots: frozenset[str] = frozenset()
    """What stands before `layers.` in the list's entries."""

    def covers(self, name: str) -> bool:
        """Return whether a matrix is named, or the module that holds it."""
        name = normal(name)
        leaf = name.rpartition(".")[2]
        fused = name.removesuffix(leaf) + _FUSED.get(leaf, leaf)
        return self._covers(name) or (fused != name and self._covers(fused))

    def _covers(self, name: str) -> bool:
        named = name in self.exact if self.reading == "whole" else self._run(name)
        modules = (name, *_modules(name)) if self.reading == "path" else (name,)
        begun = self.prefixes and not self.prefixes.isdisjoint(_starts(name))
        return bool(named or begun or self._fits(modules))

    def _fits(self, names: Iterable[str]) -> bool:
        return any(_matches(pattern, name) for pattern in self.patterns for name in names)

    def _run(self, name: str) -> str | None:
        return next((run for run in _runs(name) if run in self.exact), None) if self.exact else None

    def doubt(self, name: str) -> str | None:
        """Return an entry that engines differ on: it names this matrix in some of them alone."""
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
            return min((each for each in self.exact if each in name), default=None)
        parts = (name[at:end] for end in range(len(name) + 1) for at in range(end))
        return min(self.exact.intersection(parts), default=None)

    def tell_apart(self, module: str) -> bool:
        """Return whether the list may treat a module's numbered parts differently.

        It does not where no entry has a digit behind the module's name or an end of it, nor a
        pattern one anywhere or a piece whose match a number's digits change.
        """
        name = normal(module)
        texts = (text for pieces in self.patterns for piece in pieces for text in piece)
        return any(re.search(r"[\d?#]", text) for text in texts) or name.endswith(
            _numbered(self.exact) + _numbered(self.prefixes)
        )


def normal(name: str) -> str:
    """Return a name without the part `language_model`, which files put at either of two places."""
    return name.replace(_TEXT_PART, "").removesuffix(".weight")


def root(name: str) -> str | None:
    """Return what stands before `layers.` in a name, None if that is no root of a decoder."""
    match = _ROOT.match(normal(name))
    return match and match[1]


@cache
def _numbered(texts: frozenset[str]) -> tuple[str, ...]:
    """Return the words behind which some of the texts have a number."""
    heads = {text[: match.start()] for text in texts for match in _NUMBER.finditer(text)}
    return tuple({re.split(r"\W", head)[-1] for head in heads})


@cache
def _lengths(texts: frozenset[str]) -> frozenset[int]:
    return frozenset(map(len, texts))


def _starts(name: str) -> Iterator[str]:
    return (name[:end] for end in range(len(name) + 1))


def _modules(name: str) -> list[str]:
    return [name[:at] for at, letter in enumerate(name) if letter == "."]


def _runs(name: str) -> Iterator[str]:
    cuts = [-1, *(at for at, letter in enumerate(name) if letter == "."), len(name)]
    return (name[a + 1 : b] for i, a in enumerate(cuts) for b in cuts[i + 1 :])


def read_names(
    keys: Keys, key: str, reading: Reading, entries: Sequence[str] | None = None
) -> Names:
    """Return what the list of a key names, or `entries` that were found under the key.

    Raises
    ------
    RefusedError
        It is no list of texts, an expression is outside the language that is read, a class of
        modules is named, or the patterns have more than 500 pieces.
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
        shown = ", ".join(f"{each!r:.80}" for each in unread[:3])
        raise keys.wrong(
            key,
            f"has {len(unread)} entries that are not understood: {shown}",
            "Write them with names, `.*`, `\\d+` and (a|b) alone",
        )
    size = sum(len(piece) for pieces in patterns for piece in pieces)
    if size > _MOST_PIECES:
        raise keys.wrong(key, f"has patterns of {size} pieces", "Write names, or fewer patterns")
    starts = {root(text) for text in (*exact, *prefixes)} - {None}
    return Names(
        reading=reading,
        exact=frozenset(exact),
        prefixes=frozenset(prefixes),
        patterns=frozenset(patterns),
        roots=frozenset(str(each) for each in starts),
    )


def _pieces(entry: str) -> tuple[_Piece, ...] | None:
    """Return an entry taken apart; None if it is not understood.

    A regular expression holds from a name's start, and to its end only if it says so.
    """
    if not entry.startswith("re:"):
        unclear = not entry or _CLASS.fullmatch(entry)
        return None if unclear else _tokens(_GLOB, normal(entry))
    text = normal(entry.removeprefix("re:").replace(r"language_model\.", ""))
    if "language_model" in text:
        return None
    ends = text.endswith("$")
    pieces = _tokens(_TOKEN, text.removeprefix("^").removesuffix("$"))
    return pieces if not pieces or ends else (*pieces, MANY)


def _tokens(token: re.Pattern[str], text: str) -> tuple[_Piece, ...] | None:
    pieces: list[_Piece] = []
    at = 0
    while at < len(text):
        match = token.match(text, at)
        if match is None:
            return None
        kind, raw = str(match.lastgroup), match[str(match.lastgroup)]
        if kind.startswith("text"):
            texts = raw.replace(r"\.", ".").split("|") if token is _TOKEN else [raw]
            if any("\\" in each or not each for each in texts):
                return None
            pieces.append(tuple(texts))
        else:
            signs = {"many": (MANY,), "some": (ONE, MANY), "digits": (DIGITS,), "one": (ONE,)}
            pieces += signs[kind]
        at = match.end()
    return tuple(pieces)


def _matches(pieces: Sequence[_Piece], name: str) -> bool:
    ends = {0}
    for piece in pieces:
        ends = _ends(piece, name, ends)
        if not ends:
            return False
    return len(name) in ends


def _ends(piece: _Piece, name: str, starts: set[int]) -> set[int]:
    if piece == MANY:
        return set(range(min(starts), len(name) + 1))
    if piece == ONE:
        return {at + 1 for at in starts if at < len(name)}
    if piece == DIGITS:
        ends = set[int]()
        for at in range(min(starts), len(name)):
            if name[at].isdigit() and (at in starts or at in ends):
                ends.add(at + 1)
        return ends
    return {at + len(text) for at in starts for text in piece if name.startswith(text, at)}
