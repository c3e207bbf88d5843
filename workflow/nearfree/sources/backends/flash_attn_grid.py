"""FlashAttention's mechanism lines: the grid is a ceiling division of the queries by a tile.

Patterns match the declared variables of a function's syntax tree, so a comment never counts.
"""

import re
from collections.abc import Callable

from tree_sitter import Node

from nearfree.sources.cpp.source import CppFiles, children, text_of, walk
from nearfree.sources.language.reading import Mechanism

_CEILING = re.compile(
    r"(?P<name>\w+) = (?:\((?P<rows>.+) \+ (?P<tile>.+) - 1\) / (?P=tile)"
    r"|(?:\w+::)*ceil_div\((?P<dividend>[^,]+), (?P<divisor>[^,]+)\))"
)
"""A variable that is `(rows + tile - 1) / tile` or `ceil_div(rows, tile)`."""
Find = Callable[[Node, list[Node]], list[Node]]
"""Returns the lines that show a mechanism, of a function's variables with their initial values."""


def ceiling_grid(files: CppFiles, function: str, name: str) -> Mechanism:
    """Return the evidence that a grid's first dimension counts tiles of queries."""

    def find(node: Node, variables: list[Node]) -> list[Node]:
        launches = (launch for launch in walk(node) if launch.type == "kernel_call_syntax")
        launched = {text_of(next(children(launch), None)) for launch in launches}
        for variable in variables:
            blocks, rows, tile = _ceiling(variable)
            for grid in variables:
                sizes = re.match(r"(\w+)\((\w+)[,)]", text_of(grid))
                is_grid = _type(grid) == "dim3" and sizes is not None and sizes[1] in launched
                is_ceiling = rows.endswith("seqlen_q") and tile.endswith("kBlockM")
                if is_ceiling and is_grid and sizes is not None and sizes[2] == blocks:
                    return [variable, grid]
        return []

    statement = "blocks = ceil(seqlen_q / kBlockM), the first dimension of the grid"
    return _mechanism(files, function, name, statement, find)


def packed_grid(files: CppFiles) -> Mechanism:
    """Return the evidence that blocks count rows of packed heads, if heads are packed."""

    def find(_node: Node, variables: list[Node]) -> list[Node]:
        by_name = {text_of(node.child_by_field_name("declarator")): node for node in variables}
        for variable in by_name.values():
            rows, _, factor = _ceiling(variable)[1].partition(" * ")
            packed = by_name.get(factor)
            if rows.endswith("seqlen_q") and packed is not None and "PackGQA" in text_of(packed):
                return [packed, variable]
        return []

    statement = "blocks = ceil(seqlen_q * heads packed together / rows of a tile)"
    return _mechanism(files, "run_flash_fwd", "grid", statement, find)


def fixed_rows(files: CppFiles, function: str, launch: str, name: str) -> Mechanism:
    """Return the evidence that a kernel's tile is a constant, whatever the head dimension."""

    def find(node: Node, variables: list[Node]) -> list[Node]:
        calls = (text_of(call) for call in walk(node) if call.type == "template_function")
        traits = [
            re.match(rf"{launch}<[\w:]+<[^,<>]+, ([^,<>]+),", call)
            for call in calls
            if call.startswith(f"{launch}<")
        ]
        row_names = {trait[1] if trait else "" for trait in traits}
        constants = ((variable, text_of(variable).split(" = ")) for variable in variables)
        return [
            variable
            for variable, (constant, *value) in constants
            if value and value[0].isdecimal() and row_names == {constant}
        ][:1]

    statement = "kBlockM of the split kernel is one number for all head dimensions"
    return _mechanism(files, function, name, statement, find)


def _mechanism(files: CppFiles, function: str, name: str, statement: str, find: Find) -> Mechanism:
    """Return a mechanism with the lines of one function that show it; without any, it is absent."""
    if not files.defines(function):
        return Mechanism(name, statement)
    definition = files.locate(function)
    variables = [node for node in walk(definition.node) if node.type == "init_declarator"]
    quotes = tuple(map(definition.quote, find(definition.node, variables)))
    return Mechanism(name, statement, quotes)


def _ceiling(variable: Node) -> tuple[str, str, str]:
    """Return name, dividend and divisor of a ceiling division; empty texts for other variables."""
    match = _CEILING.fullmatch(text_of(variable))
    if match is None:
        return "", "", ""
    return match["name"], match["rows"] or match["dividend"], match["tile"] or match["divisor"]


def _type(variable: Node) -> str:
    declaration = variable.parent
    return "" if declaration is None else text_of(declaration.child_by_field_name("type"))
