"""Cut a function down to the statements that its answer depends on.

The answer is what the function returns or, where it returns a dictionary, one entry of it. Only
names flow into names here: a rule's functions have no aliases but lists handed to helpers.
"""

import ast
import copy

from nearfree.sources.expressions import LIST_METHODS
from nearfree.sources.program import Function


def slice_to(function: Function, key: str | None = None, *, checks: bool = True) -> Function:
    """Return a copy of a function with only what its answer depends on.

    Parameters
    ----------
    function
        The function; it stays as it is.
    key
        The entry of interest of the dictionaries that it builds; None if it returns plain values.
    checks
        Whether assertions belong to the answer. They decide whether a call is accepted.
    """
    sliced = copy.deepcopy(function)
    if not checks:
        sliced = _NoChecks().visit(sliced)
    if key is not None:
        sliced = _OneEntry(key).visit(sliced)
    names: set[str] = set()
    while True:
        found = names | _reads(sliced.body, names)
        if found == names:
            break
        names = found
    sliced.body = _keep(sliced.body, names) or [ast.copy_location(ast.Pass(), function)]
    return sliced


class _NoChecks(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.AST:  # noqa: N802
        return ast.copy_location(ast.Pass(), node)


class _OneEntry(ast.NodeTransformer):
    """Drops the other entries of dictionaries, and assignments to them."""

    def __init__(self, key: str) -> None:
        self.key = key

    def visit_Dict(self, node: ast.Dict) -> ast.Dict:  # noqa: N802
        pairs = [
            (name, value)
            for name, value in zip(node.keys, node.values, strict=True)
            if name is None or (isinstance(name, ast.Constant) and name.value == self.key)
        ]
        node.keys = [name for name, _ in pairs]
        node.values = [value for _, value in pairs]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:  # noqa: N802
        target = node.targets[0]
        if (
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and isinstance(target.slice.value, str)
            and target.slice.value != self.key
        ):
            return None
        return self.generic_visit(node)


def _names(node: ast.AST | None) -> set[str]:
    if node is None:
        return set()
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _targets(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Assign():
            return set().union(*map(_names, statement.targets))
        case ast.AnnAssign() | ast.AugAssign():
            return _names(statement.target)
        case ast.FunctionDef():
            return {statement.name}
    return set()


def _matters(statement: ast.stmt, names: set[str]) -> bool:
    match statement:
        case ast.Return() | ast.Raise() | ast.Assert() | ast.Break() | ast.Continue():
            return True
        case ast.If() | ast.For() | ast.While():
            return any(_matters(each, names) for each in (*statement.body, *statement.orelse))
        case ast.Expr(value=ast.Call() as call):
            if isinstance(call.func, ast.Attribute):
                return call.func.attr in LIST_METHODS and bool(_names(call.func.value) & names)
            return bool(_names(call) & names)
        case ast.Expr() | ast.Pass() | ast.Import() | ast.ImportFrom():
            return False
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.FunctionDef():
            return bool(_targets(statement) & names)
    return True


def _reads(body: list[ast.stmt], names: set[str]) -> set[str]:
    found: set[str] = set()
    for statement in body:
        if not _matters(statement, names):
            continue
        match statement:
            case ast.If():
                found |= _names(statement.test) | _reads(
                    [*statement.body, *statement.orelse], names
                )
            case ast.For():
                found |= _names(statement.iter) | _names(statement.target)
                found |= _reads([*statement.body, *statement.orelse], names)
            case ast.FunctionDef():
                found |= _names(statement)
            case _:
                found |= _names(statement)
    return found


def _keep(body: list[ast.stmt], names: set[str]) -> list[ast.stmt]:
    kept = []
    for statement in body:
        if not _matters(statement, names):
            continue
        if isinstance(statement, ast.If | ast.For | ast.While):
            inner = _keep(statement.body, names)
            statement.body = inner or [ast.copy_location(ast.Pass(), statement)]
            statement.orelse = _keep(statement.orelse, names)
        kept.append(statement)
    return kept
