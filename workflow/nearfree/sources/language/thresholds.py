"""Where a rule may change its answer along one whole number, without asking it at each."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from nearfree.sources.language.expressions import variables
from nearfree.sources.language.rule import Rule


class UnsettledError(Exception):
    """Where a rule changes its answer takes asking it at each number."""


_FURTHER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def changes(rule: Rule, inputs: Mapping[str, Any], name: str, last: int) -> list[int]:
    """Return every number up to `last` whose answer may differ from that of the one before.

    Comparisons of what only rises with the number turn at most once, and are searched by halves.

    Parameters
    ----------
    rule
        The rule, specialised for its other inputs.
    inputs
        All inputs but the number, which is `name` and counted from 1.

    Raises
    ------
    UnsettledError, or what a mistake in a rule raises (`NO_VALUE`)
        The rule compares otherwise, or its value is made of the number.
    """
    asked = dict(inputs)
    found = set[int]()
    for _, when, value in rule.branches:
        if name in variables(value):
            raise UnsettledError
        for atom in (each for condition in when for each in _atoms(condition, name)):
            holds = rule.closures.kept(atom)

            def at(number: int, holds: Any = holds) -> bool:
                asked[name] = number
                return bool(holds(asked))

            low, high, first = 1, last, at(1)
            if at(last) == first:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if at(middle) == first else (low, middle)
            found.add(high)
    return sorted(found)


def same_up_to(rule: Rule, name: str) -> float:
    """Return up to which number a rule answers with that number itself; 0 if that is not known."""
    match rule.branches:
        case [(_, [], ast.Name(found))] if found == name:
            return float("inf")
        case [(_, [], ast.Call(ast.Name("min"), [ast.Name(found), ast.Constant(int(most))]))] if (
            found == name
        ):
            return float(most)
    return 0.0


def _atoms(node: ast.expr, name: str) -> Iterator[ast.Compare]:
    """Yield the comparisons of a condition that rest on a number, which only rises in each."""
    if name not in variables(node):
        return
    match node:
        case ast.BoolOp():
            for part in node.values:
                yield from _atoms(part, name)
        case ast.UnaryOp(op=ast.Not()):
            yield from _atoms(node.operand, name)
        case ast.Compare(ops=[op], comparators=[right]) if isinstance(op, _FURTHER) and (
            name not in variables(right) and _rises(node.left, name)
        ):
            yield node
        case _:
            raise UnsettledError


def _rises(node: ast.expr, name: str) -> bool:
    """Return whether an expression only rises with a number: counts alone multiply or divide it."""
    match node:
        case ast.Name():
            return node.id == name
        case ast.BinOp(op=ast.Mult() | ast.Div() | ast.FloorDiv()):
            return _rises(node.left, name) and name not in variables(node.right)
    return False
