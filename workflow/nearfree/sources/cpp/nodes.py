"""Parts of C++ syntax trees: arguments, names, and the effects of code."""

from collections.abc import Iterator

from tree_sitter import Node

from nearfree.errors import SourceError
from nearfree.sources.cpp.source import children, parameter_nodes, text_of, walk

_EXITS = {"return_statement", "goto_statement", "co_return_statement"}
_EXITS_OF_LOOPS = {"switch_statement": {"continue_statement"}}


def part(node: Node, name: str) -> Node:
    """Return the named part of a node; SourceError if it is missing: the source does not parse."""
    child = node.child_by_field_name(name)
    if child is None:
        raise SourceError(
            f"line {node.start_point[0] + 1}: {node.type} without {name}",
            remedy="This rule needs a reader of its own: report it",
        )
    return child


def arguments(call: Node) -> list[Node]:
    """Return the arguments of a call."""
    listed = call.child_by_field_name("arguments")
    return [] if listed is None else list(children(listed))


def template_arguments(function: Node) -> list[Node]:
    """Return the template arguments that a call spells out."""
    while function.type == "qualified_identifier":
        function = part(function, "name")
    listed = function.child_by_field_name("arguments")
    if function.type != "template_function" or listed is None:
        return []
    return list(children(listed))


def last_name(function: Node) -> str:
    """Return a callee's name without namespaces, object and template arguments."""
    if function.type == "field_expression":
        return text_of(function.child_by_field_name("field"))
    while function.type == "qualified_identifier":
        function = part(function, "name")
    if function.type == "template_function":
        function = part(function, "name")
    return text_of(function).split("<")[0].rsplit("::", 1)[-1]


def called_name(node: Node) -> str:
    """Return the name of a call's callee; of another node, its own name."""
    return last_name(node.child_by_field_name("function") or node)


def plain(node: Node) -> Node:
    """Return a template argument or type without the nodes that only wrap it."""
    while node.type in {"type_descriptor", "template_argument"} and node.named_children:
        node = next(children(node))
    return node


def outside_lambdas(node: Node) -> Iterator[Node]:
    """Yield a node and its descendants, except in lambdas, which run only when called."""
    yield from walk(
        node, lambda child: () if child.type == "lambda_expression" else children(child)
    )


def identifiers(node: Node) -> list[Node]:
    """Return the plain names in a node."""
    return [part for part in walk(node) if part.type == "identifier"]


def name_set(*nodes: Node) -> set[str]:
    """Return the plain names in nodes; a field of a structure, `p.x`, is the name `p_x`."""
    names = {text_of(part) for node in nodes for part in identifiers(node)}
    for node in nodes:
        for descendant in walk(node):
            object_ = descendant.child_by_field_name("argument")
            if descendant.type == "field_expression" and object_ is not None:
                names.add(f"{text_of(object_)}_{text_of(descendant.child_by_field_name('field'))}")
    return {name for name in names if name.isidentifier()}


def stream(node: Node) -> Node:
    """Return the stream of a statement `stream << a << b`; of any other node, the node itself."""
    while (
        node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) == "<<"
    ):
        node = part(node, "left")
    return node


def changed_by(left: Node) -> set[str]:
    """Return the names that an assignment to a place changes: `a` of `a[i]` or `(a)`.

    Of `p.x` it is the field, `p_x`; of `tie(a, b)` all arguments.
    """
    if left.type == "call_expression":
        return name_set(*arguments(left))
    while left.type not in {"identifier", "field_expression"}:
        inner = left.child_by_field_name("argument") or next(children(left), None)
        if inner is None:
            return set()
        left = inner
    if left.type == "identifier":
        return name_set(left)
    return name_set(left) | name_set(part(left, "argument"))


def may_leave(node: Node) -> bool:
    """Return whether unknown code may leave the function, or the loop around it."""
    kinds = _EXITS | _EXITS_OF_LOOPS.get(node.type, set())
    return any(part.type in kinds for part in outside_lambdas(node))


def changed_names(node: Node) -> set[str]:
    """Return the names that code changes after their declaration: `x = 1`, `x++`, `swap(x, y)`.

    A name whose address is taken counts as changed.
    """
    names: set[str] = set()
    for descendant in walk(node):
        match descendant.type:
            case "assignment_expression":
                names |= changed_by(part(descendant, "left"))
            case "update_expression":
                names |= changed_by(part(descendant, "argument"))
            case "pointer_expression" if text_of(descendant.child_by_field_name("operator")) == "&":
                names |= changed_by(part(descendant, "argument"))
            case "call_expression" if called_name(descendant) == "swap":
                names |= name_set(*arguments(descendant))
    return names


def declared_names(node: Node) -> set[str]:
    """Return the names that code declares."""
    names: set[str] = set()
    for descendant in walk(node):
        if descendant.type in {"declaration", "for_range_loop"}:
            for declarator in descendant.children_by_field_name("declarator"):
                names |= set(declarator_names(declarator))
    return names


def declarator_names(node: Node) -> list[str]:
    """Return the names of a declarator: one, or the several of `auto [a, b]`."""
    if node.type == "structured_binding_declarator":
        return [text_of(child) for child in node.named_children]
    while node.type != "identifier":
        inner = node.child_by_field_name("declarator") or next(iter(node.named_children), None)
        if inner is None:
            return []
        if inner.type == "structured_binding_declarator":
            return declarator_names(inner)
        node = inner
    return [text_of(node)]


def is_constant(node: Node) -> bool:
    """Return whether a declaration or parameter is `const` or `constexpr`."""
    return any(
        child.type == "type_qualifier" and text_of(child) in {"const", "constexpr"}
        for child in node.children
    )


def changed_parameters(function: Node) -> list[bool]:
    """Return for each parameter whether the function may change the caller's object."""
    body = function.child_by_field_name("body")
    changed = changed_names(body) if body is not None else set()
    flags = []
    for parameter in parameter_nodes(function):
        declarator = parameter.child_by_field_name("declarator")
        if declarator is None:
            flags.append(False)
            continue
        is_reference = declarator.type in {"reference_declarator", "pointer_declarator"}
        names = set(declarator_names(declarator))
        flags.append(is_reference and not is_constant(parameter) and bool(names & changed))
    return flags
