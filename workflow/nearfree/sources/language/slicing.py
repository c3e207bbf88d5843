"""Cut a function down to the statements that its answer depends on.

The answer is the function's result or, where the result is a dictionary, one of its entries. A
statement is dropped only if it can neither set nor change a name that the answer needs. An alias of
such a name counts as the name. So does a parameter, since the caller may see its changes.
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
"""Callables without effect on the answer: calls of them are dropped."""


def slice_to(
    function: Function, key: str | None = None, *, absent: bool = False, checks: bool = True
) -> Function:
    """Return a copy of a function with only the statements that its answer depends on.

    Parameters
    ----------
    function
        The function, which is not changed.
    key
        The entry to keep of the dictionaries that it builds; None if it returns plain values.
    absent
        Whether a dictionary may lack that entry, whose value is then None.
    checks
        Whether assertions belong to the answer: they decide whether a call is accepted.
    """
    sliced = copied(function)
    if not checks:
        sliced = _AssertionRemover().visit(sliced)
    if key is not None:
        sliced = _EntryFilter(key, absent=absent).visit(sliced)
    dependencies = _Dependencies(sliced)
    sliced.body = dependencies.keep(sliced.body) or [ast.copy_location(ast.Pass(), function)]
    return sliced


class _AssertionRemover(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node if bound_by(node) else ast.copy_location(ast.Pass(), node)


class _EntryFilter(ast.NodeTransformer):
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
            # The missing entry has no source line of its own: it quotes the dictionary.
            pairs = [(at(ast.Constant(self.key), node), at(ast.Constant(None), node))]
        node.keys = [name for name, _ in pairs]
        node.values = [value for _, value in pairs]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        target = node.targets[0]
        if (
            len(node.targets) == 1
            and not _mutated_receivers(node.value)
            and isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and isinstance(target.slice.value, str)
            and target.slice.value != self.key
        ):
            return None
        return self.generic_visit(node)


def _mutated_receivers(node: ast.AST) -> set[str]:
    """Return the names whose objects method calls may change; those of strings change nothing."""
    receivers: set[str] = set()
    for part in nodes_of(node):
        match part:
            case ast.Call(func=ast.Attribute() as func) if func.attr not in STRING_METHODS:
                receivers |= _root_names(func.value) - {*HARMLESS}
    return receivers


def _root_names(node: ast.expr) -> set[str]:
    """Return the names of the objects that an attribute, item or method's result may belong to."""
    match node:
        case ast.Attribute() | ast.Subscript():
            return _root_names(node.value)
        case ast.Call(func=ast.Attribute() as func):
            return _root_names(func.value)
        case ast.Call():
            return set().union(*map(_direct_names, node.args))
    return _direct_names(node)


def _passed_names(node: ast.AST) -> set[str]:
    """Return the names that calls receive as arguments, calls of builtins excepted."""
    passed: set[str] = set()
    for part in nodes_of(node):
        if isinstance(part, ast.Call):
            callee = ast.unparse(part.func).split(".")[0]
            if callee not in HARMLESS and not (
                isinstance(part.func, ast.Name) and callee in BUILTINS and callee != "opaque"
            ):
                arguments = (*part.args, *(keyword.value for keyword in part.keywords))
                passed |= set().union(*map(names_in, arguments))
    return passed


def changed_in_place(body: list[ast.stmt]) -> set[str]:
    """Return the names whose objects some statements change in place."""
    changed: set[str] = set()
    for statement in body:  # nested statements included
        for node in nodes_of(statement):
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                changed |= _root_names(node.value)
        changed |= _mutated_receivers(statement)
    return changed


def _aliases(body: list[ast.stmt], names: set[str], changed: set[str]) -> set[str]:
    """Return other names of objects that `names` stand for and that are changed in place."""
    aliases: set[str] = set()
    for statement in walk_statements(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            value = statement.value
            sources = _direct_names(value) & (names | changed)
            targets = bound_by(statement)
            if sources & names and targets & changed:
                aliases |= targets & changed
            if targets & names:
                aliases |= sources & changed
    return aliases


def _direct_names(node: ast.expr) -> set[str]:
    """Return the names whose objects may themselves be an expression's value."""
    match node:
        case ast.Name():
            return {node.id}
        case ast.IfExp():
            return _direct_names(node.body) | _direct_names(node.orelse)
        case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            return set().union(*map(_direct_names, parts))
        case ast.NamedExpr():
            return _direct_names(node.value)
    return set()


def _own_groups(body: list[ast.stmt]) -> set[str]:
    """Return the names that stand for lists or dictionaries that the function makes itself."""
    group_nodes = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    return {
        name
        for statement in walk_statements(body)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        and statement.value is not None
        if any(isinstance(part, group_nodes) for part in nodes_of(statement.value))
        for name in bound_by(statement)
    }


def _heads(statement: ast.stmt) -> list[ast.expr]:
    """Return the condition, or the target and the group, of a branch or a loop."""
    return [part for part in ast.iter_child_nodes(statement) if isinstance(part, ast.expr)]


class _Dependencies:
    """The names that a function's answer needs, and the statements that set or change them."""

    def __init__(self, function: Function) -> None:
        self.own_groups = _own_groups(function.body)
        changed = changed_in_place(function.body)
        self.needed = changed & set(parameters(function))
        self._touched_names: dict[ast.AST, set[str]] = {}
        while True:
            needed = self._reads(function.body) | _aliases(function.body, self.needed, changed)
            if needed <= self.needed:
                break
            self.needed |= needed

    def touches(self, node: ast.AST) -> bool:
        """Return whether code may set or change a needed name."""
        if node not in self._touched_names:
            passed_groups = _passed_names(node) & self.own_groups
            self._touched_names[node] = bound_by(node) | _mutated_receivers(node) | passed_groups
        return not self._touched_names[node].isdisjoint(self.needed)

    def matters(self, statement: ast.stmt) -> bool:
        """Return whether the answer may depend on a statement."""
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
                return False
            case ast.If() | ast.For() | ast.While():
                nested = (*statement.body, *statement.orelse)
                return any(map(self.matters, nested)) or any(map(self.touches, _heads(statement)))
            case ast.FunctionDef():
                return statement.name in self.needed
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = [
                    part for part in ast.iter_child_nodes(statement) if part is not statement.value
                ]
                target_names = set().union(*map(names_in, targets))
                return bool(target_names & self.needed) or self.touches(statement)
            case ast.Expr():
                return bool(_passed_names(statement) & self.needed) or self.touches(statement)
        return True

    def _reads(self, body: list[ast.stmt]) -> set[str]:
        """Return the names that the statements that matter read or set."""
        names: set[str] = set()
        for statement in filter(self.matters, body):
            if isinstance(statement, ast.If | ast.For):
                names = names.union(*map(names_in, _heads(statement)))
                names |= self._reads([*statement.body, *statement.orelse])
            else:
                names |= names_in(statement)
        return names

    def keep(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that matter, cut down in turn."""
        kept = [statement for statement in body if self.matters(statement)]
        for statement in kept:
            if isinstance(statement, ast.If | ast.For):
                statement.body = self.keep(statement.body) or [
                    ast.copy_location(ast.Pass(), statement)
                ]
                statement.orelse = self.keep(statement.orelse)
        return kept
