"""What a rule asks of the world around it, by the name that we give it.

Sources reach the same fact by names that change from release to release; a leaf is recognised by
its text, and replaced by an input. A free name that no leaf covers is an error.
"""

import ast
import copy
import re
from collections.abc import Iterator, Mapping

from nearfree.sources.language.expressions import parse
from nearfree.sources.language.program import Function, at

Leaves = Mapping[str, str]
"""Regular expressions over an expression's text, and the expressions that take its place."""


def replace_leaves(function: Function, leaves: Leaves) -> Function:
    """Return a copy of the function with its leaves replaced."""
    patterns = [(re.compile(pattern), new) for pattern, new in leaves.items()]
    replaced = copy.deepcopy(function)
    for each in replaced.body:
        _Replace(patterns).visit(each)
    return replaced


class _Replace(ast.NodeTransformer):
    def __init__(self, patterns: list[tuple[re.Pattern[str], str]]) -> None:
        self.patterns = patterns

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Attribute | ast.Call | ast.Name | ast.Subscript) and isinstance(
            getattr(node, "ctx", ast.Load()), ast.Load
        ):
            text, inner = ast.unparse(node), list(_inner(node))
            for pattern, new in self.patterns:
                found = pattern.fullmatch(text)
                # What is done with a leaf is no part of it: `f(x)` in `f(x).replace(...)`.
                if found and not any(map(pattern.fullmatch, inner)):
                    return placed(parse(found.expand(new)), node)
        return self.generic_visit(node)


def _inner(node: ast.AST) -> Iterator[str]:
    """Yield the texts of all that an attribute, item or call is taken from, step by step."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            yield ast.unparse(node)


def placed(tree: ast.expr, old: ast.AST) -> ast.expr:
    """Return a new tree whose nodes all stand where an old node stood."""
    for each in ast.walk(tree):
        if isinstance(each, ast.expr):
            for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"):
                if hasattr(each, name):
                    delattr(each, name)
            at(each, old)
    return tree
