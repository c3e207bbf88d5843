"""FlashAttention's mechanism lines: the grid is a ceiling division of the queries by a tile."""

from collections.abc import Iterator

from tree_sitter import Node

from nearfree.log.events import Quote
from nearfree.sources.cpp.source import CppFiles, Definition, children, text_of, walk
from nearfree.sources.language.reading import Mechanism


def ceiling_grid(files: CppFiles, function: str, name: str) -> Mechanism:
    """Return the evidence that a grid's first dimension counts tiles of queries."""
    statement = "blocks = ceil(seqlen_q / kBlockM), the first dimension of the grid"
    if not files.defines(function):
        return Mechanism(name, statement)
    definition = files.locate(function)
    for declaration in _initialised_declarators(definition.node):
        variable = text_of(declaration.child_by_field_name("declarator"))
        value = declaration.child_by_field_name("value")
        rows, tile = _ceiling(value) if value is not None else ("", "")
        is_ceiling = rows.endswith("seqlen_q") and tile.endswith("kBlockM")
        grid = next(
            (
                g
                for g in _declarators_of_type(definition.node, "dim3")
                if _first_dimension(g) == variable
            ),
            None,
        )
        if is_ceiling and grid is not None and _launched(definition.node, grid):
            return Mechanism(
                name, statement, (_quote(definition, declaration), _quote(definition, grid))
            )
    return Mechanism(name, statement)


def packed_grid(files: CppFiles, function: str, name: str) -> Mechanism:
    """Return the evidence that blocks count rows of packed heads, if heads are packed."""
    statement = "blocks = ceil(seqlen_q * heads packed together / rows of a tile)"
    if not files.defines(function):
        return Mechanism(name, statement)
    definition = files.locate(function)
    declarations = {
        text_of(declaration.child_by_field_name("declarator")): declaration
        for declaration in _initialised_declarators(definition.node)
    }
    for declaration in declarations.values():
        value = declaration.child_by_field_name("value")
        dividend, _ = _ceiling(value) if value is not None else ("", "")
        rows, _, factor = dividend.partition(" * ")
        packed = declarations.get(factor)
        if rows.endswith("seqlen_q") and packed is not None and "PackGQA" in text_of(packed):
            return Mechanism(
                name, statement, (_quote(definition, packed), _quote(definition, declaration))
            )
    return Mechanism(name, statement)


def fixed_rows(files: CppFiles, function: str, launch: str, name: str) -> Mechanism:
    """Return the evidence that a kernel's tile is a constant, whatever the head dimension."""
    statement = "kBlockM of the split kernel is one number for all head dimensions"
    if not files.defines(function):
        return Mechanism(name, statement)
    definition = files.locate(function)
    for declaration in _initialised_declarators(definition.node):
        value, variable = (
            declaration.child_by_field_name("value"),
            declaration.child_by_field_name("declarator"),
        )
        is_number = value is not None and value.type == "number_literal"
        if is_number and _second_trait(definition.node, launch) == {text_of(variable)}:
            return Mechanism(name, statement, (_quote(definition, declaration),))
    return Mechanism(name, statement)


def _initialised_declarators(function: Node) -> Iterator[Node]:
    return (node for node in walk(function) if node.type == "init_declarator")


def _declarators_of_type(function: Node, type_name: str) -> Iterator[Node]:
    for declaration in walk(function):
        if (
            declaration.type == "declaration"
            and text_of(declaration.child_by_field_name("type")) == type_name
        ):
            yield from (
                declarator
                for declarator in children(declaration)
                if declarator.type == "init_declarator"
            )


def _first_dimension(grid: Node) -> str:
    value = grid.child_by_field_name("value")
    return text_of(next(children(value), None)) if value is not None else ""


def _ceiling(value: Node) -> tuple[str, str]:
    """Return `a` and `b` of `(a + b - 1) / b` or `ceil_div(a, b)`; empty strings otherwise."""
    if value.type == "call_expression":
        name = text_of(value.child_by_field_name("function")).rsplit("::", 1)[-1]
        arguments = value.child_by_field_name("arguments")
        texts = (
            [text_of(argument) for argument in children(arguments)] if arguments is not None else []
        )
        return (texts[0], texts[1]) if name == "ceil_div" and len(texts) == 2 else ("", "")
    quotient = _operands(value, "/")
    if quotient is None:
        return "", ""
    dividend, divisor = quotient
    difference = (
        _operands(next(children(dividend)), "-")
        if dividend.type == "parenthesized_expression"
        else None
    )
    total = (
        _operands(difference[0], "+")
        if difference is not None and text_of(difference[1]) == "1"
        else None
    )
    if total is None or text_of(total[1]) != text_of(divisor):
        return "", ""
    return text_of(total[0]), text_of(divisor)


def _operands(node: Node, operator: str) -> tuple[Node, Node] | None:
    left, right = (node.child_by_field_name(name) for name in ("left", "right"))
    if node.type != "binary_expression" or left is None or right is None:
        return None
    return (left, right) if text_of(node.child_by_field_name("operator")) == operator else None


def _launched(function: Node, grid: Node) -> bool:
    """Return whether a kernel is launched over a grid."""
    name = text_of(grid.child_by_field_name("declarator"))
    launches = (launch for launch in walk(function) if launch.type == "kernel_call_syntax")
    return any(text_of(next(children(launch), None)) == name for launch in launches)


def _second_trait(function: Node, launch: str) -> set[str]:
    """Return the second template arguments of the kernel traits that launches use."""
    arguments = set()
    for template in walk(function):
        name = template.child_by_field_name("name")
        if template.type == "template_function" and text_of(name) == launch:
            traits = next((t for t in walk(template) if t.type == "template_type"), None)
            trait_arguments = (
                traits.child_by_field_name("arguments") if traits is not None else None
            )
            nodes = list(children(trait_arguments)) if trait_arguments is not None else []
            arguments.add(text_of(nodes[1]) if len(nodes) > 1 else "")
    return arguments


def _quote(definition: Definition, node: Node) -> Quote:
    return definition.text.quote(node.start_point[0] + 1, node.end_point[0] + 1)
