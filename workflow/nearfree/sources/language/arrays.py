"""Arithmetic of whole numbers over arrays: the values that closures give, all points at once."""

import ast
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfree.sources.language.expressions import COMPARISONS, OPERATORS

OPERAND_LIMIT = 1 << 31
"""Largest magnitude of an operand: no result exceeds 64 bits, or the limit of an expression."""
_DIVISIONS = (ast.FloorDiv, ast.Mod)
_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, *_DIVISIONS)


def whole_numbers(node: ast.expr, names: Mapping[str, Any]) -> NDArray[Any] | None:
    """Return an expression's values, int64 or bool; None where closures must evaluate it.

    Sums, differences, products, quotients and comparisons are known, of constants and names, and
    junctions of comparisons.

    Parameters
    ----------
    names
        The value of each name: an array of int64, [points], or the same value at all points.
    """
    found: NDArray[Any] | None = None
    match node:
        case ast.Compare(ops=[op]) if isinstance(op, COMPARISONS):
            found = _applied(OPERATORS[type(op)], node.left, node.comparators[0], names)
        case ast.BinOp(op=op) if isinstance(op, _OPERATIONS):
            divides = isinstance(op, _DIVISIONS)
            found = _applied(OPERATORS[type(op)], node.left, node.right, names, divides=divides)
        case ast.Call(func=ast.Name(id="quotient"), args=[left, right], keywords=[]):
            found = _applied(np.floor_divide, left, right, names, divides=True, least=0)
        case ast.UnaryOp(op=ast.Not()):
            found = _joined(np.logical_not, [node.operand], names)
        case ast.BoolOp(op=op):
            junction = np.logical_or if isinstance(op, ast.Or) else np.logical_and
            found = _joined(lambda *truths: reduce(junction, truths), node.values, names)
        case ast.Constant(value=value):
            found = _operand(value)
        case ast.Name(id=name) if name in names:
            found = _operand(names[name])
    return found


def _operand(value: object) -> NDArray[Any] | None:
    if isinstance(value, np.ndarray):
        return value
    return np.array(value, np.int64) if type(value) is int and abs(value) < OPERAND_LIMIT else None


def _applied(
    operation: Callable[[Any, Any], Any],
    left: ast.expr,
    right: ast.expr,
    names: Mapping[str, Any],
    *,
    divides: bool = False,
    least: int = -OPERAND_LIMIT,
) -> NDArray[Any] | None:
    """Return a binary operation's values; None if an operand is unknown, too small or too large.

    C++'s quotient truncates, so it is known of dividends from 0 on; divisors are positive.
    """
    operands = whole_numbers(left, names), whole_numbers(right, names)
    for values, lowest in zip(operands, (least, 1 if divides else -OPERAND_LIMIT), strict=True):
        if values is None or values.dtype != np.int64 or not values.size:
            return None
        if values.min() < lowest or values.max() > OPERAND_LIMIT:
            return None
    return np.asarray(operation(*operands))


def _joined(
    junction: Callable[..., Any], parts: list[ast.expr], names: Mapping[str, Any]
) -> NDArray[Any] | None:
    """Return a negation or junction of truths; None if a part is unknown, or no truth."""
    truths = []
    for part in parts:
        values = whole_numbers(part, names)
        if values is None or values.dtype != np.bool_:
            return None
        truths.append(values)
    return np.asarray(junction(*truths))
