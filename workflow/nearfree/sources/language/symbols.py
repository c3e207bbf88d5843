"""Expressions over inputs instead of numbers: what a function's expressions are on one way."""

import ast
from collections.abc import Sequence
from typing import Any

from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.decisions import Decisions
from nearfree.sources.language.expressions import (
    LIST_METHODS,
    STRING_METHODS,
    UnknownConstructError,
    name_of,
    outside,
    variables,
)
from nearfree.sources.language.functions import BUILTINS, nodes_of
from nearfree.sources.language.program import Function, Program, at, loops
from nearfree.sources.language.statements import Frame, Nested, Statements

MOST_WORK = 400_000
"""Statements and expressions that all ways through a function have together."""
MOST_NODES = 5000
"""Parts of the largest expression; a hostile source doubles one with every line."""
Value = Any
"""An expression, a group that may change, or a function."""


class Group(list[Value]):
    """A list; `held` once an expression holds what it was, so that it must not change any more."""

    held = False


class Entries(dict[Any, Value]):
    """A dictionary with constant keys; `held` as of a list."""

    held = False


class Symbols(Statements):
    """Turns expressions of a function into expressions over inputs.

    Parameters
    ----------
    inputs
        The names that stay.
    """

    decisions: Decisions
    """Those of the way that is walked."""

    def __init__(self, program: Program, inputs: set[str]) -> None:
        super().__init__(program)
        self.inputs = inputs
        self.work = 0
        self.called: set[str] = set()

    def count(self, node: ast.AST) -> None:
        """Count a statement or expression against the limit of all ways together."""
        self.work += 1
        if self.work > MOST_WORK:
            raise UnknownConstructError("the ways through the function do not end", node)

    def expr(self, node: ast.expr, frame: Frame) -> Value:
        """Return an expression over inputs; a constant where no input is left in it."""
        self.count(node)
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise outside(node)
        value = method(node, frame)
        return sized(value, node) if isinstance(value, ast.expr) else value

    def settled(self, value: Value) -> Value:
        """Return a value without a choice at its top: each choice is a way of its own."""
        while isinstance(value, ast.IfExp):
            taken = self.decisions.decide(value.test, value.test)
            value = value.body if taken else value.orelse
        return value

    def shown(self, value: Value, node: ast.AST) -> ast.expr:
        """Return a value as an expression, as it is now."""
        match value:
            case Group():
                return at(ast.List([self.held(e, node) for e in value], ast.Load()), node)
            case Entries():
                keys: list[ast.expr | None] = [at(ast.Constant(key), node) for key in value]
                return at(ast.Dict(keys, [self.held(e, node) for e in value.values()]), node)
            case None:
                return at(ast.Constant(value=None), node)
            case ast.expr():
                return value
        raise UnknownConstructError("a function is used as a value", node)

    def held(self, value: Value, node: ast.AST) -> ast.expr:
        """Return a value as an expression that may be handed on, so that it must stay as it is."""
        if isinstance(value, Group | Entries):
            value.held = True
        return self.shown(value, node)

    def plain(self, node: ast.expr, frame: Frame) -> ast.expr:
        """Return an expression over inputs of which only the value counts, not its identity."""
        return self.shown(self.expr(node, frame), node)

    def condition(self, node: ast.expr, frame: Frame) -> bool:
        """Return which way to go at a condition of the source."""
        return self.decisions.decide(self.plain(node, frame), node)

    def items(self, group: Value) -> Sequence[Value] | None:
        """Return the parts of a list or tuple whose length is known."""
        parts = group.elts if isinstance(group, ast.List | ast.Tuple) else group
        return parts if isinstance(parts, list) else None

    def store_item(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        """Set an entry of a dictionary or list that this way has made."""
        group, index = self.expr(target.value, frame), self.expr(target.slice, frame)
        if not isinstance(group, Group | Entries) or not isinstance(index, ast.Constant):
            raise UnknownConstructError(f"{name_of(target)} cannot be set", target)
        if isinstance(value, Group | Entries | Nested):
            raise UnknownConstructError(f"{name_of(target)} puts a group into a group", target)
        self.changing(group, target)
        try:
            group[index.value] = self.held(value, target)  # type: ignore[index]
        except (IndexError, TypeError) as error:
            raise UnknownConstructError(f"{name_of(target)} cannot be set", target) from error

    def changing(self, value: Group | Entries, node: ast.AST) -> None:
        """Check that a group may change.

        Raises
        ------
        UnknownConstructError
            An expression holds what it was.
        """
        if value.held:
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
        found = Entries()
        for each, value in zip(node.keys, node.values, strict=True):
            key = None if each is None else self.expr(each, frame)
            if not isinstance(key, ast.Constant):
                raise outside(node)
            found[key.value] = self.expr(value, frame)
        return found

    def _tuple(self, node: ast.Tuple, frame: Frame) -> ast.expr:
        parts = [self.held(self.expr(part, frame), node) for part in node.elts]
        return at(ast.Tuple(parts, ast.Load()), node)

    def _set(self, node: ast.Set, frame: Frame) -> ast.expr:
        return at(ast.Set([self.held(self.expr(e, frame), node) for e in node.elts]), node)

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> ast.expr:
        operand = self.expr(node.operand, frame)
        if isinstance(operand, Group | Entries) and isinstance(node.op, ast.Not):
            return at(ast.Constant(not operand), node)
        return fold(at(ast.UnaryOp(node.op, self.shown(operand, node)), node))

    def _binop(self, node: ast.BinOp, frame: Frame) -> ast.expr:
        sides = self.plain(node.left, frame), self.plain(node.right, frame)
        return fold(at(ast.BinOp(sides[0], node.op, sides[1]), node))

    def _compare(self, node: ast.Compare, frame: Frame) -> ast.expr:
        left = self.plain(node.left, frame)
        others = [self.plain(part, frame) for part in node.comparators]
        for place, op in enumerate(node.ops):
            other = others[place]
            if isinstance(op, ast.In | ast.NotIn) and isinstance(other, ast.List):
                others[place] = at(ast.Tuple(other.elts, ast.Load()), node)
        return fold(at(ast.Compare(left, node.ops, others), node))

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> ast.expr:
        """Return a formatted text, its choices taken: each is a way of its own."""
        parts: list[ast.expr] = []
        for item in node.values:
            part = item
            if isinstance(item, ast.FormattedValue):
                if item.conversion != -1 or item.format_spec is not None:
                    raise outside(node)
                part = self.shown(self.settled(self.expr(item.value, frame)), node)
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
        kept: list[ast.expr] = []
        for number, each in enumerate(node.values):
            if kept and self.acts(each):
                left = self.joined(kept, node)
                if self.decisions.decide(left, left) is stop:
                    return left
                kept = []
            value = self.expr(each, frame)
            last = number == len(node.values) - 1
            known = bool(value) if isinstance(value, Group | Entries) else None
            known = bool(value.value) if isinstance(value, ast.Constant) else known
            ends = last or known is stop
            if not kept and ends:
                return value
            if known is None or ends:
                whole = self.held(value, each)
                kept.append(whole if last else _without_end(whole, node.op))
            if ends:
                break
        return self.joined(kept, node)

    def joined(self, values: list[ast.expr], node: ast.BoolOp) -> ast.expr:
        """Return the same junction of other values."""
        return values[0] if len(values) == 1 else at(ast.BoolOp(node.op, values), node)

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> Value:
        test = self.plain(node.test, frame)
        decided = self.decisions.truth(test)
        if decided is None and (self.acts(node.body) or self.acts(node.orelse)):
            decided = self.decisions.decide(test, node.test)
        if decided is not None:
            return self.expr(node.body if decided else node.orelse, frame)
        sides = self.expr(node.body, frame), self.expr(node.orelse, frame)
        if not all(isinstance(side, ast.expr) for side in sides):
            return sides[0] if self.decisions.decide(test, node.test) else sides[1]
        return at(ast.IfExp(test, *sides), node)

    def acts(self, node: ast.AST) -> bool:
        """Return whether an expression does more than to have a value: it changes or refuses."""
        for part in nodes_of(node):
            if isinstance(part, ast.Attribute) and part.attr in LIST_METHODS:
                return True
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                function = self.program.functions.get(part.func.id)
                if function is None and part.func.id not in BUILTINS:
                    return True
                if function is not None and not _one_line(function) and not loops(function):
                    return True
        return False

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        group, index = self.expr(node.value, frame), self.plain(node.slice, frame)
        if isinstance(index, ast.Constant):
            if isinstance(group, ast.Tuple):
                group = group.elts
            if isinstance(group, list | Entries):
                try:
                    return group[index.value]  # type: ignore[index]
                except (IndexError, KeyError, TypeError) as error:
                    raise UnknownConstructError(f"{name_of(node)} is not set", node) from error
        return fold(at(ast.Subscript(self.held(group, node), index, ast.Load()), node))

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
            self.called.add(name)
            if _changes(function) and any(isinstance(e, Group | Entries) for e in arguments):
                raise UnknownConstructError(f"{name_of(node)} may change what it is given", node)
            arguments = [self.held(argument, node) for argument in arguments]
        elif name not in BUILTINS:
            raise UnknownConstructError(f"the function {name!r} is unknown", node)
        arguments = [self.shown(argument, node) for argument in arguments]
        if name == "unsigned" and function is None and self._no_sign(arguments):
            return arguments[0]
        return fold(at(ast.Call(node.func, arguments, []), node))

    def _no_sign(self, arguments: list[ast.expr]) -> bool:
        return len(arguments) == 1 and self.decisions.bounds.interval(arguments[0])[0] >= 0

    def _method(self, node: ast.Call, func: ast.Attribute, frame: Frame) -> Value:
        group = self.settled(self.expr(func.value, frame))
        arguments = [self.expr(part, frame) for part in node.args]
        if func.attr in STRING_METHODS and isinstance(group, ast.expr):
            given = [self.shown(argument, node) for argument in arguments]
            whole = at(ast.Attribute(group, func.attr, ast.Load()), node)
            return fold(at(ast.Call(whole, given, []), node))
        if not isinstance(group, Group) or func.attr not in LIST_METHODS:
            raise outside(node)
        if func.attr == "append" and len(arguments) == 1:
            self.changing(group, node)
            group.append(self.held(arguments[0], node))
            return None
        return self._picked(node, func.attr, group, arguments)

    def _picked(self, node: ast.Call, method: str, group: Group, arguments: list[Value]) -> Value:
        """Return what `index`, `pop` or `remove` give; all must be known, not an input."""
        given = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
        if len(given) != len(arguments) or len(given) > 1 or (method != "pop" and not given):
            raise outside(node)
        if method != "index":
            self.changing(group, node)
        try:
            if method == "pop":
                return group.pop(*given)  # type: ignore[arg-type]
            if not all(isinstance(each, ast.Constant) for each in group):
                raise UnknownConstructError(f"{name_of(node)} depends on an input", node)
            place = [each.value for each in group].index(given[0])
        except (IndexError, ValueError, TypeError) as error:
            raise UnknownConstructError(f"{name_of(node)} has no value here", node) from error
        if method == "index":
            return at(ast.Constant(place), node)
        del group[place]
        return None


def _without_end(node: ast.expr, op: ast.boolop) -> ast.expr:
    """Return `a` of `a and True` where more follows after `and`: it is `a` that decides."""
    while isinstance(node, ast.BoolOp) and type(node.op) is type(op):
        last = node.values[-1]
        if not isinstance(last, ast.Constant) or bool(last.value) is isinstance(op, ast.Or):
            break
        rest = node.values[:-1]
        node = rest[0] if len(rest) == 1 else at(ast.BoolOp(node.op, rest), node)
    return node


def sized(node: ast.expr, place: ast.AST) -> ast.expr:
    """Return an expression that is not too large to be handled."""
    if _size(node) > MOST_NODES:
        raise UnknownConstructError("an expression grows too large", place)
    return node


def _size(node: ast.AST) -> int:
    """Return how many nodes an expression has, counted once: larger ones are made of it."""
    size: int | None = getattr(node, "size", None)
    if size is None:
        size = 1 + sum(map(_size, ast.iter_child_nodes(node)))
        node.size = size  # type: ignore[attr-defined]
    return size


def fold(node: ast.expr) -> ast.expr:
    """Return the constant that an expression without inputs is; else the expression."""
    sized(node, node)
    called = [part for part in nodes_of(node) if isinstance(part, ast.Call)]
    plain = all(
        isinstance(c.func, ast.Attribute)
        or (isinstance(c.func, ast.Name) and c.func.id in BUILTINS)
        for c in called
    )
    if variables(node) or not plain or any(isinstance(e, ast.List) for e in nodes_of(node)):
        return node
    value = evaluate(node, {})
    if not isinstance(value, int | float | str | None):
        return node
    return at(ast.Constant(value), node)


def _one_line(function: Function) -> bool:
    return len(function.body) == 1 and isinstance(function.body[0], ast.Return)


def _changes(function: Function) -> bool:
    """Return whether a function may change a group that it is given."""
    for node in nodes_of(function):
        if isinstance(node, ast.AugAssign):
            return True
        if isinstance(node, ast.Attribute) and node.attr in LIST_METHODS:
            return True
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return True
    return False
