"""The closed set of expressions that rules are made of, and their evaluation.

A rule's conditions and values are Python expressions over named inputs. Whatever is not in this
set is an error that names it: nothing is guessed, and nothing of a backend is ever executed.
"""

import ast
import math
import operator
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from nearfree.errors import SourceError

Inputs = Mapping[str, Any]


def float32(value: float) -> float:
    """Return the nearest single-precision number: what a C++ float holds."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def quotient(left: float, right: float) -> float:
    """Return C++'s `left / right`: truncated for integers."""
    if isinstance(left, int) and isinstance(right, int):
        whole = abs(left) // abs(right)
        return whole if (left < 0) == (right < 0) else -whole
    return left / right


def join(*parts: object) -> str:
    """Return a formatted text: its parts, one after the other."""
    return "".join(map(str, parts))


def re_sub(pattern: str, new: str, text: str) -> str:
    """Return Python's `re.sub` for a class of characters; other patterns may not end."""
    if not re.fullmatch(r"\[[^\[\]]+\]\+?", pattern):
        raise UnknownConstructError(f"the pattern {pattern!r} is outside the known set")
    return re.sub(pattern, new.replace("\\", ""), text)


BUILTINS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bit_length": int.bit_length,
    "bool": bool,
    "ceil": math.ceil,
    "float": float,
    "float32": float32,
    "int": int,
    "join": join,
    "len": len,
    "max": max,
    "min": min,
    "quotient": quotient,
    "re_sub": re_sub,
    "range": range,
    "round": round,
    "str": str,
    "tuple": tuple,
}
STRING_METHODS = ("endswith", "replace", "split", "startswith", "strip")
LIST_METHODS = ("append", "index", "pop", "remove")
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
LARGEST = 1 << 62
"""No number of a rule is larger; a source that makes one is hostile or misread."""


class UnknownConstructError(SourceError):
    """A construct outside the known set."""

    def __init__(self, what: str, node: ast.AST | None = None) -> None:
        line = getattr(node, "lineno", None)
        where = f"line {line}: " if line else ""
        super().__init__(f"{where}{what}", remedy="This rule needs a reader of its own: report it")


def name_of(node: ast.AST) -> str:
    """Return how an unknown construct is called in a message."""
    text = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
    return f"{type(node).__name__} {text.splitlines()[0][:80] if text else ''}".strip()


def parse(text: str) -> ast.expr:
    """Return the expression that a text holds; of any kind, checked when it is evaluated."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnknownConstructError(f"{text[:80]!r} is no expression") from error


def negated(node: ast.expr) -> ast.expr:
    """Return the opposite of a condition, in the plainest form."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        opposite = OPPOSITE[type(node.ops[0])]()
        return ast.copy_location(ast.Compare(node.left, [opposite], node.comparators), node)
    return ast.copy_location(ast.UnaryOp(ast.Not(), node), node)


def variables(node: ast.AST) -> set[str]:
    """Return the names that an expression reads, functions' names excepted."""
    called = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
    return {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and id(each) not in called
    }


def evaluate(node: ast.expr, inputs: Inputs, call: Callable[..., Any] | None = None) -> Any:
    """Return an expression's value.

    Parameters
    ----------
    node
        The expression.
    inputs
        What its names stand for.
    call
        Is given the name and arguments of a call that is no builtin.

    Raises
    ------
    UnknownConstructError
        A node, name or operator outside the known set, or a value that makes no sense.
    """
    try:
        return _Evaluation(inputs, call).value(node)
    except (TypeError, ArithmeticError, ValueError, KeyError, IndexError, RecursionError) as error:
        raise UnknownConstructError(f"{name_of(node)} has no value here: {error}", node) from error


class _Evaluation:
    def __init__(self, inputs: Inputs, call: Callable[..., Any] | None) -> None:
        self.inputs = inputs
        self.call = call

    def value(self, node: ast.expr) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        return method(node)

    def _constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, int | float | str | None):
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self.inputs:
            raise UnknownConstructError(f"the name {node.id!r} is unknown", node)
        return self.inputs[node.id]

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(map(self.value, node.elts))

    def _list(self, node: ast.List) -> list[Any]:
        return list(map(self.value, node.elts))

    def _set(self, node: ast.Set) -> tuple[Any, ...]:
        return tuple(map(self.value, node.elts))

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        if any(key is None for key in node.keys):
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        pairs = zip(node.keys, node.values, strict=True)
        return {self.value(key): self.value(value) for key, value in pairs if key is not None}

    def _boolop(self, node: ast.BoolOp) -> Any:
        stop = isinstance(node.op, ast.Or)
        value: Any = None
        for each in node.values:
            value = self.value(each)
            if bool(value) is stop:
                break
        return value

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        return self._apply(node.op, node, self.value(node.operand))

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise UnknownConstructError(f"{name_of(node)} is no arithmetic of numbers", node)
        if isinstance(node.op, ast.LShift) and right > 62:
            raise UnknownConstructError(f"{name_of(node)} is too large", node)
        return self._apply(node.op, node, left, right)

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator)
            if not self._apply(op, node, left, right):
                return False
            left = right
        return True

    def _apply(self, op: ast.AST, node: ast.expr, *values: Any) -> Any:
        if type(op) not in OPERATORS:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        result = OPERATORS[type(op)](*values)
        if isinstance(result, int | float) and not abs(result) <= LARGEST:
            raise UnknownConstructError(f"{name_of(node)} is too large", node)
        return result

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.value(node.test) else node.orelse)

    def _subscript(self, node: ast.Subscript) -> Any:
        return self.value(node.value)[self.value(node.slice)]

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        arguments = list(map(self.value, node.args))
        if self.call is not None and node.func.id not in BUILTINS:
            return self.call(node.func.id, arguments)
        if node.func.id not in BUILTINS:
            raise UnknownConstructError(f"the function {node.func.id!r} is unknown", node)
        return BUILTINS[node.func.id](*arguments)

    def _method(self, node: ast.Call, func: ast.Attribute) -> Any:
        group = self.value(func.value)
        known = (isinstance(group, list) and func.attr in LIST_METHODS) or (
            isinstance(group, str) and func.attr in STRING_METHODS
        )
        if not known or node.keywords:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        return getattr(group, func.attr)(*map(self.value, node.args))

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        return "".join(str(self.value(each)) for each in node.values)

    def _formattedvalue(self, node: ast.FormattedValue) -> str:
        if node.conversion != -1 or node.format_spec is not None:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        return str(self.value(node.value))
