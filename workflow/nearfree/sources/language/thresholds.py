"""Find where a rule's answer may change along an integer input, without evaluating each integer."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from nearfree.sources.language.expressions import variables
from nearfree.sources.language.rule import Rule


class UnsettledError(Exception):
    """The rule's change points cannot be searched: evaluate it at each integer."""


_ORDER_OPERATORS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def change_points(rule: Rule, inputs: Mapping[str, Any], name: str, last: int) -> list[int]:
    """Return every integer up to `last` at which the answer may differ from the previous one's.

    A comparison of an expression that increases with the integer changes at most once: bisection
    finds where.

    Parameters
    ----------
    rule
        The rule, specialised for its other inputs.
    inputs
        All inputs except the integer, which is called `name` and starts at 1.

    Raises
    ------
    UnsettledError, or another exception of `NO_VALUE`
        The rule uses other comparisons, or its value contains the integer.
    """
    point = dict(inputs)
    points = set[int]()
    for _, conditions, value in rule.branches:
        if name in variables(value):
            raise UnsettledError
        for comparison in (
            part for condition in conditions for part in _comparisons(condition, name)
        ):
            holds = rule.closures.closure(comparison)

            def at(number: int, holds: Any = holds) -> bool:
                point[name] = number
                return bool(holds(point))

            low, high, first = 1, last, at(1)
            if at(last) == first:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if at(middle) == first else (low, middle)
            points.add(high)
    return sorted(points)


def identity_limit(rule: Rule, name: str) -> float:
    """Return the integer up to which a rule's value is the integer itself; 0 if that is unknown."""
    match rule.branches:
        case [(_, [], ast.Name(variable))] if variable == name:
            return float("inf")
        case [
            (_, [], ast.Call(ast.Name("min"), [ast.Name(variable), ast.Constant(int(limit))]))
        ] if variable == name:
            return float(limit)
    return 0.0


def _comparisons(node: ast.expr, name: str) -> Iterator[ast.Compare]:
    """Yield the comparisons of a condition that read `name`; each must increase with it."""
    if name not in variables(node):
        return
    match node:
        case ast.BoolOp():
            for part in node.values:
                yield from _comparisons(part, name)
        case ast.UnaryOp(op=ast.Not()):
            yield from _comparisons(node.operand, name)
        case ast.Compare(ops=[op], comparators=[right]) if isinstance(op, _ORDER_OPERATORS) and (
            name not in variables(right) and _increases(node.left, name)
        ):
            yield node
        case _:
            raise UnsettledError


def _increases(node: ast.expr, name: str) -> bool:
    """Return whether an expression increases with `name`: it is only multiplied or divided."""
    match node:
        case ast.Name():
            return node.id == name
        case ast.BinOp(op=ast.Mult() | ast.Div() | ast.FloorDiv()):
            return _increases(node.left, name) and name not in variables(node.right)
    return False
