"""Edit C++ text so that everything else keeps its line."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tree_sitter import Node

from nearfree.errors import MovedError
from nearfree.sources.cpp.nodes import part
from nearfree.sources.cpp.source import function_name, parse, walk


class Edit(NamedTuple):
    """A replacement: bytes `start` up to `end` of a text, and the new text."""

    start: int
    end: int
    text: str


def edited(content: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits applied; of two nested edits the outer one applies.

    A replacement keeps the line breaks of the replaced bytes, so all other text keeps its line.
    """
    raw, position, parts = content.encode(), 0, []
    for edit in sorted(edits, key=lambda edit: (edit.start, -edit.end)):
        if edit.start < position:
            continue
        lines = b"\n" * raw[edit.start : edit.end].count(b"\n")
        parts += [raw[position : edit.start], edit.text.encode(), lines]
        position = edit.end
    return b"".join([*parts, raw[position:]]).decode()


def only_function(files: Mapping[str, str], name: str) -> tuple[str, Node]:
    """Return the only definition of a function under any preprocessor condition, and its file.

    Raises
    ------
    SourceError
        The function is defined nowhere, or several times.
    """
    definitions = [
        (path, node)
        for path, text in files.items()
        if f" {name}(" in text
        for node in walk(parse(text))
        if node.type == "function_definition" and function_name(node) == name
    ]
    if len(definitions) != 1:
        raise MovedError(f"{name} is defined {len(definitions)} times")
    return definitions[0]


def reduced_to(text: str, function: Node, statements: Sequence[Node], answer: str) -> str:
    """Return a file reduced to one function without parameters that runs some statements.

    Parameters
    ----------
    statements
        The statements to keep, in order, each on its own lines.
    answer
        The expression that the function then returns.
    """
    body_start = part(function, "body").start_byte
    gaps = [(body_start + 1, statements[0].start_byte)]
    gaps += [
        (statement.end_byte, following.start_byte) for statement, following in pairwise(statements)
    ]
    edits = [
        Edit(0, body_start, f"void {function_name(function)}() "),
        *(Edit(start, end, "") for start, end in gaps),
        Edit(statements[-1].end_byte, len(text.encode()), f" return {answer}; }}"),
    ]
    return edited(text, edits)
