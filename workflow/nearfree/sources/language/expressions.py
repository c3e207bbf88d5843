"""The closed set of expressions that rules are made of, and of the values that they may have.

A rule's conditions and values are Python expressions over named inputs. Anything outside this set
is an error that names it: nothing is guessed, and no backend code is ever executed.
"""

import ast
import operator
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from nearfree.errors import UnknownConstructError as UnknownConstructError  # noqa: PLC0414
from nearfree.sources.language.functions import LENGTH_LIMIT, nodes_of

Inputs = Mapping[str, Any]
"""The value of each name."""
Run = Callable[[Inputs], Any]
"""A closure: returns an expression's value, given the values of its names."""
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
COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
"""The comparisons of numbers."""
_OPPOSITE_OPERATORS: tuple[tuple[type[ast.cmpop], type[ast.cmpop]], ...] = (
    (ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.LtE, ast.Gt), (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
)  # fmt: skip
OPPOSITE = {
    operator_: opposite
    for pair in _OPPOSITE_OPERATORS
    for operator_, opposite in (pair, pair[::-1])
}
LARGEST = 1 << 62
"""Limit of a number's magnitude; a source that makes a larger one is hostile or misread."""
# isinstance runs millions of times; a union such as `int | float` would be built at each.
NUMBERS = (int, float)
_SCALARS = (int, float, str)
_GROUPS = (list, tuple, frozenset)
CONSTANTS = (int, float, str, type(None))
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
"""Exceptions that evaluating a hostile or misread expression may raise; each becomes a refusal."""


def name_of(node: ast.AST) -> str:
    """Return the name of a construct for a message: its kind and its first line."""
    try:
        text = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
    except (RecursionError, ValueError):
        text = "that is nested too deeply"
    return f"{type(node).__name__} {text.splitlines()[0][:80] if text else ''}".strip()


def outside(node: ast.AST) -> UnknownConstructError:
    """Return the error that names a construct outside the known set."""
    return UnknownConstructError(f"{name_of(node)} is outside the known set", node)


def parse(text: str) -> ast.expr:
    """Return the expression of a text; its constructs are checked when it is evaluated."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnknownConstructError(f"{text[:80]!r} is no expression") from error


def negated(node: ast.expr) -> ast.expr:
    """Return the negation of a condition, in the simplest form."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        opposite = OPPOSITE[type(node.ops[0])]()
        return ast.copy_location(ast.Compare(node.left, [opposite], node.comparators), node)
    return ast.copy_location(ast.UnaryOp(ast.Not(), node), node)


@lru_cache(maxsize=1 << 16)
def variables(node: ast.AST) -> frozenset[str]:
    """Return the names that an expression reads, except those of called functions."""
    nodes = nodes_of(node)
    functions = {id(call.func) for call in nodes if isinstance(call, ast.Call)}
    return frozenset(
        part.id for part in nodes if isinstance(part, ast.Name) and id(part) not in functions
    )


@lru_cache(maxsize=1 << 14)
def text_of(node: ast.AST) -> str:
    """Return an expression's source; cached, since each path asks for it at each decision."""
    return ast.unparse(node)


def truth_of(node: ast.expr, part_truth: Callable[[ast.expr], bool | None]) -> bool | None:
    """Return the truth of a negation or junction from that of its parts; None where it is open.

    `False and x` is false for any x.
    """
    match node:
        case ast.UnaryOp(op=ast.Not()):
            operand = part_truth(node.operand)
            return None if operand is None else not operand
        case ast.BoolOp():
            dominant = isinstance(node.op, ast.Or)
            truths = {part_truth(part) for part in node.values}
            return dominant if dominant in truths else None if None in truths else not dominant
    return None


def checked(value: Any, node: ast.AST | None = None) -> Any:
    """Return a value unless it is too large.

    Raises
    ------
    UnknownConstructError
        A number above 2**62 or NaN, a long text, or a long or deep group.
    """
    kind = type(value)
    if value is None or kind is bool or (kind in NUMBERS and -LARGEST <= value <= LARGEST):
        return value  # nearly all values are small numbers
    too_large = isinstance(value, NUMBERS) and not abs(value) <= LARGEST
    if too_large or _item_count(value) > LENGTH_LIMIT:
        raise UnknownConstructError(f"{name_of(node) if node else 'a value'} is too large", node)
    return value


def _item_count(value: Any) -> int:
    """Return the number of items of a group, nested groups included, or the length of a text."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if not isinstance(value, _GROUPS) or len(value) > LENGTH_LIMIT:
        return len(value) if isinstance(value, _GROUPS) else 1
    total = len(value)
    for item in value:
        total += 0 if isinstance(item, _SCALARS) else _item_count(item)
        if total > LENGTH_LIMIT:
            break
    return total


def same(first: Any, second: Any) -> bool:
    """Return whether two values are equal, their types and those of their parts included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return same([*first], [*second]) and same([*first.values()], [*second.values()])
    return bool(first == second)


def flat(value: Any, node: ast.AST) -> Any:
    """Return a value that may be an item of a group, that is, an immutable one.

    So no group ever contains itself.

    Raises
    ------
    UnknownConstructError
        A list or dictionary, or a tuple with one.
    """
    if isinstance(value, list | dict):
        raise UnknownConstructError(f"{name_of(node)} puts a group into a group", node)
    for item in value if isinstance(value, tuple) else ():
        flat(item, node)
    return value
