"""Constant folding of expressions over inputs, and the limit of their size."""

import ast

from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.expressions import UnknownConstructError, variables
from nearfree.sources.language.functions import BUILTINS, nodes_of
from nearfree.sources.language.program import at

NODES_LIMIT = 5000
"""Limit of an expression's nodes; a hostile source doubles an expression with every line."""


def sized(node: ast.expr, location: ast.AST) -> ast.expr:
    """Return an expression; raise if it is too large."""
    if _size(node) > NODES_LIMIT:
        raise UnknownConstructError("an expression grows too large", location)
    return node


def _size(node: ast.AST) -> int:
    """Return an expression's number of nodes; cached, since larger expressions contain it."""
    size: int | None = getattr(node, "size", None)
    if size is None:
        size = 1 + sum(map(_size, ast.iter_child_nodes(node)))
        node.size = size  # type: ignore[attr-defined]
    return size


def fold(node: ast.expr) -> ast.expr:
    """Return the constant value of an expression without inputs; else the expression."""
    sized(node, node)
    if variables(node):
        return node
    calls = [part for part in nodes_of(node) if isinstance(part, ast.Call)]
    only_builtins = all(
        isinstance(call.func, ast.Attribute)
        or (isinstance(call.func, ast.Name) and call.func.id in BUILTINS)
        for call in calls
    )
    if not only_builtins or any(isinstance(part, ast.List) for part in nodes_of(node)):
        return node
    value = evaluate(node, {})
    if not isinstance(value, int | float | str | None):
        return node
    return at(ast.Constant(value), node)
