"""FlashAttention's mechanism lines: the grid is a ceiling division of the queries by a tile."""

from collections.abc import Iterator

from tree_sitter import Node

from nearfree.log.events import Quote
from nearfree.sources.cpp.source import CppFiles, Found, children, walk, words
from nearfree.sources.language.reading import Mechanism


def ceiling_grid(files: CppFiles, function: str, name: str) -> Mechanism:
    """Return the evidence that a grid's first dimension counts tiles of queries."""
    says = "blocks = ceil(seqlen_q / kBlockM), the first dimension of the grid"
    if not files.defines(function):
        return Mechanism(name, says)
    found = files.locate(function)
    for each in _initialised(found.node):
        variable = words(each.child_by_field_name("declarator"))
        value = each.child_by_field_name("value")
        rows, tile = _ceiling(value) if value is not None else ("", "")
        over = rows.endswith("seqlen_q") and tile.endswith("kBlockM")
        grid = next((g for g in _declared(found.node, "dim3") if _first(g) == variable), None)
        if over and grid is not None and _launched(found.node, grid):
            return Mechanism(name, says, (_quote(found, each), _quote(found, grid)))
    return Mechanism(name, says)


def packed_grid(files: CppFiles, function: str, name: str) -> Mechanism:
    """Return the evidence that blocks count rows of packed heads, where heads are packed."""
    says = "blocks = ceil(seqlen_q * heads packed together / rows of a tile)"
    if not files.defines(function):
        return Mechanism(name, says)
    found = files.locate(function)
    declared = {words(e.child_by_field_name("declarator")): e for e in _initialised(found.node)}
    for each in declared.values():
        value = each.child_by_field_name("value")
        above, _ = _ceiling(value) if value is not None else ("", "")
        rows, _, factor = above.partition(" * ")
        packed = declared.get(factor)
        if rows.endswith("seqlen_q") and packed is not None and "PackGQA" in words(packed):
            return Mechanism(name, says, (_quote(found, packed), _quote(found, each)))
    return Mechanism(name, says)


def fixed_rows(files: CppFiles, function: str, launch: str, name: str) -> Mechanism:
    """Return the evidence that a kernel's tile is a plain number, whatever the head dimension."""
    says = "kBlockM of the split kernel is one number for all head dimensions"
    if not files.defines(function):
        return Mechanism(name, says)
    found = files.locate(function)
    for each in _initialised(found.node):
        value, variable = each.child_by_field_name("value"), each.child_by_field_name("declarator")
        plain = value is not None and value.type == "number_literal"
        if plain and _second_trait(found.node, launch) == {words(variable)}:
            return Mechanism(name, says, (_quote(found, each),))
    return Mechanism(name, says)


def _initialised(function: Node) -> Iterator[Node]:
    return (each for each in walk(function) if each.type == "init_declarator")


def _declared(function: Node, kind: str) -> Iterator[Node]:
    for each in walk(function):
        if each.type == "declaration" and words(each.child_by_field_name("type")) == kind:
            yield from (part for part in children(each) if part.type == "init_declarator")


def _first(grid: Node) -> str:
    value = grid.child_by_field_name("value")
    return words(next(children(value), None)) if value is not None else ""


def _ceiling(value: Node) -> tuple[str, str]:
    """Return `a` and `b` of `(a + b - 1) / b` or `ceil_div(a, b)`; empty texts of all else."""
    if value.type == "call_expression":
        name = words(value.child_by_field_name("function")).rsplit("::", 1)[-1]
        given = value.child_by_field_name("arguments")
        parts = [words(each) for each in children(given)] if given is not None else []
        return (parts[0], parts[1]) if name == "ceil_div" and len(parts) == 2 else ("", "")
    top = _sides(value, "/")
    if top is None:
        return "", ""
    above, below = top
    less = _sides(next(children(above)), "-") if above.type == "parenthesized_expression" else None
    plus = _sides(less[0], "+") if less is not None and words(less[1]) == "1" else None
    if plus is None or words(plus[1]) != words(below):
        return "", ""
    return words(plus[0]), words(below)


def _sides(node: Node, sign: str) -> tuple[Node, Node] | None:
    left, right = (node.child_by_field_name(name) for name in ("left", "right"))
    if node.type != "binary_expression" or left is None or right is None:
        return None
    return (left, right) if words(node.child_by_field_name("operator")) == sign else None


def _launched(function: Node, grid: Node) -> bool:
    """Return whether a kernel is launched over that grid."""
    name = words(grid.child_by_field_name("declarator"))
    launches = (each for each in walk(function) if each.type == "kernel_call_syntax")
    return any(words(next(children(each), None)) == name for each in launches)


def _second_trait(function: Node, launch: str) -> set[str]:
    """Return the second template arguments of the traits that launches are given."""
    found = set()
    for each in walk(function):
        name = each.child_by_field_name("name")
        if each.type == "template_function" and words(name) == launch:
            traits = next((t for t in walk(each) if t.type == "template_type"), None)
            given = traits.child_by_field_name("arguments") if traits is not None else None
            parts = list(children(given)) if given is not None else []
            found.add(words(parts[1]) if len(parts) > 1 else "")
    return found


def _quote(found: Found, node: Node) -> Quote:
    return found.text.quote(node.start_point[0] + 1, node.end_point[0] + 1)
