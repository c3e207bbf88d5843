"""The closed set of expressions that rules are made of, and their evaluation.

A rule's conditions and values are Python expressions over named inputs. Whatever is not in this
set is an error that names it: nothing is guessed, and nothing of a backend is ever executed.
"""

import ast
import operator
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from nearfree.errors import UnknownConstructError as UnknownConstructError  # noqa: PLC0414
from nearfree.sources.language.functions import BUILTINS, MOST_TEXT, called, nodes_of

Inputs = Mapping[str, Any]


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
# A union such as `int | float` would be made anew at each of millions of checks.
NUMBERS = (int, float)
CONSTANTS = (int, float, str, type(None))
_SINGLES = (bool, type(None))
_IDENTITY = (ast.Is, ast.IsNot)


MISTAKES = (
    TypeError,
    ArithmeticError,
    ValueError,
    KeyError,
    IndexError,
    struct.error,
    RecursionError,
    MemoryError,
)
"""What evaluating a hostile or misread expression may raise; each becomes a refusal."""


def name_of(node: ast.AST) -> str:
    """Return how an unknown construct is called in a message."""
    try:
        text = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
    except (RecursionError, ValueError):
        text = "that is nested too deeply"
    return f"{type(node).__name__} {text.splitlines()[0][:80] if text else ''}".strip()


def outside(node: ast.AST) -> UnknownConstructError:
    """Return the error that names a construct outside the known set."""
    return UnknownConstructError(f"{name_of(node)} is outside the known set", node)


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


@lru_cache(maxsize=1 << 16)
def variables(node: ast.AST) -> frozenset[str]:
    """Return the names that an expression reads, functions' names excepted."""
    functions = {id(call.func) for call in nodes_of(node) if isinstance(call, ast.Call)}
    return frozenset(
        part.id
        for part in nodes_of(node)
        if isinstance(part, ast.Name) and id(part) not in functions
    )


def evaluate(node: ast.expr, inputs: Inputs, call: Callable[..., Any] | None = None) -> Any:
    """Return an expression's value.

    Parameters
    ----------
    node
        The expression.
    inputs
        What its names stand for.
    call
        Is given the name and arguments of a call that is no builtin, or of a name that stands
        for something in `inputs`.

    Raises
    ------
    UnknownConstructError
        A node, name or operator outside the known set, or a value that makes no sense.
    """
    try:
        return Evaluation(inputs, call).value(node)
    except MISTAKES as error:
        raise without_value(node, error) from error


def without_value(node: ast.expr, error: Exception) -> UnknownConstructError:
    """Return the error of an expression that evaluating ended in one of `MISTAKES`."""
    return UnknownConstructError(f"{name_of(node)} has no value here: {error}", node)


def checked(value: Any, node: ast.AST | None = None) -> Any:
    """Return a value that no hostile source made too large.

    Raises
    ------
    UnknownConstructError
        A number above 2**62 or none at all, a long text, a long or deep group.
    """
    kind = type(value)
    if value is None or kind is bool or (kind in NUMBERS and -LARGEST <= value <= LARGEST):
        return value  # nearly all values are small numbers
    large = isinstance(value, NUMBERS) and not abs(value) <= LARGEST
    if large or _bulk(value) > MOST_TEXT:
        raise UnknownConstructError(f"{name_of(node) if node else 'a value'} is too large", node)
    return value


def _bulk(value: Any) -> int:
    """Return how many items a group has, those of its groups included, or a text's length."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if not isinstance(value, list | tuple | frozenset) or len(value) > MOST_TEXT:
        return len(value) if isinstance(value, list | tuple | frozenset) else 1
    total = len(value)
    for each in value:
        total += 0 if isinstance(each, int | float | str) else _bulk(each)
        if total > MOST_TEXT:
            break
    return total


def same(first: Any, second: Any) -> bool:
    """Return whether two values are one, their types and those of their parts included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return same([*first], [*second]) and same([*first.values()], [*second.values()])
    return bool(first == second)


class Evaluation:
    """Evaluates expressions over the same inputs, as `evaluate` says; mistakes are not caught."""

    methods: ClassVar[dict[type, Any]] = {}

    def __init__(self, inputs: Inputs, call: Callable[..., Any] | None) -> None:
        self.inputs = inputs
        self.call = call

    def value(self, node: ast.expr) -> Any:
        """Return an expression's value."""
        method = self.methods.get(type(node))
        if method is None:
            # Most nodes are of a kind that was met before, and its name is looked up once.
            method = getattr(Evaluation, f"_{type(node).__name__.lower()}", None)
            if method is None:
                raise outside(node)
            self.methods[type(node)] = method
        return method(self, node)

    def _constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, CONSTANTS):
            raise outside(node)
        return checked(node.value, node)

    def _name(self, node: ast.Name) -> Any:
        try:
            return self.inputs[node.id]
        except KeyError:
            raise UnknownConstructError(f"the name {node.id!r} is unknown", node) from None

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return checked(tuple(map(self.value, node.elts)), node)  # type: ignore[no-any-return]

    def _list(self, node: ast.List) -> list[Any]:
        return checked(list(map(self.value, node.elts)), node)  # type: ignore[no-any-return]

    def _set(self, node: ast.Set) -> frozenset[Any]:
        return frozenset(map(self.value, node.elts))

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        if any(key is None for key in node.keys):
            raise outside(node)
        pairs = zip(node.keys, node.values, strict=True)
        found = {self.value(key): self.value(value) for key, value in pairs if key is not None}
        return checked(found, node)  # type: ignore[no-any-return]

    def _boolop(self, node: ast.BoolOp) -> Any:
        stop = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self.value(part)
            if bool(value) is stop:
                break
        return value

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        return self._apply(node.op, node, self.value(node.operand))

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if not isinstance(left, NUMBERS) or not isinstance(right, NUMBERS):
            raise UnknownConstructError(f"{name_of(node)} is no arithmetic of numbers", node)
        if isinstance(node.op, ast.LShift) and right > 62:
            raise UnknownConstructError(f"{name_of(node)} is too large", node)
        return self._apply(node.op, node, left, right)

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator)
            if isinstance(op, _IDENTITY) and not (
                isinstance(left, _SINGLES) or isinstance(right, _SINGLES)
            ):
                raise UnknownConstructError(f"{name_of(node)} compares no singletons", node)
            if isinstance(right, range) and not isinstance(left, int):
                raise outside(node)
            holds = OPERATORS.get(type(op))
            if holds is None:
                raise outside(node)
            if not holds(left, right):
                return False
            left = right
        return True

    def _apply(self, op: ast.AST, node: ast.expr, *values: Any) -> Any:
        apply = OPERATORS.get(type(op))
        if apply is None:
            raise outside(node)
        return checked(apply(*values), node)

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.value(node.test) else node.orelse)

    def _subscript(self, node: ast.Subscript) -> Any:
        return self.value(node.value)[self.value(node.slice)]

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise outside(node)
        name, arguments = node.func.id, list(map(self.value, node.args))
        if self.call is not None and (name in self.inputs or name not in BUILTINS):
            return self.call(name, arguments)
        if name in self.inputs or name not in BUILTINS:
            raise UnknownConstructError(f"the function {name!r} is unknown", node)
        return checked(called(name, arguments), node)

    def _method(self, node: ast.Call, func: ast.Attribute) -> Any:
        group = self.value(func.value)
        known = (isinstance(group, list) and func.attr in LIST_METHODS) or (
            isinstance(group, str) and func.attr in STRING_METHODS
        )
        if not known or node.keywords:
            raise outside(node)
        arguments = list(map(self.value, node.args))
        if func.attr == "append":
            for argument in arguments:
                flat(argument, node)
        result = getattr(group, func.attr)(*arguments)
        checked(group, node)
        return checked(result, node)

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        return checked(called("join", list(map(self.value, node.values))), node)

    def _formattedvalue(self, node: ast.FormattedValue) -> Any:
        if node.conversion != -1 or node.format_spec is not None:
            raise outside(node)
        return called("str", [self.value(node.value)])


def flat(value: Any, node: ast.AST) -> Any:
    """Return a value that may be put into a group: one that never changes.

    So no group ever holds itself.

    Raises
    ------
    UnknownConstructError
        A list or dictionary, or a tuple with one.
    """
    if isinstance(value, list | dict):
        raise UnknownConstructError(f"{name_of(node)} puts a group into a group", node)
    for each in value if isinstance(value, tuple) else ():
        flat(each, node)
    return value
