"""Cut a function down to the statements that its answer depends on.

The answer is what the function returns or, where it returns a dictionary, one entry of it. A
statement is dropped only where nothing in it can set or change a name that the answer needs: an
alias of such a name counts as the name, and so does a parameter, which is the caller's to see.
"""

import ast

from nearfree.sources.language.expressions import STRING_METHODS
from nearfree.sources.language.functions import BUILTINS, nodes_of
from nearfree.sources.language.program import (
    Function,
    at,
    bound_by,
    copied,
    names_in,
    parameters,
    walk_statements,
)

HARMLESS = ("logger", "warnings", "print", "logging")
"""What is told to these changes nothing."""


def slice_to(
    function: Function, key: str | None = None, *, absent: bool = False, checks: bool = True
) -> Function:
    """Return a copy of a function with only what its answer depends on.

    Parameters
    ----------
    function
        The function; it stays as it is.
    key
        The entry of interest of the dictionaries that it builds; None if it returns plain values.
    absent
        Whether a dictionary may be built without that entry, which is then None.
    checks
        Whether assertions belong to the answer. They decide whether a call is accepted.
    """
    sliced = copied(function)
    if not checks:
        sliced = _NoChecks().visit(sliced)
    if key is not None:
        sliced = _OneEntry(key, absent=absent).visit(sliced)
    needed = _Needed(sliced)
    sliced.body = needed.keep(sliced.body) or [ast.copy_location(ast.Pass(), function)]
    return sliced


class _NoChecks(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node if bound_by(node) else ast.copy_location(ast.Pass(), node)


class _OneEntry(ast.NodeTransformer):
    """Drops the other entries of dictionaries, and assignments to them."""

    def __init__(self, key: str, *, absent: bool) -> None:
        self.key = key
        self.absent = absent

    def visit_Dict(self, node: ast.Dict) -> ast.Dict:
        pairs: list[tuple[ast.expr | None, ast.expr]] = [
            (name, value)
            for name, value in zip(node.keys, node.values, strict=True)
            if name is None or (isinstance(name, ast.Constant) and name.value == self.key)
        ]
        if self.absent and not pairs:
            # Without a place of its own, the entry is quoted as the dictionary that lacks it.
            pairs = [(at(ast.Constant(self.key), node), at(ast.Constant(None), node))]
        node.keys = [name for name, _ in pairs]
        node.values = [value for _, value in pairs]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        target = node.targets[0]
        if (
            len(node.targets) == 1
            and not _effects(node.value)
            and isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and isinstance(target.slice.value, str)
            and target.slice.value != self.key
        ):
            return None
        return self.generic_visit(node)


def _effects(node: ast.AST) -> set[str]:
    """Return the names whose objects methods may change in some code; those of texts cannot."""
    found: set[str] = set()
    for part in nodes_of(node):
        match part:
            case ast.Call(func=ast.Attribute() as func) if func.attr not in STRING_METHODS:
                found |= _roots(func.value) - {*HARMLESS}
    return found


def _roots(node: ast.expr) -> set[str]:
    """Return the names of what an attribute, item or method's result may be a part of."""
    match node:
        case ast.Attribute() | ast.Subscript():
            return _roots(node.value)
        case ast.Call(func=ast.Attribute() as func):
            return _roots(func.value)
        case ast.Call():
            return set().union(*map(_bare, node.args))
    return _bare(node)


def _given(node: ast.AST) -> set[str]:
    """Return the names that calls are given, other than calls of builtins."""
    found: set[str] = set()
    for part in nodes_of(node):
        if isinstance(part, ast.Call):
            name = ast.unparse(part.func).split(".")[0]
            if name not in HARMLESS and not (
                isinstance(part.func, ast.Name) and name in BUILTINS and name != "opaque"
            ):
                parts = (*part.args, *(keyword.value for keyword in part.keywords))
                found |= set().union(*map(names_in, parts))
    return found


def changed_in_place(body: list[ast.stmt]) -> set[str]:
    """Return the names whose objects statements change in place."""
    found: set[str] = set()
    for statement in body:  # with all that stands inside of it
        for node in nodes_of(statement):
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found |= _roots(node.value)
        found |= _effects(statement)
    return found


def _aliases(body: list[ast.stmt], names: set[str], changed: set[str]) -> set[str]:
    """Return what else may stand for an object that a name stands for, and is changed in place."""
    found: set[str] = set()
    for statement in walk_statements(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            value = statement.value
            sources = _bare(value) & (names | changed)
            targets = bound_by(statement)
            if sources & names and targets & changed:
                found |= targets & changed
            if targets & names:
                found |= sources & changed
    return found


def _bare(node: ast.expr) -> set[str]:
    """Return the names that an expression may hand on as they are."""
    match node:
        case ast.Name():
            return {node.id}
        case ast.IfExp():
            return _bare(node.body) | _bare(node.orelse)
        case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            return set().union(*map(_bare, parts))
        case ast.NamedExpr():
            return _bare(node.value)
    return set()


def _groups(body: list[ast.stmt]) -> set[str]:
    """Return the names that stand for lists or dictionaries that the function makes itself."""
    made = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    return {
        name
        for statement in walk_statements(body)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        and statement.value is not None
        if any(isinstance(part, made) for part in nodes_of(statement.value))
        for name in bound_by(statement)
    }


class _Needed:
    """The names that a function's answer needs, and the statements that set or change them."""

    def __init__(self, function: Function) -> None:
        self.groups = _groups(function.body)
        changed = changed_in_place(function.body)
        self.names = changed & set(parameters(function))
        self._touched: dict[ast.AST, set[str]] = {}
        while True:
            found = self._reads(function.body) | _aliases(function.body, self.names, changed)
            if found <= self.names:
                break
            self.names |= found

    def touches(self, node: ast.AST) -> bool:
        """Return whether code sets or changes a name, as far as that can be seen."""
        if node not in self._touched:
            handed = _given(node) & self.groups
            self._touched[node] = bound_by(node) | _effects(node) | handed
        return not self._touched[node].isdisjoint(self.names)

    def matters(self, statement: ast.stmt) -> bool:
        """Return whether the answer may depend on a statement."""
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
                return False
            case ast.If() | ast.For() | ast.While():
                heads = [e for e in ast.iter_child_nodes(statement) if isinstance(e, ast.expr)]
                inner = (*statement.body, *statement.orelse)
                return any(map(self.matters, inner)) or any(map(self.touches, heads))
            case ast.FunctionDef():
                return statement.name in self.names
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                parts = [e for e in ast.iter_child_nodes(statement) if e is not statement.value]
                set_here = set().union(*map(names_in, parts))
                return bool(set_here & self.names) or self.touches(statement)
            case ast.Expr():
                return bool(_given(statement) & self.names) or self.touches(statement)
        return True

    def _reads(self, body: list[ast.stmt]) -> set[str]:
        found: set[str] = set()
        for statement in filter(self.matters, body):
            if isinstance(statement, ast.If | ast.For):
                heads = [e for e in ast.iter_child_nodes(statement) if isinstance(e, ast.expr)]
                found = found.union(*map(names_in, heads))
                found |= self._reads([*statement.body, *statement.orelse])
            else:
                found |= names_in(statement)
        return found

    def keep(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that matter."""
        kept = [statement for statement in body if self.matters(statement)]
        for each in kept:
            if isinstance(each, ast.If | ast.For):
                each.body = self.keep(each.body) or [ast.copy_location(ast.Pass(), each)]
                each.orelse = self.keep(each.orelse)
        return kept
