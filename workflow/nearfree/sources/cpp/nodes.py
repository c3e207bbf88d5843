"""Parts of C++ syntax trees: arguments, names, and what a piece of code changes or leaves."""

from collections.abc import Iterator

from tree_sitter import Node

from nearfree.errors import SourceError
from nearfree.sources.cpp.source import children, parameter_nodes, walk, words

_LEAVES = {"return_statement", "goto_statement", "co_return_statement"}
_TURNS = {"switch_statement": {"continue_statement"}}


def part(node: Node, name: str) -> Node:
    """Return a part of a node that C++ demands.

    Raises
    ------
    SourceError
        It is not there: the source does not parse.
    """
    found = node.child_by_field_name(name)
    if found is None:
        raise SourceError(
            f"line {node.start_point[0] + 1}: {node.type} without {name}",
            remedy="This rule needs a reader of its own: report it",
        )
    return found


def arguments(call: Node) -> list[Node]:
    """Return what a call is given."""
    given = call.child_by_field_name("arguments")
    return [] if given is None else list(children(given))


def template_arguments(function: Node) -> list[Node]:
    """Return the template arguments that a call spells out."""
    while function.type == "qualified_identifier":
        function = part(function, "name")
    given = function.child_by_field_name("arguments")
    if function.type != "template_function" or given is None:
        return []
    return list(children(given))


def last_name(function: Node) -> str:
    """Return the name of what is called, without namespaces, object and template arguments."""
    if function.type == "field_expression":
        return words(function.child_by_field_name("field"))
    while function.type == "qualified_identifier":
        function = part(function, "name")
    if function.type == "template_function":
        function = part(function, "name")
    return words(function).split("<")[0].rsplit("::", 1)[-1]


def called_name(node: Node) -> str:
    """Return the name of what a node calls; that of the node itself if it calls nothing."""
    return last_name(node.child_by_field_name("function") or node)


def plain(node: Node) -> Node:
    """Return a template argument or type without what only wraps it."""
    while node.type in {"type_descriptor", "template_argument"} and node.named_children:
        node = next(children(node))
    return node


def inside(node: Node) -> list[Node]:
    """Return a node's parts, nearest first."""
    found, level = [], [node]
    while level:
        level = [child for each in level for child in children(each)]
        found += level
    return found


def outside_lambdas(node: Node) -> Iterator[Node]:
    """Yield a node and its parts, but no bodies of lambdas: they run when they are called."""
    yield from walk(node, lambda e: () if e.type == "lambda_expression" else children(e))


def identifiers(node: Node) -> list[Node]:
    """Return the plain names in a node."""
    return [part for part in walk(node) if part.type == "identifier"]


def name_set(*nodes: Node) -> set[str]:
    """Return the plain names in nodes, fields of structures included, as one name each."""
    found = {words(part) for node in nodes for part in identifiers(node)}
    for node in nodes:
        for each in walk(node):
            group = each.child_by_field_name("argument")
            if each.type == "field_expression" and group is not None:
                found.add(f"{words(group)}_{words(each.child_by_field_name('field'))}")
    return {each for each in found if each.isidentifier()}


def stream(node: Node) -> Node:
    """Return what a statement `stream << a << b` changes: the stream; else the node itself."""
    while node.type == "binary_expression" and words(node.child_by_field_name("operator")) == "<<":
        node = part(node, "left")
    return node


def changed_by(left: Node) -> set[str]:
    """Return the names that an assignment to some place changes: `a` of `a[i]` or `(a)`.

    Of `p.x` it is the field, `p_x`; of `tie(a, b)` all that it is given.
    """
    if left.type == "call_expression":
        return name_set(*arguments(left))
    while left.type not in {"identifier", "field_expression"}:
        inner = left.child_by_field_name("argument") or next(children(left), None)
        if inner is None:
            return set()
        left = inner
    return (
        name_set(left)
        if left.type == "identifier"
        else name_set(left) | name_set(part(left, "argument"))
    )


def leaves(node: Node) -> bool:
    """Return whether code that is not understood may leave the function, or the loop around it."""
    kinds = _LEAVES | _TURNS.get(node.type, set())
    return any(part.type in kinds for part in outside_lambdas(node))


def assigned(node: Node) -> set[str]:
    """Return the names that code sets after their declaration: `x = 1`, `x++`, `swap(x, y)`.

    Whatever is given the address of a name may set it too.
    """
    found: set[str] = set()
    for each in walk(node):
        match each.type:
            case "assignment_expression":
                found |= changed_by(part(each, "left"))
            case "update_expression":
                found |= changed_by(part(each, "argument"))
            case "pointer_expression" if words(each.child_by_field_name("operator")) == "&":
                found |= changed_by(part(each, "argument"))
            case "call_expression" if called_name(each) == "swap":
                found |= name_set(*arguments(each))
    return found


def declared(node: Node) -> set[str]:
    """Return the names that code declares."""
    found: set[str] = set()
    for part in walk(node):
        if part.type in {"declaration", "for_range_loop"}:
            for inner in part.children_by_field_name("declarator"):
                found |= set(declared_names(inner))
    return found


def declared_names(node: Node) -> list[str]:
    """Return the names of a declarator: one, or several of `auto [a, b]`."""
    if node.type == "structured_binding_declarator":
        return [words(child) for child in node.named_children]
    while node.type != "identifier":
        inner = node.child_by_field_name("declarator") or next(iter(node.named_children), None)
        if inner is None:
            return []
        if inner.type == "structured_binding_declarator":
            return declared_names(inner)
        node = inner
    return [words(node)]


def is_constant(node: Node) -> bool:
    """Return whether a declaration or parameter says `const` or `constexpr`."""
    return any(
        child.type == "type_qualifier" and words(child) in {"const", "constexpr"}
        for child in node.children
    )


def changed_parameters(function: Node) -> list[bool]:
    """Return of each parameter whether the function may change what a caller handed to it."""
    body = function.child_by_field_name("body")
    changed = assigned(body) if body is not None else set()
    found = []
    for each in parameter_nodes(function):
        inner = each.child_by_field_name("declarator")
        refers = inner is not None and inner.type in {"reference_declarator", "pointer_declarator"}
        names = set(declared_names(inner)) if inner is not None else set()
        found.append(refers and not is_constant(each) and bool(names & changed))
    return found
