"""Values of a function's expressions on one path: expressions over inputs instead of numbers."""

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.decisions import Decisions
from nearfree.sources.language.expressions import (
    LIST_METHODS,
    STRING_METHODS,
    UnknownConstructError,
    name_of,
    outside,
)
from nearfree.sources.language.folding import fold, sized
from nearfree.sources.language.functions import BUILTINS, nodes_of
from nearfree.sources.language.program import Function, Program, at, loops
from nearfree.sources.language.statements import Frame, Nested, Statements

WORK_LIMIT = 400_000
"""Limit of statements and expressions on all paths through a function together."""
Value = Any
"""An expression, a mutable group, or a function."""


class Group(list[Value]):
    """A list; `frozen` once an expression holds its content: it must not change any more."""

    frozen = False


class Entries(dict[Any, Value]):
    """A dictionary with constant keys; `frozen` as for a list."""

    frozen = False


class Symbols(Statements):
    """Turns expressions of a function into expressions over inputs.

    `inputs` are the names that stay free.
    """

    decisions: Decisions
    """The decisions of the current path."""

    def __init__(self, program: Program, inputs: set[str]) -> None:
        super().__init__(program)
        self.inputs = inputs
        self.work = 0
        self.looping: set[str] = set()

    def count(self, node: ast.AST) -> None:
        """Count a statement or expression against the limit of all paths together."""
        self.work += 1
        if self.work > WORK_LIMIT:
            raise UnknownConstructError("the paths through the function do not end", node)

    def expr(self, node: ast.expr, frame: Frame) -> Value:
        """Return an expression over inputs; a constant where it reads no input."""
        self.count(node)
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise outside(node)
        value = method(node, frame)
        return sized(value, node) if isinstance(value, ast.expr) else value

    def resolved(self, value: Value) -> Value:
        """Return a value without a conditional at its top: each branch is a path of its own."""
        while isinstance(value, ast.IfExp):
            taken = self.decisions.decide(value.test, value.test)
            value = value.body if taken else value.orelse
        return value

    def as_expression(self, value: Value, node: ast.AST) -> ast.expr:
        """Return a value's current content as an expression."""
        match value:
            case Group():
                return at(ast.List(self.frozen_expressions(value, node), ast.Load()), node)
            case Entries():
                keys: list[ast.expr | None] = [at(ast.Constant(key), node) for key in value]
                return at(ast.Dict(keys, self.frozen_expressions(value.values(), node)), node)
            case None:
                return at(ast.Constant(value=None), node)
            case ast.expr():
                return value
        raise UnknownConstructError("a function is used as a value", node)

    def frozen_expression(self, value: Value, node: ast.AST) -> ast.expr:
        """Return a value as an expression that others may hold; it must not change any more."""
        if isinstance(value, Group | Entries):
            value.frozen = True
        return self.as_expression(value, node)

    def frozen_expressions(self, values: Iterable[Value], node: ast.AST) -> list[ast.expr]:
        """Return values as `frozen_expression` does, one after the other."""
        return [self.frozen_expression(value, node) for value in values]

    def value_of(self, node: ast.expr, frame: Frame) -> ast.expr:
        """Return an expression over inputs whose identity does not matter, only its value."""
        return self.as_expression(self.expr(node, frame), node)

    def condition(self, node: ast.expr, frame: Frame) -> bool:
        """Return the branch to take at a condition of the source."""
        return self.decisions.decide(self.value_of(node, frame), node)

    def items(self, group: Value) -> Sequence[Value] | None:
        """Return the items of a list or tuple of known length."""
        parts = group.elts if isinstance(group, ast.List | ast.Tuple) else group
        return parts if isinstance(parts, list) else None

    def store_item(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        """Set an entry of a dictionary or list that this path has made."""
        group, index = self.expr(target.value, frame), self.expr(target.slice, frame)
        if not isinstance(group, Group | Entries) or not isinstance(index, ast.Constant):
            raise UnknownConstructError(f"{name_of(target)} cannot be set", target)
        if isinstance(value, Group | Entries | Nested):
            raise UnknownConstructError(f"{name_of(target)} puts a group into a group", target)
        self.check_mutable(group, target)
        try:
            group[index.value] = self.frozen_expression(value, target)  # type: ignore[index]
        except (IndexError, TypeError) as error:
            raise UnknownConstructError(f"{name_of(target)} cannot be set", target) from error

    def check_mutable(self, value: Group | Entries, node: ast.AST) -> None:
        """Raise UnknownConstructError if an expression holds a group, so that it may not change."""
        if value.frozen:
            raise UnknownConstructError(f"{name_of(node)} changes a group that is in use", node)

    def _constant(self, node: ast.Constant, frame: Frame) -> ast.expr:
        del frame
        evaluate(node, {})
        return node

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        if node.id in frame:
            return frame[node.id]
        if node.id in self.program.constants:
            return self.expr(self.program.constants[node.id], {})
        if node.id not in self.inputs:
            raise UnknownConstructError(f"the name {node.id!r} is unknown", node)
        return node

    def _list(self, node: ast.List, frame: Frame) -> Group:
        return Group(self.expr(part, frame) for part in node.elts)

    def _dict(self, node: ast.Dict, frame: Frame) -> Entries:
        entries = Entries()
        for key_node, value in zip(node.keys, node.values, strict=True):
            key = None if key_node is None else self.expr(key_node, frame)
            if not isinstance(key, ast.Constant):
                raise outside(node)
            entries[key.value] = self.expr(value, frame)
        return entries

    def _tuple(self, node: ast.Tuple, frame: Frame) -> ast.expr:
        parts = (self.expr(part, frame) for part in node.elts)
        return at(ast.Tuple(self.frozen_expressions(parts, node), ast.Load()), node)

    def _set(self, node: ast.Set, frame: Frame) -> ast.expr:
        parts = (self.expr(part, frame) for part in node.elts)
        return at(ast.Set(self.frozen_expressions(parts, node)), node)

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> ast.expr:
        operand = self.expr(node.operand, frame)
        if isinstance(operand, Group | Entries) and isinstance(node.op, ast.Not):
            return at(ast.Constant(not operand), node)
        return fold(at(ast.UnaryOp(node.op, self.as_expression(operand, node)), node))

    def _binop(self, node: ast.BinOp, frame: Frame) -> ast.expr:
        operands = self.value_of(node.left, frame), self.value_of(node.right, frame)
        return fold(at(ast.BinOp(operands[0], node.op, operands[1]), node))

    def _compare(self, node: ast.Compare, frame: Frame) -> ast.expr:
        left = self.value_of(node.left, frame)
        others = [self.value_of(part, frame) for part in node.comparators]
        for index, op in enumerate(node.ops):
            other = others[index]
            if isinstance(op, ast.In | ast.NotIn) and isinstance(other, ast.List):
                others[index] = at(ast.Tuple(other.elts, ast.Load()), node)
        return fold(at(ast.Compare(left, node.ops, others), node))

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> ast.expr:
        """Return a formatted text; each branch of a conditional in it is a path of its own."""
        parts: list[ast.expr] = []
        for item in node.values:
            part = item
            if isinstance(item, ast.FormattedValue):
                if item.conversion != -1 or item.format_spec is not None:
                    raise outside(node)
                part = self.as_expression(self.resolved(self.expr(item.value, frame)), node)
            match part:
                case ast.Call(func=ast.Name(id="join")):
                    parts += part.args
                case ast.Constant(value=""):
                    pass
                case _:
                    parts.append(part)
        return fold(at(ast.Call(at(ast.Name("join", ast.Load()), node), parts, []), node))

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> Value:
        stop = isinstance(node.op, ast.Or)
        operands: list[ast.expr] = []
        for index, operand in enumerate(node.values):
            if operands and self.has_effects(operand):
                junction = self.joined(operands, node)
                if self.decisions.decide(junction, junction) is stop:
                    return junction
                operands = []
            value = self.expr(operand, frame)
            is_last = index == len(node.values) - 1
            truth = bool(value) if isinstance(value, Group | Entries) else None
            truth = bool(value.value) if isinstance(value, ast.Constant) else truth
            ends = is_last or truth is stop
            if not operands and ends:
                return value
            if truth is None or ends:
                expression = self.frozen_expression(value, operand)
                operands.append(
                    expression if is_last else _without_neutral_end(expression, node.op)
                )
            if ends:
                break
        return self.joined(operands, node)

    def joined(self, values: list[ast.expr], node: ast.BoolOp) -> ast.expr:
        """Return a junction of the same operator over other operands."""
        return values[0] if len(values) == 1 else at(ast.BoolOp(node.op, values), node)

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Value:
        test = self.value_of(node.test, frame)
        truth = self.decisions.truth(test)
        if truth is None and (self.has_effects(node.body) or self.has_effects(node.orelse)):
            truth = self.decisions.decide(test, node.test)
        if truth is not None:
            return self.expr(node.body if truth else node.orelse, frame)
        branches = self.expr(node.body, frame), self.expr(node.orelse, frame)
        if not all(isinstance(branch, ast.expr) for branch in branches):
            return branches[0] if self.decisions.decide(test, node.test) else branches[1]
        return at(ast.IfExp(test, *branches), node)

    def has_effects(self, node: ast.AST) -> bool:
        """Return whether evaluating an expression may change a group, refuse, or fork the path."""
        for part in nodes_of(node):
            if isinstance(part, ast.Attribute) and part.attr in LIST_METHODS:
                return True
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                function = self.program.functions.get(part.func.id)
                if function is None and part.func.id not in BUILTINS:
                    return True
                if function is not None and not _is_one_return(function) and not loops(function):
                    return True
        return False

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        group, index = self.expr(node.value, frame), self.value_of(node.slice, frame)
        if isinstance(index, ast.Constant):
            if isinstance(group, ast.Tuple):
                group = group.elts
            if isinstance(group, list | Entries):
                try:
                    return group[index.value]  # type: ignore[index]
                except (IndexError, KeyError, TypeError) as error:
                    raise UnknownConstructError(f"{name_of(node)} is not set", node) from error
        return fold(at(ast.Subscript(self.frozen_expression(group, node), index, ast.Load()), node))

    def _call(self, node: ast.Call, frame: Frame) -> Value:
        if node.keywords:
            raise outside(node)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, frame)
        if not isinstance(node.func, ast.Name):
            raise outside(node)
        name, arguments = node.func.id, [self.expr(part, frame) for part in node.args]
        local = frame.get(name)
        if isinstance(local, Nested):
            return self.apply(local, arguments, node)
        if name in frame or name in self.program.constants:
            raise UnknownConstructError(f"{name!r} is no function here", node)
        function = self.program.functions.get(name)
        if function is not None:
            if not loops(function):
                return self.apply(Nested(function, {}), arguments, node)
            self.looping.add(name)
            if _may_change_arguments(function) and any(
                isinstance(argument, Group | Entries) for argument in arguments
            ):
                raise UnknownConstructError(f"{name_of(node)} may change what it is given", node)
            arguments = list[Value](self.frozen_expressions(arguments, node))
        elif name not in BUILTINS:
            raise UnknownConstructError(f"the function {name!r} is unknown", node)
        arguments = [self.as_expression(argument, node) for argument in arguments]
        is_cast = name == "unsigned" and function is None and len(arguments) == 1
        if is_cast and self.decisions.bounds.interval(arguments[0])[0] >= 0:
            return arguments[0]
        return fold(at(ast.Call(node.func, arguments, []), node))

    def _method(self, node: ast.Call, func: ast.Attribute, frame: Frame) -> Value:
        group = self.resolved(self.expr(func.value, frame))
        arguments = [self.expr(part, frame) for part in node.args]
        if func.attr in STRING_METHODS and isinstance(group, ast.expr):
            expressions = [self.as_expression(argument, node) for argument in arguments]
            method = at(ast.Attribute(group, func.attr, ast.Load()), node)
            return fold(at(ast.Call(method, expressions, []), node))
        if not isinstance(group, Group) or func.attr not in LIST_METHODS:
            raise outside(node)
        if func.attr == "append" and len(arguments) == 1:
            self.check_mutable(group, node)
            group.append(self.frozen_expression(arguments[0], node))
            return None
        return self._change_list(node, func.attr, group, arguments)

    def _change_list(
        self, node: ast.Call, method: str, group: Group, arguments: list[Value]
    ) -> Value:
        """Apply `index`, `pop` or `remove` to a list; all items involved must be constants."""
        constants = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
        if (
            len(constants) != len(arguments)
            or len(constants) > 1
            or (method != "pop" and not constants)
        ):
            raise outside(node)
        if method != "index":
            self.check_mutable(group, node)
        try:
            if method == "pop":
                return group.pop(*constants)  # type: ignore[arg-type]
            if not all(isinstance(item, ast.Constant) for item in group):
                raise UnknownConstructError(f"{name_of(node)} depends on an input", node)
            index = [item.value for item in group].index(constants[0])
        except (IndexError, ValueError, TypeError) as error:
            raise UnknownConstructError(f"{name_of(node)} has no value here", node) from error
        if method == "index":
            return at(ast.Constant(index), node)
        del group[index]
        return None


def _without_neutral_end(node: ast.expr, op: ast.boolop) -> ast.expr:
    """Return `a` for `a and True` if more operands follow: `a` alone decides."""
    while isinstance(node, ast.BoolOp) and type(node.op) is type(op):
        last = node.values[-1]
        if not isinstance(last, ast.Constant) or bool(last.value) is isinstance(op, ast.Or):
            break
        operands = node.values[:-1]
        node = operands[0] if len(operands) == 1 else at(ast.BoolOp(node.op, operands), node)
    return node


def _is_one_return(function: Function) -> bool:
    return len(function.body) == 1 and isinstance(function.body[0], ast.Return)


def _may_change_arguments(function: Function) -> bool:
    """Return whether a function may change a group that it is called with."""
    for node in nodes_of(function):
        if isinstance(node, ast.AugAssign):
            return True
        if isinstance(node, ast.Attribute) and node.attr in LIST_METHODS:
            return True
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return True
    return False
