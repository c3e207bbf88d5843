"""C++ text with parts written otherwise, each on the lines where it stands."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tree_sitter import Node

from nearfree.errors import MOVED, SourceError
from nearfree.sources.cpp.nodes import part
from nearfree.sources.cpp.source import function_name, parse, walk


class Edit(NamedTuple):
    """Bytes of a text from `start` on, up to `end`, and what is written there."""

    start: int
    end: int
    text: str


def written(content: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits made; of two that overlap the one around the other holds.

    What is written keeps the lines of what stood there, so that all else stays on its own.
    """
    raw, place, parts = content.encode(), 0, []
    for edit in sorted(edits, key=lambda each: (each.start, -each.end)):
        if edit.start < place:
            continue
        lines = b"\n" * raw[edit.start : edit.end].count(b"\n")
        parts += [raw[place : edit.start], edit.text.encode(), lines]
        place = edit.end
    return b"".join([*parts, raw[place:]]).decode()


def only_function(files: Mapping[str, str], name: str) -> tuple[str, Node]:
    """Return the only definition of a function, under whatever condition, and its file.

    Raises
    ------
    SourceError
        There is none, or there are several.
    """
    found = [
        (path, node)
        for path, text in files.items()
        if f" {name}(" in text
        for node in walk(parse(text))
        if node.type == "function_definition" and function_name(node) == name
    ]
    if len(found) != 1:
        raise SourceError(f"{name} is defined {len(found)} times", remedy=MOVED)
    return found[0]


def cut(text: str, function: Node, kept: Sequence[Node], answer: str) -> str:
    """Return a file with a function alone, of no parameters, that does nothing but some statements.

    Parameters
    ----------
    kept
        Its statements that stay, in order, each on its own lines.
    answer
        What it returns then.
    """
    head = part(function, "body").start_byte
    places = [(head + 1, kept[0].start_byte)]
    places += [(a.end_byte, b.start_byte) for a, b in pairwise(kept)]
    edits = [
        Edit(0, head, f"void {function_name(function)}() "),
        *(Edit(start, end, "") for start, end in places),
        Edit(kept[-1].end_byte, len(text.encode()), f" return {answer}; }}"),
    ]
    return written(text, edits)
