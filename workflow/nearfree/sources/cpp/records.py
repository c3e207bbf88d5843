"""Structures that C++ hands on by reference: their fields become names that are passed on.

A field `x` of a structure `params` is the name `params_x`. A function that is given the structure
takes the fields that it reads as parameters, and returns those that it sets as a tuple. Only
fields that the answer depends on are passed, and checks are dropped.
"""

import ast
from collections.abc import Mapping

from nearfree.sources.language.expressions import UnknownConstructError, name_of
from nearfree.sources.language.program import (
    Function,
    at,
    called_in,
    copied,
    names_in,
    parameters,
    walk_statements,
)
from nearfree.sources.language.slicing import slice_to


def thread_records(
    functions: Mapping[str, Function], root: str, record: str
) -> dict[str, Function]:
    """Return functions that pass a structure's fields by name.

    Parameters
    ----------
    functions
        A root and all that it reaches.
    root
        The function that the structure lives in.
    record
        The name of the structure, in every function that it is handed to.
    """
    needed: set[str] = set()
    while True:
        threads = _Threads(functions, record, needed)
        threads.ready(root)
        found = {name for part in threads.done.values() for name in threads.loaded(part)}
        if found <= needed:
            return {**functions, **threads.done}
        needed |= found


class _Threads:
    """One pass over the functions, for the fields that are known to be needed."""

    def __init__(self, functions: Mapping[str, Function], record: str, needed: set[str]) -> None:
        self.functions = functions
        self.record = record
        self.needed = needed
        self.done: dict[str, Function] = {}
        self.sets: dict[str, list[str]] = {}
        names = names_in(*functions.values())
        self.universe = sorted(name for name in names if name.startswith(f"{record}_"))

    def loaded(self, function: Function) -> set[str]:
        """Return the fields that a function reads."""
        return names_in(*function.body, context=ast.Load) & {*self.universe}

    def takes(self, name: str) -> bool:
        """Return whether a function is given the structure."""
        return name in self.functions and self.record in parameters(self.functions[name])

    def ready(self, name: str) -> None:
        """Thread the fields through a function, and first through those that it calls."""
        if name in self.done:
            return
        function = self.functions[name]
        self.done[name] = function
        for called in sorted(called_in(function) & self.functions.keys()):
            self.ready(called)
        threaded = _Rewrite(self).visit(copied(function))
        self.sets[name] = []
        if self.takes(name):
            assigns = (s for s in walk_statements(threaded.body) if isinstance(s, ast.Assign))
            stored = names_in(*(target for each in assigns for target in each.targets))
            self.sets[name] = sorted(stored & self.needed & set(self.universe))
            if self.sets[name]:
                _returning(threaded, self.sets[name])
        self.done[name] = slice_to(threaded, checks=False)
        if self.takes(name):
            self._sign(self.done[name], function)

    def _sign(self, function: Function, old: Function) -> None:
        """Give a function the parameters that its answer depends on, fields included."""
        used = names_in(*function.body)
        spec = function.args
        tail = len(spec.args) - len(spec.defaults)
        kept: list[ast.arg] = []
        values: list[ast.expr] = []
        for number, each in enumerate(spec.args):
            if each.arg == self.record:
                names = [] if _resets(old, self.record) else sorted(self.loaded(function))
                kept += [ast.copy_location(ast.arg(name), each) for name in names]
            elif each.arg in used:
                kept.append(each)
                if number >= tail:
                    values.append(spec.defaults[number - tail])
        function.args = ast.arguments(
            posonlyargs=[], args=kept, kwonlyargs=[], kw_defaults=[], defaults=values
        )


class _Rewrite(ast.NodeTransformer):
    """Rewrites the calls that hand the structure on, and the statements that clear it."""

    def __init__(self, threads: _Threads) -> None:
        self.threads = threads

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return self.generic_visit(node)
        name = call.func.id
        if not self.threads.takes(name):
            return self.generic_visit(node)
        call.args = [self.visit(part) for part in call.args]
        names = self.threads.sets[name]
        if not names:
            return ast.copy_location(ast.Pass(), node)
        target = at(ast.Tuple([_name(n, call, ast.Store()) for n in names], ast.Store()), call)
        return ast.copy_location(ast.Assign([target], self.passed(call, name)), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "opaque" and any(
            isinstance(part, ast.Name) and part.id == self.threads.record for part in node.args
        ):
            node.args += [_name(each, node, ast.Load()) for each in self.threads.universe]
            return node
        if not self.threads.takes(name):
            return node
        if self.threads.sets[name]:
            raise UnknownConstructError(f"{name_of(node)} sets fields inside of an expression")
        return self.passed(node, name)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        if not _clears(node, self.threads.record):
            return self.generic_visit(node)
        cleared: list[ast.stmt] = []
        for name in self.threads.universe:
            zero = at(ast.Constant(0), node.value)
            assign = ast.Assign([_name(name, node.value, ast.Store())], zero)
            cleared.append(ast.copy_location(assign, node))
        return cleared

    def passed(self, call: ast.Call, name: str) -> ast.Call:
        """Return a call with the arguments that the threaded function takes."""
        old = parameters(self.threads.functions[name])
        new = parameters(self.threads.done[name])
        given: list[ast.expr] = []
        for parameter, value in zip(old, call.args, strict=False):
            if parameter == self.threads.record:
                if not isinstance(value, ast.Name) or value.id != parameter:
                    raise UnknownConstructError(f"{name_of(call)} hands on another structure")
                fields = [each for each in new if each in self.threads.universe]
                given += [_name(field, call, ast.Load()) for field in fields]
            elif parameter in new:
                given.append(value)
        call.args = given
        return call


def _name(name: str, old: ast.AST, context: ast.expr_context) -> ast.expr:
    return at(ast.Name(name, context), old)


def _clears(statement: ast.stmt, record: str) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=[])):
            return name == record
    return False


def _resets(function: Function, record: str) -> bool:
    """Return whether a function clears the structure before anything else."""
    return bool(function.body) and _clears(function.body[0], record)


def _returning(function: Function, names: list[str]) -> None:
    """Let a function return some of its names, wherever it ends."""

    def answer(old: ast.AST) -> ast.Return:
        group = at(ast.Tuple([_name(name, old, ast.Load()) for name in names], ast.Load()), old)
        return ast.copy_location(ast.Return(group), old)

    class Ends(ast.NodeTransformer):
        def visit_FunctionDef(self, node: Function) -> Function:
            return node

        def visit_Return(self, node: ast.Return) -> ast.Return:
            return answer(node)

    last = function.body[-1]
    function.body = [Ends().visit(statement) for statement in function.body]
    function.body.append(answer(last))
