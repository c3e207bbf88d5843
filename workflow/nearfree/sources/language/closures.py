"""Expressions made ready to be evaluated many times: each tree turned once into closures.

A closure returns what `evaluate` returns, or raises `UnsettledError`: then `evaluate` runs,
which gives the value or names the mistake. Nothing of a backend is compiled or run by Python.
"""

import ast
from collections.abc import Callable, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Any

from nearfree.sources.language.expressions import (
    LARGEST,
    MISTAKES,
    OPERATORS,
    UnknownConstructError,
    checked,
)
from nearfree.sources.language.functions import BUILTINS, called

Run = Callable[[Mapping[str, Any]], Any]
"""Returns an expression's value, given what its names stand for."""
Call = Callable[[str, list[Any], Mapping[str, Any]], Any]
"""Is given the name and arguments of a call that is no builtin, and what names stand for."""
_NUMBERS = {int, float, bool}
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitOr, ast.BitAnd)


class UnsettledError(Exception):
    """The quick way does not say: the slow one must."""


NO_VALUE = (*MISTAKES, UnknownConstructError, UnsettledError)
"""What ends the quick way."""


class Fixed:
    """An expression whose value is the same at all inputs."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, names: Mapping[str, Any]) -> Any:
        """Return the value."""
        del names
        return self.value


class Closures:
    """Turns expressions into closures, with all that some inputs settle worked out.

    Parameters
    ----------
    fixed
        Names that stand for the same at every evaluation.
    call
        What a call that is no builtin gives. No name may stand for something and be a builtin.
    """

    def __init__(self, fixed: Mapping[str, Any], call: Call) -> None:
        self._fixed, self._call_of = fixed, call

    def of(self, node: ast.expr) -> Run:
        """Return an expression as a closure.

        Raises
        ------
        UnsettledError
            It has a part that is only evaluated the slow way.
        """
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise UnsettledError
        run: Run = method(node)
        return run

    def _constant(self, node: ast.Constant) -> Run:
        if not isinstance(node.value, int | float | str | None):
            raise UnsettledError
        return Fixed(checked(node.value))

    def _name(self, node: ast.Name) -> Run:
        name = node.id
        return Fixed(self._fixed[name]) if name in self._fixed else itemgetter(name)

    def _boolop(self, node: ast.BoolOp) -> Run:
        return _either([self.of(part) for part in node.values], stop=isinstance(node.op, ast.Or))

    def _ifexp(self, node: ast.IfExp) -> Run:
        test, body, orelse = self.of(node.test), self.of(node.body), self.of(node.orelse)
        if isinstance(test, Fixed):
            return body if test.value else orelse
        return lambda names: body(names) if test(names) else orelse(names)

    def _unaryop(self, node: ast.UnaryOp) -> Run:
        part = self.of(node.operand)
        if type(node.op) not in OPERATORS:
            raise UnsettledError
        apply = OPERATORS[type(node.op)]
        return _folded(lambda names: checked(apply(part(names))), part)

    def _binop(self, node: ast.BinOp) -> Run:
        if not isinstance(node.op, _ARITHMETIC):
            raise UnsettledError
        return _arithmetic(self.of(node.left), self.of(node.right), OPERATORS[type(node.op)])

    def _compare(self, node: ast.Compare) -> Run:
        parts = [self.of(each) for each in (node.left, *node.comparators)]
        links = [
            _comparison(left, right, op)
            for (left, right), op in zip(pairwise(parts), node.ops, strict=True)
        ]
        return _either(links, stop=False)

    def _tuple(self, node: ast.Tuple) -> Run:
        parts = [self.of(part) for part in node.elts]
        return _folded(lambda names: checked(tuple([part(names) for part in parts])), *parts)

    def _subscript(self, node: ast.Subscript) -> Run:
        group, place = self.of(node.value), self.of(node.slice)
        return _folded(lambda names: group(names)[place(names)], group, place)

    def _call(self, node: ast.Call) -> Run:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise UnsettledError
        name, parts = node.func.id, [self.of(part) for part in node.args]
        if name in BUILTINS:
            return _builtin(name, parts)
        call = self._call_of
        return lambda names: call(name, [part(names) for part in parts], names)


def _folded(run: Run, *parts: Run) -> Run:
    """Return a closure, worked out where its parts are; one without a value there waits."""
    if not all(isinstance(part, Fixed) for part in parts):
        return run
    try:
        return Fixed(run({}))
    except NO_VALUE:
        return run


def _either(parts: list[Run], *, stop: bool) -> Run:
    """Return the first value whose truth is `stop`, else the last."""
    kept: list[Run] = []
    for number, each in enumerate(parts):
        if not isinstance(each, Fixed) or number == len(parts) - 1:
            kept.append(each)
        elif bool(each.value) is stop:
            kept.append(each)
            break  # what stands behind is never evaluated
    if len(kept) == 1:
        return kept[0]

    def run(names: Mapping[str, Any]) -> Any:
        value: Any = None
        for each in kept:
            value = each(names)
            if bool(value) is stop:
                break
        return value

    return run


def _arithmetic(left: Run, right: Run, apply: Callable[..., Any]) -> Run:
    def run(names: Mapping[str, Any]) -> Any:
        one, other = left(names), right(names)
        if type(one) in _NUMBERS and type(other) in _NUMBERS:
            value = apply(one, other)
            if -LARGEST <= value <= LARGEST:
                return value
        raise UnsettledError

    return _folded(run, left, right)


def _comparison(left: Run, right: Run, op: ast.cmpop) -> Run:
    apply = OPERATORS[type(op)]
    singles = isinstance(op, ast.Is | ast.IsNot)
    if isinstance(right, Fixed) and not singles and type(right.value) is not range:
        limit = right.value  # nearly all comparisons are with a number that is known
        return _folded(lambda names: apply(left(names), limit), left)

    def run(names: Mapping[str, Any]) -> Any:
        one, other = left(names), right(names)
        if singles and not (isinstance(one, bool | None) or isinstance(other, bool | None)):
            raise UnsettledError
        if type(other) is range and not isinstance(one, int):
            raise UnsettledError
        return apply(one, other)

    return _folded(run, left, right)


def _builtin(name: str, parts: list[Run]) -> Run:
    function = BUILTINS[name]

    def run(names: Mapping[str, Any]) -> Any:
        values = [part(names) for part in parts]
        if all(type(value) in _NUMBERS for value in values):
            return checked(function(*values))
        return checked(called(name, values))

    return _folded(run, *parts)
