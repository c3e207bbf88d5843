"""Leave out what a call with a function's own defaults never runs.

A long function of many options is mostly about options that a rule's call does not use.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from nearfree.sources.language.expressions import UnknownConstructError, evaluate, variables
from nearfree.sources.language.program import Function, at, defaults


def without_options(function: Function, inputs: frozenset[str]) -> Function:
    """Return a function without ways that defaults close; it is changed in place.

    Parameters
    ----------
    function
        The function.
    inputs
        The parameters that a call gives; all others keep their defaults.
    """
    own = defaults(function)
    known: dict[str, object] = {}
    while True:
        stored = _stores(function)
        given = ((name, value) for name, value in own.items() if name not in inputs)
        more: dict[str, object] = {
            name: value.value
            for name, value in given
            if isinstance(value, ast.Constant) and not stored[name]
        }
        more |= {
            name: value
            for name, value in _constants(function)
            if stored[name] == 1 and name not in own
        }
        if more.keys() <= known.keys():
            return function
        known |= more
        function.body = _known(function.body, known)


def _stores(function: Function) -> Counter[str]:
    names = (each for each in ast.walk(function) if isinstance(each, ast.Name))
    return Counter(each.id for each in names if isinstance(each.ctx, ast.Store))


def _constants(function: Function) -> Iterator[tuple[str, object]]:
    for each in function.body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield name, value


def _known(body: list[ast.stmt], known: Mapping[str, object]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for each in body:
        new = _Known(known).visit(each)
        found += new if isinstance(new, list) else [new]
    return found


class _Known(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, object]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.known or not isinstance(node.ctx, ast.Load):
            return node
        return at(ast.Constant(self.known[node.id]), node)  # type: ignore[arg-type]

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        test = self.visit(node.test)
        truth = _truth(test)
        if truth is not None:
            return _known(node.body if truth else node.orelse, self.known)
        node.test = test
        node.body, node.orelse = _known(node.body, self.known), _known(node.orelse, self.known)
        node.body = node.body or [ast.copy_location(ast.Pass(), node)]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Drop leading operands that leave the rest open; keep one that closes it."""
        self.generic_visit(node)
        stop = isinstance(node.op, ast.Or)
        while len(node.values) > 1 and isinstance(node.values[0], ast.Constant):
            if bool(node.values[0].value) is stop:
                return node.values[0]
            node.values.pop(0)
        return node.values[0] if len(node.values) == 1 else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        truth = _truth(node)
        return node if truth is None else at(ast.Constant(truth), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.visit(node.test)
        truth = _truth(node.test)
        if truth is None:
            return self.generic_visit(node)
        return self.visit(node.body if truth else node.orelse)  # type: ignore[no-any-return]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node


def _truth(test: ast.expr) -> bool | None:
    """Return whether a condition holds whatever the inputs, None where it depends on them."""
    if isinstance(test, ast.BoolOp):
        stop = isinstance(test.op, ast.Or)
        parts = [_truth(each) for each in test.values]
        if stop in parts:
            return stop
        return None if None in parts else not stop
    if variables(test):
        return None
    try:
        return bool(evaluate(test, {}))
    except UnknownConstructError:
        return None
