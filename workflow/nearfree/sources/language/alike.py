"""Read what a scheduler does for requests that are all alike, and cut it down to what is asked.

A scheduler loops over requests, each with a length of its own. Where all have one length, a loop
is one of its rounds: what it sets for each request is one value, and what it sums up over them is
that value times their number.
"""

import ast
import copy

from nearfree.sources.language.expressions import UnknownConstructError
from nearfree.sources.language.program import Function, at, parameters


def one_request(function: Function, number: str) -> Function:
    """Return a copy of a function whose loops over `number` requests run once.

    Parameters
    ----------
    function
        The function; it stays as it is.
    number
        The name of the number of requests: `for i in range(0, number)` is such a loop.
    """
    alike: Function = _Alike(number).visit(copy.deepcopy(function))
    return alike


def returning(function: Function, *names: str) -> Function:
    """Return a copy of a function that ends with the values of names, once all are settled.

    One name is returned as it is, several as a tuple.
    """
    short = copy.deepcopy(function)
    for name in names:
        if not any(_sets(each, name) for each in short.body) and name not in parameters(function):
            raise UnknownConstructError(f"{function.name} does not set {name}", function)
    places = [n for n, each in enumerate(short.body) if any(_sets(each, name) for name in names)]
    if not places:
        raise UnknownConstructError(f"{function.name} sets none of {', '.join(names)}", function)
    last = short.body[places[-1]]
    values = [at(ast.Name(name, ast.Load()), last) for name in names]
    value = values[0] if len(values) == 1 else at(ast.Tuple(values, ast.Load()), last)
    end = ast.copy_location(ast.Return(value), last)
    end.origin = getattr(last, "origin", None)  # type: ignore[attr-defined]
    short.body = [*short.body[: places[-1] + 1], end]
    return short


def without_rest(function: Function) -> Function:
    """Return a copy of a function without what stands behind its answer, which is never run."""
    short = copy.deepcopy(function)
    for number, each in enumerate(short.body):
        if _ends(each):
            short.body = short.body[: number + 1]
    return short


def _ends(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return all(any(map(_ends, body)) for body in (statement.body, statement.orelse))
    return isinstance(statement, ast.Return | ast.Raise)


def _sets(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
        for each in ast.walk(statement)
    )


class _Alike(ast.NodeTransformer):
    def __init__(self, number: str) -> None:
        self.number = number

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        if not isinstance(node.target, ast.Name) or not self._over_requests(node.iter):
            return self.generic_visit(node)
        inner = _Round(node.target.id, self.number)
        return [inner.visit(each) for each in node.body]

    def _over_requests(self, group: ast.expr) -> bool:
        return ast.unparse(group) == f"range(0, {self.number})"


class _Round(ast.NodeTransformer):
    """One round of a loop: `x[i]` is `x_each`, `s += x` adds it for all of them."""

    def __init__(self, index: str, number: str) -> None:
        self.index = index
        self.number = number

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and ast.unparse(node.slice) == self.index:
            return at(ast.Name(f"{node.value.id}_each", node.ctx), node)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node = self.generic_visit(node)  # type: ignore[assignment]
        added = _added(node)
        if added is not None and isinstance(node.value, ast.BinOp):
            times = at(ast.Name(self.number, ast.Load()), node)
            node.value.right = at(ast.BinOp(times, ast.Mult(), added), node)
        return node


def _added(statement: ast.stmt) -> ast.expr | None:
    """Return what `s = s + x` adds."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.BinOp(left=ast.Name(id=read), op=ast.Add(), right=right),
        ) if name == read:
            return right
    return None
