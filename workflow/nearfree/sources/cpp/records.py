"""Structures that C++ passes by reference: their fields become names that are passed instead.

A field `x` of a structure `params` becomes the name `params_x`. A function that takes the structure
takes the fields that it reads as parameters, and returns those that it sets as a tuple. Only fields
that the answer depends on are passed, and checks are dropped.
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
        A root function and all functions that it reaches.
    root
        The function that declares the structure.
    record
        The structure's name, in every function that takes it.
    """
    needed: set[str] = set()
    while True:
        pass_ = _ThreadingPass(functions, record, needed)
        pass_.thread(root)
        read_fields = {
            name for function in pass_.threaded.values() for name in pass_.fields_read(function)
        }
        if read_fields <= needed:
            return {**functions, **pass_.threaded}
        needed |= read_fields


class _ThreadingPass:
    """One pass over the functions, for the fields that are known to be needed."""

    def __init__(self, functions: Mapping[str, Function], record: str, needed: set[str]) -> None:
        self.functions = functions
        self.record = record
        self.needed = needed
        self.threaded: dict[str, Function] = {}
        self.set_fields: dict[str, list[str]] = {}
        names = names_in(*functions.values())
        self.fields = sorted(name for name in names if name.startswith(f"{record}_"))

    def fields_read(self, function: Function) -> set[str]:
        """Return the fields that a function reads."""
        return names_in(*function.body, context=ast.Load) & {*self.fields}

    def takes_record(self, name: str) -> bool:
        """Return whether a function takes the structure."""
        return name in self.functions and self.record in parameters(self.functions[name])

    def thread(self, name: str) -> None:
        """Thread the fields through a function, its callees first."""
        if name in self.threaded:
            return
        function = self.functions[name]
        self.threaded[name] = function
        for callee in sorted(called_in(function) & self.functions.keys()):
            self.thread(callee)
        rewritten = _CallRewriter(self).visit(copied(function))
        self.set_fields[name] = []
        if self.takes_record(name):
            assignments = (
                statement
                for statement in walk_statements(rewritten.body)
                if isinstance(statement, ast.Assign)
            )
            stored = names_in(
                *(target for assignment in assignments for target in assignment.targets)
            )
            self.set_fields[name] = sorted(stored & self.needed & set(self.fields))
            if self.set_fields[name]:
                _return_names(rewritten, self.set_fields[name])
        self.threaded[name] = slice_to(rewritten, checks=False)
        if self.takes_record(name):
            self._sign(self.threaded[name], function)

    def _sign(self, function: Function, original: Function) -> None:
        """Give a function the parameters that its answer depends on, fields included."""
        used = names_in(*function.body)
        signature = function.args
        first_default = len(signature.args) - len(signature.defaults)
        parameters_kept: list[ast.arg] = []
        default_values: list[ast.expr] = []
        for index, parameter in enumerate(signature.args):
            if parameter.arg == self.record:
                is_reset = bool(original.body) and _is_reset(original.body[0], self.record)
                names = [] if is_reset else sorted(self.fields_read(function))
                parameters_kept += [ast.copy_location(ast.arg(name), parameter) for name in names]
            elif parameter.arg in used:
                parameters_kept.append(parameter)
                if index >= first_default:
                    default_values.append(signature.defaults[index - first_default])
        signature.args, signature.defaults = parameters_kept, default_values


class _CallRewriter(ast.NodeTransformer):
    """Rewrites calls that pass the structure, and statements that reset it."""

    def __init__(self, threads: _ThreadingPass) -> None:
        self.threading = threads

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return self.generic_visit(node)
        name = call.func.id
        if not self.threading.takes_record(name):
            return self.generic_visit(node)
        call.args = [self.visit(argument) for argument in call.args]
        names = self.threading.set_fields[name]
        if not names:
            return ast.copy_location(ast.Pass(), node)
        target = at(
            ast.Tuple([_name_node(field, call, ast.Store()) for field in names], ast.Store()), call
        )
        return ast.copy_location(ast.Assign([target], self.threaded_call(call, name)), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "opaque" and any(
            isinstance(argument, ast.Name) and argument.id == self.threading.record
            for argument in node.args
        ):
            node.args += [_name_node(field, node, ast.Load()) for field in self.threading.fields]
            return node
        if not self.threading.takes_record(name):
            return node
        if self.threading.set_fields[name]:
            raise UnknownConstructError(f"{name_of(node)} sets fields inside of an expression")
        return self.threaded_call(node, name)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        if not _is_reset(node, self.threading.record):
            return self.generic_visit(node)
        resets: list[ast.stmt] = []
        for name in self.threading.fields:
            zero = at(ast.Constant(0), node.value)
            assign = ast.Assign([_name_node(name, node.value, ast.Store())], zero)
            resets.append(ast.copy_location(assign, node))
        return resets

    def threaded_call(self, call: ast.Call, name: str) -> ast.Call:
        """Return a call with the arguments that the threaded function takes."""
        parameters_before = parameters(self.threading.functions[name])
        parameters_after = parameters(self.threading.threaded[name])
        args: list[ast.expr] = []
        for parameter, value in zip(parameters_before, call.args, strict=False):
            if parameter == self.threading.record:
                if not isinstance(value, ast.Name) or value.id != parameter:
                    raise UnknownConstructError(f"{name_of(call)} passes another structure")
                fields_passed = [
                    field for field in parameters_after if field in self.threading.fields
                ]
                args += [_name_node(field, call, ast.Load()) for field in fields_passed]
            elif parameter in parameters_after:
                args.append(value)
        call.args = args
        return call


def _name_node(name: str, source: ast.AST, context: ast.expr_context) -> ast.expr:
    return at(ast.Name(name, context), source)


def _is_reset(statement: ast.stmt, record: str) -> bool:
    """Return whether a statement resets the structure."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=[])):
            return name == record
    return False


def _return_names(function: Function, names: list[str]) -> None:
    """Make a function return some of its names wherever it ends."""

    def return_at(source: ast.AST) -> ast.Return:
        values = at(
            ast.Tuple([_name_node(name, source, ast.Load()) for name in names], ast.Load()), source
        )
        return ast.copy_location(ast.Return(values), source)

    class ReturnReplacer(ast.NodeTransformer):
        def visit_FunctionDef(self, node: Function) -> Function:
            return node

        def visit_Return(self, node: ast.Return) -> ast.Return:
            return return_at(node)

    last = function.body[-1]
    function.body = [ReturnReplacer().visit(statement) for statement in function.body]
    function.body.append(return_at(last))
